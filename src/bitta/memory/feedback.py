"""Answered samples, those judged correct and those judged incorrect kept apart."""

import torch

from bitta.memory.fifo import Fifo
from bitta.types import Feedback, State


class FeedbackMemory:
    """M_C and M_I of the paper's Algorithm 1."""

    def __init__(self, *, correct: int, incorrect: int) -> None:
        self.correct = Fifo(correct)
        self.incorrect = Fifo(incorrect)

    def add(self, feedback: Feedback) -> None:
        """File each answer by its verdict."""
        right, wrong = feedback.correct, ~feedback.correct
        self.correct.add(feedback.inputs[right], feedback.labels[right])
        self.incorrect.add(feedback.inputs[wrong], feedback.labels[wrong])

    def clear(self) -> None:
        """Forget everything."""
        self.correct = Fifo(self.correct.capacity)
        self.incorrect = Fifo(self.incorrect.capacity)

    def state_dict(self) -> State:
        """Both memories."""
        return {"correct": self.correct.state_dict(), "incorrect": self.incorrect.state_dict()}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved memories."""
        self.correct.load_state_dict(state["correct"], device=device)
        self.incorrect.load_state_dict(state["incorrect"], device=device)
