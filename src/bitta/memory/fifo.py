"""The last few labelled samples, in a ring on the device they are learned on."""

import torch
from torch import Tensor

from bitta.types import Judged, State


class Fifo:
    """Keep the newest `capacity` samples; nothing moves but what is new."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._ring: Judged | None = None
        self._oldest = 0
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def inputs(self) -> Tensor:
        """(samples, ...), oldest first; the shape is known from the first `add` on."""
        assert self._ring is not None, "a memory is read only after its first add"
        return self._in_order(self._ring.inputs)

    @property
    def labels(self) -> Tensor:
        """(samples,), oldest first."""
        assert self._ring is not None, "a memory is read only after its first add"
        return self._in_order(self._ring.labels)

    def add(self, new: Judged) -> None:
        """Append samples (possibly none) and forget the oldest beyond the capacity."""
        if self._ring is None:
            room = (self.capacity, *new.inputs.shape[1:])
            self._ring = Judged(new.inputs.new_empty(room), new.labels.new_empty(self.capacity))
        inputs, labels = new.inputs[-self.capacity :], new.labels[-self.capacity :]
        start = (self._oldest + self._n) % self.capacity
        until_end = self.capacity - start
        for ring, fresh in ((self._ring.inputs, inputs), (self._ring.labels, labels)):
            ring[start : start + len(fresh)] = fresh[:until_end].detach()
            ring[: max(0, len(fresh) - until_end)] = fresh[until_end:].detach()
        forgotten = max(0, self._n + len(labels) - self.capacity)
        self._oldest = (self._oldest + forgotten) % self.capacity
        self._n += len(labels) - forgotten

    def clear(self) -> None:
        """Forget everything but the shape."""
        self._oldest = self._n = 0

    def state_dict(self) -> State:
        """The samples, if there ever were any."""
        return {} if self._ring is None else {"inputs": self.inputs, "labels": self.labels}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved samples."""
        self._ring = None
        self.clear()
        if state:
            self.add(Judged(state["inputs"].to(device), state["labels"].to(device)))

    def _in_order(self, ring: Tensor) -> Tensor:
        wrapped = max(0, self._oldest + self._n - self.capacity)
        return torch.cat([ring[self._oldest : self._oldest + self._n], ring[:wrapped]])
