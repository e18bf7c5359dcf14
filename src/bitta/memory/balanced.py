"""Samples of every label alike, the newest of each, on the device they are learned on."""

from collections import Counter

import torch
from torch import Tensor

from bitta.types import Judged, State, moved


class Balanced:
    """Keep `capacity` samples; a new one takes the place of the oldest of a largest label.

    >>> memory = Balanced(4)
    >>> memory.add(Judged(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([7, 7, 7, 7])))
    >>> memory.add(Judged(torch.tensor([[5.0], [6.0]]), torch.tensor([2, 7])))
    >>> memory.inputs.flatten().tolist(), memory.labels.tolist()
    ([3.0, 4.0, 5.0, 6.0], [7, 7, 2, 7])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._room: Judged | None = None
        self._kept: dict[int, int] = {}
        """Label by slot, oldest first."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def inputs(self) -> Tensor:
        """(samples, ...), oldest first; the shape is known from the first `add` on."""
        room = self._filled()
        return room.inputs[self._places(room.inputs.device)]

    @property
    def labels(self) -> Tensor:
        """(samples,), oldest first."""
        room = self._filled()
        return room.labels[self._places(room.labels.device)]

    def add(self, new: Judged) -> None:
        """Take samples in (possibly none), one after another."""
        if self._room is None:
            room = (self.capacity, *new.inputs.shape[1:])
            self._room = Judged(new.inputs.new_empty(room), new.labels.new_empty(self.capacity))
        taken: dict[int, int] = {}  # slot: row
        for row, label in enumerate(new.labels.tolist()):
            slot = self._slot_for(label)
            self._kept[slot] = label
            taken[slot] = row
        slots, rows = torch.tensor(list(taken.items()), dtype=torch.long).reshape(-1, 2).T
        slots, rows = (moved(of.contiguous(), new.inputs.device) for of in (slots, rows))
        self._room.inputs[slots] = new.inputs[rows].detach()
        self._room.labels[slots] = new.labels[rows]

    def clear(self) -> None:
        """Forget everything but the shape."""
        self._kept.clear()

    def state_dict(self) -> State:
        """The samples, if there ever were any."""
        return {} if self._room is None else {"inputs": self.inputs, "labels": self.labels}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved samples."""
        self._room = None
        self.clear()
        if state:
            self.add(Judged(state["inputs"].to(device), state["labels"].to(device)))

    def _filled(self) -> Judged:
        assert self._room is not None, "a memory is read only after its first add"
        return self._room

    def _places(self, device: torch.device) -> Tensor:
        return moved(torch.tensor(list(self._kept), dtype=torch.long), device)

    def _slot_for(self, label: int) -> int:
        """A free one, or the oldest of the labels that are most frequent with the new one."""
        if len(self._kept) < self.capacity:
            return next(slot for slot in range(self.capacity) if slot not in self._kept)
        counts = Counter(self._kept.values())
        counts[label] += 1
        most = max(counts.values())
        slot = next(slot for slot, of in self._kept.items() if counts[of] == most)
        del self._kept[slot]
        return slot
