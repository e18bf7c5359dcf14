"""Confident samples, as evenly over the classes as they come (SoTTA, 2023)."""

import torch
from torch import Tensor

from bitta.seeding import Key, generator
from bitta.types import State


class ConfidentMemory:
    """High-confidence uniform-class sampling: the largest class makes room."""

    def __init__(self, capacity: int, *, confident: float, key: Key) -> None:
        self.capacity = capacity
        self.confident = confident
        self.labels: list[int] = []
        """Predicted classes of the samples kept."""
        self._key = key
        self._n_accepted = 0
        self._inputs: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def inputs(self) -> Tensor:
        """(samples, ...); the shape is known from the first `offer` on."""
        assert self._inputs is not None, "a memory is read only after its first offer"
        return self._inputs[: len(self)]

    def offer(self, inputs: Tensor, labels: Tensor, confidence: Tensor) -> None:
        """Keep samples that are confident enough, one after another."""
        if self._inputs is None:
            self._inputs = inputs.new_empty((self.capacity, *inputs.shape[1:]))
        rows = (confidence >= self.confident).nonzero().squeeze(1)
        for row, label in zip(rows.tolist(), labels[rows].tolist(), strict=True):
            place = self._place_for(label)
            self._inputs[place] = inputs[row].detach()
            self.labels[place : place + 1] = [label]
            self._n_accepted += 1

    def clear(self) -> None:
        """Forget everything but the shape."""
        self.labels = []
        self._n_accepted = 0

    def state_dict(self) -> State:
        """The samples, if there ever were any, and how many have been accepted."""
        return {
            "inputs": None if self._inputs is None else self.inputs,
            "labels": self.labels,
            "n_accepted": self._n_accepted,
        }

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved samples."""
        self.labels = list(state["labels"])
        self._n_accepted = state["n_accepted"]
        self._inputs = None
        if state["inputs"] is not None:
            kept = state["inputs"].to(device)
            self._inputs = kept.new_empty((self.capacity, *kept.shape[1:]))
            self._inputs[: len(kept)] = kept

    def _place_for(self, label: int) -> int:
        """A free place, else that of a random sample of a largest class, its own if it is one."""
        if len(self) < self.capacity:
            return len(self)
        counts = {kept: self.labels.count(kept) for kept in sorted(set(self.labels))}
        largest = [kept for kept, count in counts.items() if count == max(counts.values())]
        # Drawn by address: the number of samples accepted so far is all there is to save.
        chance = generator(*self._key, self._n_accepted)
        crowded = label if label in largest else _one_of(largest, chance)
        return _one_of([place for place, kept in enumerate(self.labels) if kept == crowded], chance)


def _one_of(values: list[int], chance: torch.Generator) -> int:
    return values[int(torch.randint(len(values), (), generator=chance))]
