"""Answered samples, those judged correct and those judged incorrect kept apart."""

from typing import NamedTuple

import torch
from torch import Tensor

from bitta.memory.fifo import Fifo
from bitta.types import Feedback, State


class Mixed(NamedTuple):
    """[correct; incorrect; unlabelled]: the batch that every step learns from."""

    inputs: Tensor  # (samples, ...)
    correct: Tensor  # (correct,) labels judged correct
    incorrect: Tensor  # (incorrect,) labels judged incorrect

    @property
    def n_judged(self) -> int:
        """How many rows have a label that was judged."""
        return len(self.correct) + len(self.incorrect)

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of what the model gave: correct, incorrect, unlabelled."""
        correct, incorrect, rest = outputs.tensor_split((len(self.correct), self.n_judged))
        return correct, incorrect, rest


class FeedbackMemory:
    """M_C and M_I of the paper's Algorithm 1."""

    def __init__(self, *, correct: int, incorrect: int) -> None:
        self.correct = Fifo(correct)
        self.incorrect = Fifo(incorrect)

    def add(self, feedback: Feedback) -> None:
        """File each answer by its verdict."""
        self.correct.add(feedback.correct)
        self.incorrect.add(feedback.incorrect)

    def mixed_with(self, unlabelled: Tensor) -> Mixed:
        """What is remembered beside a batch nobody was asked about."""
        inputs = torch.cat([self.correct.inputs, self.incorrect.inputs, unlabelled])
        return Mixed(inputs, self.correct.labels, self.incorrect.labels)

    def clear(self) -> None:
        """Forget everything."""
        self.correct.clear()
        self.incorrect.clear()

    def state_dict(self) -> State:
        """Both memories."""
        return {"correct": self.correct.state_dict(), "incorrect": self.incorrect.state_dict()}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved memories."""
        self.correct.load_state_dict(state["correct"], device=device)
        self.incorrect.load_state_dict(state["incorrect"], device=device)
