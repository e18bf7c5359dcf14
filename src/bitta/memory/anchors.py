"""Answered samples that stand for the part of the stream around them."""

import torch
from torch import Tensor

from bitta.types import Feedback, State


class Anchors:
    """The newest `capacity` answered samples, each with its verdict and how many it stands for."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def __len__(self) -> int:
        return len(self.labels)

    def clear(self) -> None:
        """Forget everything."""
        self.inputs: Tensor | None = None  # (anchors, ...), oldest first
        self.labels = torch.zeros(0, dtype=torch.long)  # (anchors,) as judged
        self.correct = torch.zeros(0, dtype=torch.bool)  # (anchors,) the verdict
        self.weights = torch.zeros(0)  # (anchors,) samples of the stream it stands for

    def add(self, feedback: Feedback, weights: Tensor) -> None:
        """Take answers in, [correct; incorrect], and let the oldest anchors go."""
        right, wrong = feedback.correct, feedback.incorrect
        verdicts = [torch.ones_like(right.labels), torch.zeros_like(wrong.labels)]
        older = [] if self.inputs is None else [self.inputs]
        device = right.inputs.device
        self.inputs = self._newest(*older, right.inputs, wrong.inputs)
        self.labels = self._newest(self.labels.to(device), right.labels, wrong.labels)
        self.correct = self._newest(self.correct.to(device), *(v.bool() for v in verdicts))
        self.weights = self._newest(self.weights.to(device), weights.to(device))

    def with_verdict(self, *, correct: bool) -> tuple[Tensor, Tensor]:
        """Inputs and labels of those judged alike; there must have been an `add`."""
        assert self.inputs is not None, "anchors are read only after their first add"
        alike = self.correct if correct else ~self.correct
        return self.inputs[alike], self.labels[alike]

    def state_dict(self) -> State:
        """All of it."""
        names = ("inputs", "labels", "correct", "weights")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Go on from a saved state."""
        self.inputs = None if state["inputs"] is None else state["inputs"].to(device)
        self.labels = state["labels"].to(device)
        self.correct = state["correct"].to(device)
        self.weights = state["weights"].to(device)

    def _newest(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts)[-self.capacity :]
