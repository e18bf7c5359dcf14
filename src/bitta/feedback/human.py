"""Feedback from a person who answers by calling `answer`."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bitta.config_base import check_integer, require
from bitta.errors import FeedbackError
from bitta.types import Answer, Query, State


class Human:
    """Holds questions until a person answers them by id.

    The same answer may be given twice. A different answer replaces the first one, unless the first
    one has been learned from. At most `capacity` questions are open; the oldest expire.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self.capacity = check_integer("capacity", capacity)
        require(self.capacity >= 1, "capacity", capacity, "1 or more questions")
        self._open: dict[int, Query] = {}
        self._uncollected: dict[int, bool] = {}
        self._learned: dict[int, bool] = {}
        self._next_id = 0

    @property
    def open(self) -> tuple[Query, ...]:
        """Questions without an answer, oldest first."""
        return tuple(query for id_, query in self._open.items() if id_ not in self._uncollected)

    def ask(self, queries: Sequence[Query]) -> None:
        """Open questions. The oldest beyond the capacity expire."""
        for query in queries:
            self._open[query.id] = query
            self._next_id = query.id + 1
        for id_ in list(self._open)[: max(0, len(self._open) - self.capacity)]:
            del self._open[id_]
            self._uncollected.pop(id_, None)

    def answer(self, query_id: int, *, correct: bool) -> None:
        """Answer one question."""
        given: object = correct
        is_bool_tensor = (
            isinstance(given, Tensor) and given.numel() == 1 and given.dtype == torch.bool
        )
        if not is_bool_tensor and not isinstance(given, bool | np.bool_):
            raise FeedbackError(
                f"correct is {correct!r}; allowed: True or False. Leave a question without an "
                "answer if nobody knows."
            )
        if query_id in self._open:
            self._uncollected[query_id] = bool(correct)
            return
        if query_id in self._learned:
            if self._learned[query_id] == bool(correct):
                return
            raise FeedbackError(
                f"question {query_id} was answered with "
                f"{'correct' if self._learned[query_id] else 'incorrect'}, and this answer was "
                "learned from; it cannot be changed."
            )
        if isinstance(query_id, int) and 0 <= query_id < self._next_id:
            raise FeedbackError(
                f"question {query_id} has expired; the {self.capacity} newest stay open."
            )
        raise FeedbackError(f"there is no question {query_id!r}; use the id of a query.")

    def collect(self) -> list[Answer]:
        """Return the answers given since the last call."""
        answers = [
            Answer(self._open.pop(id_), correct) for id_, correct in self._uncollected.items()
        ]
        self._learned.update(self._uncollected)
        self._uncollected.clear()
        for id_ in list(self._learned)[: max(0, len(self._learned) - self.capacity)]:
            del self._learned[id_]
        return answers

    def state_dict(self) -> State:
        """Return the open questions with their inputs, and the verdicts by id."""
        return {
            "capacity": self.capacity,
            "open": [query.state_dict() for query in self._open.values()],
            "uncollected": {str(id_): correct for id_, correct in self._uncollected.items()},
            "learned": {str(id_): correct for id_, correct in self._learned.items()},
            "next_id": self._next_id,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        self.capacity = state["capacity"]
        self._open = {query["id"]: Query(**query) for query in state["open"]}
        self._uncollected = {int(id_): correct for id_, correct in state["uncollected"].items()}
        self._learned = {int(id_): correct for id_, correct in state["learned"].items()}
        self._next_id = state["next_id"]
