"""In which order samples arrive: a stream is a sequence of visits to domains.

Everything here depends on the seed of the stream alone, never on the method that is run on it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bitta.config import require
from bitta.errors import SettingError, unknown
from bitta.seeding import Key, derive, generator
from bitta.streams.domain import Domain


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
            raise unknown("order", self.order, ORDERS)
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
            raise unknown("domain", name, named, of="the stream")
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
        order = correlated(truth, beta=how.beta, seed=derive(seed, "mixed"))
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
        rows = correlated(domain.labels, beta=how.beta, seed=derive(*key))
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
