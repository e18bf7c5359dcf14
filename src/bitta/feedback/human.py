"""A person in the same process, who answers when they like."""

from collections.abc import Sequence

import numpy as np

from bitta.config import require, whole
from bitta.errors import FeedbackError
from bitta.types import Answer, Query, State


class Human:
    """Holds questions until somebody answers them, by id.

    A repeated answer is a success, another verdict before it is learned from replaces the first.
    At most `capacity` questions stay open; the oldest expire.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self.capacity = whole("capacity", capacity)
        require(self.capacity >= 1, "capacity", capacity, "1 or more questions")
        self._open: dict[int, Query] = {}
        self._fresh: dict[int, bool] = {}
        self._learned: dict[int, bool] = {}
        self._next_id = 0

    @property
    def open(self) -> tuple[Query, ...]:
        """Questions without an answer, oldest first."""
        return tuple(query for id_, query in self._open.items() if id_ not in self._fresh)

    def ask(self, queries: Sequence[Query]) -> None:
        """Open questions."""
        for query in queries:
            self._open[query.id] = query
            self._next_id = query.id + 1
        for id_ in list(self._open)[: max(0, len(self._open) - self.capacity)]:
            del self._open[id_]
            self._fresh.pop(id_, None)

    def answer(self, query_id: int, *, correct: bool) -> None:
        """Settle one question."""
        if not isinstance(correct, bool | np.bool_):
            raise FeedbackError(
                f"correct is {correct!r}; allowed: True or False. Leave a question without an "
                "answer if nobody knows."
            )
        if query_id in self._open:
            self._fresh[query_id] = bool(correct)
            return
        if query_id in self._learned:
            if self._learned[query_id] == bool(correct):
                return
            raise FeedbackError(
                f"question {query_id} was already learned from as "
                f"{'correct' if self._learned[query_id] else 'incorrect'}; it cannot change now."
            )
        if isinstance(query_id, int) and 0 <= query_id < self._next_id:
            raise FeedbackError(
                f"question {query_id} has expired; the {self.capacity} newest stay open."
            )
        raise FeedbackError(f"there is no question {query_id!r}; use the id of a query.")

    def collect(self) -> list[Answer]:
        """Hand over fresh answers."""
        answers = [Answer(self._open.pop(id_), correct) for id_, correct in self._fresh.items()]
        self._learned.update(self._fresh)
        self._fresh.clear()
        for id_ in list(self._learned)[: max(0, len(self._learned) - self.capacity)]:
            del self._learned[id_]
        return answers

    def state_dict(self) -> State:
        """Open questions with their inputs, and verdicts by id."""
        return {
            "capacity": self.capacity,
            "open": [query.state_dict() for query in self._open.values()],
            "fresh": {str(id_): correct for id_, correct in self._fresh.items()},
            "learned": {str(id_): correct for id_, correct in self._learned.items()},
            "next_id": self._next_id,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        self.capacity = state["capacity"]
        self._open = {query["id"]: Query(**query) for query in state["open"]}
        self._fresh = {int(id_): correct for id_, correct in state["fresh"].items()}
        self._learned = {int(id_): correct for id_, correct in state["learned"].items()}
        self._next_id = state["next_id"]
