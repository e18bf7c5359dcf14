"""Batches in a fixed order; the same for every method."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bitta.config import require
from bitta.errors import InputError
from bitta.streams.domain import Domain, hashed
from bitta.streams.order import Arrangement, visits
from bitta.types import Batch


class Stream:
    """A fixed sequence of batches; a batch never reaches from one visit into the next."""

    def __init__(
        self,
        domains: Sequence[Domain],
        *,
        batch_size: int = 64,
        seed: int = 0,
        arrangement: Arrangement | None = None,
        origin: str = "",
    ) -> None:
        require(batch_size >= 1, "batch_size", batch_size, "1 or more")
        self.domains = tuple(domains)
        for domain in self.domains:
            if domain.classes != self.domains[0].classes:
                raise InputError(
                    f"domains {self.domains[0].name!r} and {domain.name!r} do not have the same "
                    "classes; labels would mean two things."
                )
        self.batch_size = batch_size
        self.seed = seed
        self.arrangement = arrangement or Arrangement()
        self.origin = origin
        """Where the samples come from, for the protocol."""
        self.visits = visits(self.domains, self.arrangement, seed=seed)
        if not any(len(visit.rows) for visit in self.visits):
            raise InputError("the stream holds no sample.")
        self._plan = [
            (number, slice(start, start + batch_size))
            for number, visit in enumerate(self.visits)
            for start in range(0, len(visit.rows), batch_size)
        ]
        self._visited = [visit.domains.unique().tolist() for visit in self.visits]

    def __len__(self) -> int:
        return len(self._plan)

    @property
    def truth(self) -> Tensor:
        """Every label in the order of the stream."""
        return torch.cat([self._labels(visit.domains, visit.rows) for visit in self.visits])

    @property
    def fingerprint(self) -> str:
        """Hash of every domain and of the order of samples."""
        order = (part for visit in self.visits for part in (visit.name, visit.domains, visit.rows))
        return hashed(*(domain.fingerprint for domain in self.domains), *order)

    @property
    def protocol(self) -> str:
        """Samples, order, reset, batch and seed in a line that belongs to every result."""
        how = self.arrangement
        within = "shuffled within" if how.labels == "iid" else f"dirichlet {how.beta:g} within"
        of = f" of {self.origin}" if self.origin else ""
        reset = "reset before each" if how.order == "single" else "no reset"
        return (
            f"{len(self.truth)} samples{of}, {how.order} {self._path()}, {within}, {reset}, "
            f"batch {self.batch_size}, seed {self.seed}"
        )

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batches from number `start` on."""
        for number in range(start, len(self)):
            batch = self.read(number)
            yield replace(batch, inputs=as_floats(batch.inputs))

    def read(self, number: int) -> Batch:
        """Batch `number`, its pictures as they are kept: uint8, or float already."""
        place, part = self._plan[number]
        visit = self.visits[place]
        places, rows = visit.domains[part], visit.rows[part]
        reset = visit.reset and part.start == 0
        return Batch(self._images(places, rows), self._labels(places, rows), visit.name, reset)

    def visit_of(self, number: int) -> int:
        """The place in `visits` of the visit that batch `number` belongs to."""
        return self._plan[number][0]

    def prepare(self, visit: int) -> None:
        """Make the images of a visit, where they have to be made."""
        for place in self._visited[visit]:
            self.domains[place].prepare()

    def release(self, *, before: int) -> None:
        """Let go of images that were made for earlier visits and are not in a later one."""
        needed = {place for places in self._visited[before:] for place in places}
        for place in {place for places in self._visited[:before] for place in places} - needed:
            self.domains[place].release()

    def _path(self) -> str:
        names = [visit.name for visit in self.visits]
        match self.arrangement.order:
            case "mixed":
                return " + ".join(self.domains[place].name for place in self._mixed())
            case "gradual":
                kinds = dict.fromkeys(name.rpartition(" ")[0] for name in names)
                return " > ".join(f"{kind} rising and falling" for kind in kinds)
            case "recurring":
                rounds = self.arrangement.rounds
                return f"{' > '.join(names[: len(names) // rounds])}, {rounds} times"
        return " > ".join(names)

    def _mixed(self) -> list[int]:
        return sorted({place for visit in self.visits for place in visit.domains.tolist()})

    def _images(self, places: Tensor, rows: Tensor) -> Tensor:
        present = places.unique().tolist()
        if len(present) == 1:
            only: Tensor = self.domains[present[0]].images[rows]
            return only
        parts = [self.domains[place].images[rows[places == place]] for place in present]
        for place, part in zip(present, parts, strict=True):
            if (part.shape[1:], part.dtype) != (parts[0].shape[1:], parts[0].dtype):
                raise InputError(
                    f"domain {self.domains[place].name!r} has inputs of shape "
                    f"{tuple(part.shape[1:])} and type {part.dtype}, "
                    f"{self.domains[present[0]].name!r} {tuple(parts[0].shape[1:])} and "
                    f"{parts[0].dtype}; what is mixed needs one form."
                )
        images = torch.empty(len(rows), *parts[0].shape[1:], dtype=parts[0].dtype)
        for place, part in zip(present, parts, strict=True):
            images[places == place] = part
        return images

    def _labels(self, places: Tensor, rows: Tensor) -> Tensor:
        labels = torch.empty_like(rows)
        for place in places.unique().tolist():
            chosen = places == place
            labels[chosen] = self.domains[place].labels[rows[chosen]]
        return labels


def as_floats(images: Tensor) -> Tensor:
    """Pictures in [0, 1]; the same numbers on every device."""
    if images.dtype != torch.uint8:
        return images
    # By a tensor on the device: CUDA divides by a plain number with its rounded reciprocal.
    return images.float().div_(torch.full((), 255.0, device=images.device))
