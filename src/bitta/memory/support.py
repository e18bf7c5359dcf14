"""Samples that stand for their classes: the surest few of each, with the labels they were given."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from bitta.types import State


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """A value: a larger support is another one."""

    inputs: Tensor  # (samples, ...)
    labels: Tensor  # (samples,) as predicted when they came in
    entropies: Tensor  # (samples,) of that prediction

    def __len__(self) -> int:
        return len(self.labels)

    def joined(self, other: Self) -> Self:
        """Both, these first."""
        return type(self)(
            torch.cat([self.inputs, other.inputs]),
            torch.cat([self.labels, other.labels]),
            torch.cat([self.entropies, other.entropies]),
        )

    def surest(self, per_class: int) -> Self:
        """The `per_class` of each class with the lowest entropy, in the order they came in."""
        order = self.entropies.argsort(stable=True)
        of_class = F.one_hot(self.labels[order])
        rank = (of_class.cumsum(0) * of_class).sum(-1)  # 1 for the surest of its class
        kept = order[rank <= per_class].sort().values
        return type(self)(self.inputs[kept], self.labels[kept], self.entropies[kept])

    def state_dict(self) -> State:
        """All of it."""
        return {"inputs": self.inputs, "labels": self.labels, "entropies": self.entropies}

    @classmethod
    def of(cls, state: State, *, device: torch.device) -> Self:
        """From a saved state."""
        return cls(*(state[name].to(device) for name in ("inputs", "labels", "entropies")))
