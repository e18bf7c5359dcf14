"""Interface of a feedback source, and a check of the answers from any source."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from bitta.errors import FeedbackWarning
from bitta.types import Answer, Query, State


@runtime_checkable
class FeedbackSource(Protocol):
    """Takes questions and returns answers: at once, later, or never."""

    def ask(self, queries: Sequence[Query]) -> None:
        """Take the questions of a batch; possibly none."""

    def collect(self) -> list[Answer]:
        """Return the answers that arrived since the last call, each once.

        A session calls this once per batch, or once per window.
        """

    def state_dict(self) -> State:
        """Return the open questions and the counters."""

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""


_MAX_EQUAL = 100
"""Number of equal answers in a row after which something is probably wrong."""
_MIN_EXPECTED_ERRORS = 10.0
"""Number of errors that such answers should contain, by the uncertainty of the questions."""


class AnswerCheck:
    """Warn once if many answers in a row are the same, although the questions are uncertain."""

    def __init__(self) -> None:
        self._last: bool | None = None
        self._n_equal = 0
        self._n_expected_errors = 0.0
        self._has_warned = False

    def add(self, answers: Iterable[Answer]) -> None:
        """Count equal answers in a row."""
        for answer in answers:
            if answer.correct != self._last:
                self._last, self._n_equal, self._n_expected_errors = answer.correct, 0, 0.0
            self._n_equal += 1
            # Selections other than mc_confidence have uncertainties above 1.
            self._n_expected_errors += min(1.0, max(0.0, answer.query.uncertainty))
        is_suspicious = not self._last or self._n_expected_errors >= _MIN_EXPECTED_ERRORS
        if self._n_equal >= _MAX_EQUAL and is_suspicious and not self._has_warned:
            self._has_warned = True
            verdict = "correct" if self._last else "incorrect"
            warnings.warn(
                f"the last {self._n_equal} answers were all {verdict!r}; check that labels and "
                "answers belong to the same classes and that answers are not constant.",
                FeedbackWarning,
                stacklevel=5,
            )
