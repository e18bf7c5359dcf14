"""Streams: the order of samples, and batches in that order.

The order depends only on the seed of the stream, and not on the method.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bitta.config_base import require
from bitta.errors import InputError, SettingError, unknown_name_error
from bitta.seeding import Key, derive_seed, generator
from bitta.streams.images import Domain, hash_parts
from bitta.types import Batch


@dataclass(frozen=True, eq=False)
class Visit:
    """Consecutive samples of one domain, or of a mixture. A batch never spans two visits."""

    name: str
    domains: Tensor  # (samples,) index of the domain of each sample
    rows: Tensor  # (samples,) row in that domain
    reset: bool = False
    """True if the model is reset to the source model before this visit."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Order of the domains in a stream, and of the samples in each domain."""

    order: str = "continual"
    """Order of domains: continual, mixed, gradual, recurring, single (reset before each domain)."""
    labels: str = "iid"
    """Order of samples in a domain: iid, or dirichlet (equal labels arrive together, in runs)."""
    beta: float = 0.1
    """Parameter of the Dirichlet distribution. A smaller value gives longer runs."""
    rounds: int = 3
    """Number of repetitions of the sequence, for recurring."""
    sequence: tuple[str, ...] = ()
    """Names of domains in the order of visits. Names may repeat. Empty: all domains, once each."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise unknown_name_error("order", self.order, ORDERS)
        require(self.labels in ("iid", "dirichlet"), "labels", self.labels, "iid, dirichlet")
        require(self.beta > 0, "beta", self.beta, "above 0")
        require(self.rounds >= 1, "rounds", self.rounds, "1 or more")


def arrange_visits(
    domains: Sequence[Domain], arrangement: Arrangement, *, seed: int
) -> list[Visit]:
    """Return the visits of a stream, with every sample at its position."""
    indices = _find_sequence(domains, arrangement.sequence)
    return ORDERS[arrangement.order](domains, indices, arrangement, seed)


def _find_sequence(domains: Sequence[Domain], sequence: Sequence[str]) -> list[int]:
    """Return the indices of the visited domains, in order."""
    index_by_name = {domain.name: index for index, domain in enumerate(domains)}
    for name in sequence:
        if name not in index_by_name:
            raise unknown_name_error("domain", name, index_by_name, of="the stream")
    return [index_by_name[name] for name in sequence] or list(range(len(domains)))


def _continual(
    domains: Sequence[Domain], indices: Sequence[int], arrangement: Arrangement, seed: int
) -> list[Visit]:
    """Visit one domain after another. A repeated domain is shuffled again."""
    return [
        _make_visit(
            domains, index, arrangement, seed, n_earlier=list(indices[:number]).count(index)
        )
        for number, index in enumerate(indices)
    ]


def _single(
    domains: Sequence[Domain], indices: Sequence[int], arrangement: Arrangement, seed: int
) -> list[Visit]:
    """Visit domains as in continual order, with a reset before each."""
    return [
        Visit(visit.name, visit.domains, visit.rows, reset=number > 0)
        for number, visit in enumerate(_continual(domains, indices, arrangement, seed))
    ]


def _recurring(
    domains: Sequence[Domain], indices: Sequence[int], arrangement: Arrangement, seed: int
) -> list[Visit]:
    """Repeat the sequence of domains."""
    return _continual(domains, [*indices] * arrangement.rounds, arrangement, seed)


def _gradual(
    domains: Sequence[Domain], indices: Sequence[int], arrangement: Arrangement, seed: int
) -> list[Visit]:
    """Visit each kind of domain at severities 1..5..1. Domains are named "kind severity"."""
    by_kind: dict[str, dict[int, int]] = {}
    for index in indices:
        kind, _, severity = domains[index].name.rpartition(" ")
        if not kind or not severity.isdecimal():
            raise SettingError(
                f"order is gradual, but domain {domains[index].name!r} has no severity; name "
                'domains "kind severity", such as "fog 3".'
            )
        by_kind.setdefault(kind, {})[int(severity)] = index
    sequence = []
    for index_by_severity in by_kind.values():
        rising = [index_by_severity[severity] for severity in sorted(index_by_severity)]
        sequence += [*rising, *reversed(rising[:-1])]
    return _continual(domains, sequence, arrangement, seed)


def _mixed(
    domains: Sequence[Domain], indices: Sequence[int], arrangement: Arrangement, seed: int
) -> list[Visit]:
    """Shuffle all domains together."""
    visits = _continual(domains, indices, arrangement, seed)
    origin = torch.cat([visit.domains for visit in visits])
    rows = torch.cat([visit.rows for visit in visits])
    if arrangement.labels == "iid":
        order = torch.randperm(len(rows), generator=generator(seed, "mixed"))
    else:
        labels = [domains[index].labels for index in indices]
        truth = torch.cat([part[visit.rows] for part, visit in zip(labels, visits, strict=True)])
        order = correlated_order(truth, beta=arrangement.beta, seed=derive_seed(seed, "mixed"))
    return [Visit("mixed", origin[order], rows[order])]


ORDERS: Mapping[str, Callable[[Sequence[Domain], Sequence[int], Arrangement, int], list[Visit]]] = {
    "continual": _continual,
    "mixed": _mixed,
    "gradual": _gradual,
    "recurring": _recurring,
    "single": _single,
}


def _make_visit(
    domains: Sequence[Domain], index: int, arrangement: Arrangement, seed: int, *, n_earlier: int
) -> Visit:
    """Return a visit of one domain that has been visited `n_earlier` times."""
    domain = domains[index]
    key: Key = (seed, "order", domain.name, *([n_earlier] if n_earlier else []))
    if arrangement.labels == "dirichlet":
        rows = correlated_order(domain.labels, beta=arrangement.beta, seed=derive_seed(*key))
    else:
        rows = torch.randperm(len(domain.labels), generator=generator(*key))
    return Visit(domain.name, torch.full_like(rows, index), rows)


def correlated_order(labels: Tensor, *, beta: float, seed: int) -> Tensor:
    """Return an order of the rows in which equal labels arrive together, in runs.

    There are as many time slots as classes. A Dirichlet sample for each class gives its share in
    every slot. Within a slot, the classes follow one another in random order.
    """
    rng = np.random.default_rng(seed)
    classes = labels.unique().tolist()
    slots: list[list[np.ndarray]] = [[] for _ in classes]
    for label in classes:
        rows = rng.permutation((labels == label).nonzero().flatten().numpy())
        shares = rng.dirichlet([beta] * len(slots))
        edges = (shares.cumsum()[:-1] * len(rows)).round().astype(int)
        for slot, part in zip(slots, np.split(rows, edges), strict=True):
            slot.append(part)
    runs = [slot[index] for slot in slots for index in rng.permutation(len(slot))]
    return torch.from_numpy(np.concatenate(runs))


class Stream:
    """Fixed sequence of batches. A batch never spans two visits."""

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
                    "classes; use domains with equal class names."
                )
        self.batch_size = batch_size
        self.seed = seed
        self.arrangement = arrangement or Arrangement()
        self.origin = origin
        """Origin of the samples, named in the protocol."""
        self.visits = arrange_visits(self.domains, self.arrangement, seed=seed)
        if not any(len(visit.rows) for visit in self.visits):
            raise InputError("the stream holds no samples; give a domain that is not empty.")
        self._batch_slices = [
            (number, slice(start, start + batch_size))
            for number, visit in enumerate(self.visits)
            for start in range(0, len(visit.rows), batch_size)
        ]
        self._domains_by_visit = [visit.domains.unique().tolist() for visit in self.visits]

    def __len__(self) -> int:
        return len(self._batch_slices)

    @property
    def truth(self) -> Tensor:
        """All labels in the order of the stream."""
        return torch.cat([self._labels(visit.domains, visit.rows) for visit in self.visits])

    @property
    def data_set_rows(self) -> Tensor:
        """Number of each sample in its data set, in the order of the stream."""
        rows = torch.cat([visit.rows for visit in self.visits])
        domains = torch.cat([visit.domains for visit in self.visits])
        for index, domain in enumerate(self.domains):
            if domain.rows is not None:
                mask = domains == index
                rows[mask] = domain.rows[rows[mask]]
        return rows

    @property
    def fingerprint(self) -> str:
        """Hash of all domains and of the order of the samples."""
        order = (part for visit in self.visits for part in (visit.name, visit.domains, visit.rows))
        return hash_parts(*(domain.fingerprint for domain in self.domains), *order)

    @property
    def protocol(self) -> str:
        """One line that describes samples, order, resets, batch size and seed."""
        arrangement = self.arrangement
        is_shuffled = arrangement.labels == "iid"
        within = "shuffled within" if is_shuffled else f"dirichlet {arrangement.beta:g} within"
        origin = f" of {self.origin}" if self.origin else ""
        reset = "reset before each" if arrangement.order == "single" else "no reset"
        return (
            f"{len(self.truth)} samples{origin}, {arrangement.order} {self._describe_order()}, "
            f"{within}, {reset}, "
            f"batch {self.batch_size}, seed {self.seed}"
        )

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from number `start`."""
        for number in range(start, len(self)):
            batch = self.read(number)
            yield replace(batch, inputs=as_floats(batch.inputs))

    def read(self, number: int) -> Batch:
        """Return batch `number` with its images as they are stored, in uint8 or float."""
        visit_number, batch_slice = self._batch_slices[number]
        visit = self.visits[visit_number]
        indices, rows = visit.domains[batch_slice], visit.rows[batch_slice]
        reset = visit.reset and batch_slice.start == 0
        return Batch(self._images(indices, rows), self._labels(indices, rows), visit.name, reset)

    def find_visit(self, number: int) -> int:
        """Return the index in `visits` of the visit of batch `number`."""
        return self._batch_slices[number][0]

    def prepare(self, visit: int) -> None:
        """Generate the images of a visit now, if they are not stored."""
        for index in self._domains_by_visit[visit]:
            self.domains[index].prepare()

    def release(self, *, before: int) -> None:
        """Free images of the visits before number `before` that no later visit needs."""
        needed = {index for indices in self._domains_by_visit[before:] for index in indices}
        used = {index for indices in self._domains_by_visit[:before] for index in indices}
        for index in used - needed:
            self.domains[index].release()

    def _describe_order(self) -> str:
        names = [visit.name for visit in self.visits]
        match self.arrangement.order:
            case "mixed":
                indices = sorted({i for visit in self.visits for i in visit.domains.tolist()})
                return " + ".join(self.domains[index].name for index in indices)
            case "gradual":
                kinds = dict.fromkeys(name.rpartition(" ")[0] for name in names)
                return " > ".join(f"{kind} rising and falling" for kind in kinds)
            case "recurring":
                rounds = self.arrangement.rounds
                return f"{' > '.join(names[: len(names) // rounds])}, {rounds} times"
        return " > ".join(names)

    def _images(self, indices: Tensor, rows: Tensor) -> Tensor:
        present = indices.unique().tolist()
        if len(present) == 1:
            only: Tensor = self.domains[present[0]].images[rows]
            return only
        parts = [self.domains[index].images[rows[indices == index]] for index in present]
        for index, part in zip(present, parts, strict=True):
            if (part.shape[1:], part.dtype) != (parts[0].shape[1:], parts[0].dtype):
                raise InputError(
                    f"domain {self.domains[index].name!r} has inputs of shape "
                    f"{tuple(part.shape[1:])} and type {part.dtype}, but "
                    f"{self.domains[present[0]].name!r} has {tuple(parts[0].shape[1:])} and "
                    f"{parts[0].dtype}; mixed domains need the same shape and type."
                )
        images = torch.empty(len(rows), *parts[0].shape[1:], dtype=parts[0].dtype)
        for index, part in zip(present, parts, strict=True):
            images[indices == index] = part
        return images

    def _labels(self, indices: Tensor, rows: Tensor) -> Tensor:
        labels = torch.empty_like(rows)
        for index in indices.unique().tolist():
            mask = indices == index
            labels[mask] = self.domains[index].labels[rows[mask]]
        return labels


def as_floats(images: Tensor) -> Tensor:
    """Return images as floats in [0, 1], with the same values on every device."""
    if images.dtype != torch.uint8:
        return images
    # CUDA divides by a Python number with its rounded reciprocal. A tensor avoids this.
    return images.float().div_(torch.full((), 255.0, device=images.device))
