"""Any function as the annotator: a second model, a rule, a service."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitta.errors import FeedbackError
from bitta.feedback.simulated import labels_of, true_label
from bitta.types import Answer, Query, State

Verdict = bool | np.bool_ | Tensor | None
"""Right, wrong, or None for no answer; a tensor holds one bool."""


class Judge:
    """Puts each question to `judge(input, label)`, which gives True, False, or None.

    If `truth` is given, one label per sample of the stream, it is used for one thing: to measure
    how often the verdicts are wrong.
    """

    def __init__(self, judge: Callable[[Tensor, int], Verdict], truth: Any = None) -> None:
        if not callable(judge):
            raise FeedbackError(
                f"judge is a {type(judge).__name__}; a function of (input, label) is needed."
            )
        self.judge = judge
        self.truth = None if truth is None else labels_of(truth)
        self.n_judged = 0
        """Questions that were answered."""
        self._n_wrong = 0
        self._waiting: list[Query] = []

    @property
    def error_rate(self) -> float | None:
        """Share of wrong verdicts; None where there is no truth, or no verdict yet."""
        known = self.truth is not None and self.n_judged > 0
        return self._n_wrong / self.n_judged if known else None

    def ask(self, queries: Sequence[Query]) -> None:
        """Keep questions for the next `collect`."""
        self._waiting += queries

    def collect(self) -> list[Answer]:
        """Judge what was asked."""
        verdicts = [(query, self._verdict(query)) for query in self._waiting]
        answers = [Answer(query, verdict) for query, verdict in verdicts if verdict is not None]
        if self.truth is not None:
            self._n_wrong += sum(
                answer.correct != (answer.query.label == true_label(self.truth, answer.query))
                for answer in answers
            )
        self.n_judged += len(answers)
        self._waiting = []
        return answers

    def _verdict(self, query: Query) -> bool | None:
        verdict: object = self.judge(query.input, query.label)
        if verdict is None:
            return None
        one = isinstance(verdict, Tensor) and verdict.numel() == 1 and verdict.dtype == torch.bool
        if not one and not isinstance(verdict, bool | np.bool_):
            raise FeedbackError(
                f"the judge returned {verdict!r} for question {query.id}; allowed: True, False, "
                "or None for no answer."
            )
        return bool(verdict)

    def state_dict(self) -> State:
        """Open questions and the count of errors; the judge is brought again."""
        return {
            "waiting": [query.state_dict() for query in self._waiting],
            "n_judged": self.n_judged,
            "n_wrong": self._n_wrong,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        self._waiting = [Query(**query) for query in state["waiting"]]
        self.n_judged = state["n_judged"]
        self._n_wrong = state["n_wrong"]
