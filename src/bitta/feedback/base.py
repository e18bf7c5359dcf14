"""Interface of a feedback source."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

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
