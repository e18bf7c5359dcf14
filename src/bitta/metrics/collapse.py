"""Has a model stopped to tell classes apart?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import Self, TypeAlias

import torch
from torch import Tensor

from bitta.types import State

LEAST_ENTROPY = 0.3
"""Of labels served, as a part of that of the true ones, below which a model has collapsed."""
LEAST_ACCURACY = 0.5
"""As a part of the source model's, below which a model has collapsed."""

Spreads: TypeAlias = Mapping[str, Mapping[str, float]]
"""By domain: the entropy of the labels "served" and of the "true" ones, 0 to 1."""


@dataclass(slots=True)
class Histograms:
    """How often each class was served, and was right, in each domain."""

    served: dict[str, Tensor] = field(default_factory=dict)  # each (classes,)
    true: dict[str, Tensor] = field(default_factory=dict)

    def add(self, domain: str, labels: Tensor, truth: Tensor, *, n_classes: int) -> None:
        """Take a batch in."""
        for counts, seen in ((self.served, labels), (self.true, truth)):
            new = torch.bincount(seen.cpu(), minlength=n_classes)
            counts[domain] = counts[domain] + new if domain in counts else new

    @property
    def spreads(self) -> dict[str, dict[str, float]]:
        """The normalised entropies, which is all that is kept of them."""
        return {
            domain: {"served": spread(counts), "true": spread(self.true[domain])}
            for domain, counts in self.served.items()
        }

    def state_dict(self) -> State:
        """Both, as lists: names of domains may hold anything."""
        domains = list(self.served)
        return {
            "domains": domains,
            "served": [self.served[domain] for domain in domains],
            "true": [self.true[domain] for domain in domains],
        }

    @classmethod
    def of(cls, state: State) -> Self:
        """From a saved state."""
        names = state["domains"]
        return cls(
            dict(zip(names, state["served"], strict=True)),
            dict(zip(names, state["true"], strict=True)),
        )


def spread(counts: Tensor) -> float:
    """Entropy of a histogram as a part of the most there could be: 1 if all classes are as many."""
    shares = counts.double() / counts.sum().clamp_min(1)
    return float(-torch.xlogy(shares, shares).sum()) / log(max(2, len(counts)))


def narrowed(spreads: Spreads) -> list[str]:
    """Domains in which far fewer classes are served than there are."""
    return [domain for domain, of in spreads.items() if of["served"] < LEAST_ENTROPY * of["true"]]


def fallen_behind(accuracy: Mapping[str, float], source: Mapping[str, float]) -> list[str]:
    """Domains in which accuracy is less than half of the source model's."""
    return [
        domain
        for domain, percent in accuracy.items()
        if domain in source and percent < LEAST_ACCURACY * source[domain]
    ]
