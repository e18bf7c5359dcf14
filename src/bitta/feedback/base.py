"""The contract of whoever answers questions."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from bitta.types import Answer, Query, State


@runtime_checkable
class FeedbackSource(Protocol):
    """Is asked, and hands over what has been answered: now, later, or never."""

    def ask(self, queries: Sequence[Query]) -> None:
        """Take questions."""

    def collect(self) -> list[Answer]:
        """Hand over, once, the answers that have come since the last call; ends a batch."""

    def state_dict(self) -> State:
        """Open questions and counters."""

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
