"""Feedback from a function: a second model, a rule, or a service."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitta.errors import FeedbackError
from bitta.feedback.simulated import get_true_label, parse_truth
from bitta.types import Answer, Query, State

JudgeResult = bool | np.bool_ | Tensor | None
"""Verdict on a label; None for no answer. A tensor must hold one bool."""


class Judge:
    """Answers each question by `judge(input, label)`, which returns True, False, or None.

    `truth`, one label per sample of the stream, is used only to measure the error rate of the
    verdicts.
    """

    def __init__(self, judge: Callable[[Tensor, int], JudgeResult], truth: Any = None) -> None:
        if not callable(judge):
            raise FeedbackError(
                f"judge is a {type(judge).__name__}; a function of (input, label) is needed."
            )
        self.judge = judge
        self.truth = None if truth is None else parse_truth(truth)
        self.n_judged = 0
        """Number of questions answered."""
        self._n_wrong = 0
        self._waiting: list[Query] = []

    @property
    def error_rate(self) -> float | None:
        """Share of wrong verdicts; None without truth or before the first verdict."""
        is_measured = self.truth is not None and self.n_judged > 0
        return self._n_wrong / self.n_judged if is_measured else None

    def ask(self, queries: Sequence[Query]) -> None:
        """Store questions until the next `collect`."""
        self._waiting += queries

    def collect(self) -> list[Answer]:
        """Judge all stored questions."""
        verdicts = [(query, self._judge_query(query)) for query in self._waiting]
        answers = [Answer(query, verdict) for query, verdict in verdicts if verdict is not None]
        if self.truth is not None:
            self._n_wrong += sum(
                answer.correct
                != (answer.query.shown_label == get_true_label(self.truth, answer.query))
                for answer in answers
            )
        self.n_judged += len(answers)
        self._waiting = []
        return answers

    def _judge_query(self, query: Query) -> bool | None:
        verdict: object = self.judge(query.input, query.shown_label)
        if verdict is None:
            return None
        is_bool_tensor = (
            isinstance(verdict, Tensor) and verdict.numel() == 1 and verdict.dtype == torch.bool
        )
        if not is_bool_tensor and not isinstance(verdict, bool | np.bool_):
            raise FeedbackError(
                f"the judge returned {verdict!r} for question {query.id}; allowed: True, False, "
                "or None for no answer."
            )
        return bool(verdict)

    def state_dict(self) -> State:
        """Return open questions and counters, without the function."""
        return {
            "waiting": [query.state_dict() for query in self._waiting],
            "n_judged": self.n_judged,
            "n_wrong": self._n_wrong,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        self._waiting = [Query(**query) for query in state["waiting"]]
        self.n_judged = state["n_judged"]
        self._n_wrong = state["n_wrong"]
