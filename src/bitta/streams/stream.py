"""Order of samples, and batches in that order.

Everything here depends on the seed of the stream alone, never on the method that is run on it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bitta.config import require
from bitta.errors import InputError, SettingError, unknown_name_error
from bitta.seeding import Key, derive_seed, generator
from bitta.streams.images import Domain, hashed
from bitta.types import Batch


@dataclass(frozen=True, eq=False)
class Visit:
    """Samples that arrive under one name; batches never reach from one visit into the next."""

    name: str
    domains: Tensor  # (samples,) place of each sample's domain
    rows: Tensor  # (samples,) its row there
    reset: bool = False
    """Whether the model goes back to its source before it."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """How a stream is arranged: which domains, one after another, and how each is shuffled."""

    order: str = "continual"
    """continual, mixed, gradual, recurring, single (each domain from the source model)."""
    labels: str = "iid"
    """iid, or dirichlet: labels that come in runs."""
    beta: float = 0.1
    """Of the Dirichlet distribution: the smaller, the longer the runs."""
    rounds: int = 3
    """recurring: how often the sequence is repeated."""
    sequence: tuple[str, ...] = ()
    """Names of domains in the order of visits, repeats allowed; empty for all, once each."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise unknown_name_error("order", self.order, ORDERS)
        require(self.labels in ("iid", "dirichlet"), "labels", self.labels, "iid, dirichlet")
        require(self.beta > 0, "beta", self.beta, "above 0")
        require(self.rounds >= 1, "rounds", self.rounds, "1 or more")


def visits(domains: Sequence[Domain], how: Arrangement, *, seed: int) -> list[Visit]:
    """Every sample in its place."""
    places = _places(domains, how.sequence)
    return ORDERS[how.order](domains, places, how, seed)


def _places(domains: Sequence[Domain], sequence: Sequence[str]) -> list[int]:
    """The domains that are visited, in order."""
    named = {domain.name: place for place, domain in enumerate(domains)}
    for name in sequence:
        if name not in named:
            raise unknown_name_error("domain", name, named, of="the stream")
    return [named[name] for name in sequence] or list(range(len(domains)))


def _continual(
    domains: Sequence[Domain], places: Sequence[int], how: Arrangement, seed: int
) -> list[Visit]:
    """One domain after another; a domain that comes again is shuffled anew."""
    return [
        _visit(domains, place, how, seed, turn=list(places[:number]).count(place))
        for number, place in enumerate(places)
    ]


def _single(
    domains: Sequence[Domain], places: Sequence[int], how: Arrangement, seed: int
) -> list[Visit]:
    """As continual, but each domain starts from the source model."""
    return [
        Visit(visit.name, visit.domains, visit.rows, reset=number > 0)
        for number, visit in enumerate(_continual(domains, places, how, seed))
    ]


def _recurring(
    domains: Sequence[Domain], places: Sequence[int], how: Arrangement, seed: int
) -> list[Visit]:
    """The whole sequence again and again."""
    return _continual(domains, [*places] * how.rounds, how, seed)


def _gradual(
    domains: Sequence[Domain], places: Sequence[int], how: Arrangement, seed: int
) -> list[Visit]:
    """Each kind of domain at severities 1..5..1; domains are named "kind severity"."""
    by_kind: dict[str, dict[int, int]] = {}
    for place in places:
        kind, _, severity = domains[place].name.rpartition(" ")
        if not kind or not severity.isdecimal():
            raise SettingError(
                f"order is gradual, but domain {domains[place].name!r} has no severity; name "
                'domains "kind severity", such as "fog 3".'
            )
        by_kind.setdefault(kind, {})[int(severity)] = place
    path = []
    for steps in by_kind.values():
        rising = [steps[severity] for severity in sorted(steps)]
        path += [*rising, *reversed(rising[:-1])]
    return _continual(domains, path, how, seed)


def _mixed(
    domains: Sequence[Domain], places: Sequence[int], how: Arrangement, seed: int
) -> list[Visit]:
    """All domains shuffled together."""
    each = _continual(domains, places, how, seed)
    origin = torch.cat([visit.domains for visit in each])
    rows = torch.cat([visit.rows for visit in each])
    if how.labels == "iid":
        order = torch.randperm(len(rows), generator=generator(seed, "mixed"))
    else:
        labels = [domains[place].labels for place in places]
        truth = torch.cat([part[visit.rows] for part, visit in zip(labels, each, strict=True)])
        order = correlated(truth, beta=how.beta, seed=derive_seed(seed, "mixed"))
    return [Visit("mixed", origin[order], rows[order])]


ORDERS: Mapping[str, Callable[[Sequence[Domain], Sequence[int], Arrangement, int], list[Visit]]] = {
    "continual": _continual,
    "mixed": _mixed,
    "gradual": _gradual,
    "recurring": _recurring,
    "single": _single,
}


def _visit(
    domains: Sequence[Domain], place: int, how: Arrangement, seed: int, *, turn: int
) -> Visit:
    domain = domains[place]
    key: Key = (seed, "order", domain.name, *([turn] if turn else []))
    if how.labels == "dirichlet":
        rows = correlated(domain.labels, beta=how.beta, seed=derive_seed(*key))
    else:
        rows = torch.randperm(len(domain.labels), generator=generator(*key))
    return Visit(domain.name, torch.full_like(rows, place), rows)


def correlated(labels: Tensor, *, beta: float, seed: int) -> Tensor:
    """Rows in an order in which labels come in runs.

    Time has as many slots as there are classes; a Dirichlet draw for each class says which share of
    it falls into which slot; in a slot, classes come one after another in random order.
    """
    chance = np.random.default_rng(seed)
    classes = labels.unique().tolist()
    slots: list[list[np.ndarray]] = [[] for _ in classes]
    for label in classes:
        rows = chance.permutation((labels == label).nonzero().flatten().numpy())
        shares = chance.dirichlet([beta] * len(slots))
        edges = (shares.cumsum()[:-1] * len(rows)).round().astype(int)
        for slot, part in zip(slots, np.split(rows, edges), strict=True):
            slot.append(part)
    runs = [slot[place] for slot in slots for place in chance.permutation(len(slot))]
    return torch.from_numpy(np.concatenate(runs))


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
