"""The last few labelled samples, oldest first."""

import torch
from torch import Tensor

from bitta.types import State


class Fifo:
    """Keep the newest `capacity` samples."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._samples: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return 0 if self._samples is None else len(self._samples[1])

    @property
    def inputs(self) -> Tensor:
        """(samples, ...), oldest first; the shape is known from the first `add` on."""
        assert self._samples is not None, "a memory is read only after its first add"
        return self._samples[0]

    @property
    def labels(self) -> Tensor:
        """(samples,), oldest first."""
        assert self._samples is not None, "a memory is read only after its first add"
        return self._samples[1]

    def add(self, inputs: Tensor, labels: Tensor) -> None:
        """Append samples (possibly none) and forget the oldest beyond the capacity."""
        if self._samples is not None:
            inputs = torch.cat([self._samples[0], inputs])
            labels = torch.cat([self._samples[1], labels])
        keep = max(0, len(labels) - self.capacity)
        self._samples = (inputs[keep:].detach().clone(), labels[keep:].clone())

    def state_dict(self) -> State:
        """The samples, if there ever were any."""
        return {} if self._samples is None else {"inputs": self.inputs, "labels": self.labels}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved samples."""
        self._samples = None
        if state:
            self._samples = (state["inputs"].to(device), state["labels"].to(device))
