"""Answers given again as they were written down."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from bitta.errors import InputError
from bitta.feedback.log import Entry, read_log
from bitta.types import Answer, Query, State


class Recorded:
    """Replays a log of `Recording`: the same answers, in the same call of `collect`.

    The questions must be those of then; one that differs is an error that says where. A log
    without its end was cut, and is refused unless `partial` is set: then answers stop where the log
    does, which is said in a warning. `end`, or the end of a `with` block without an error, makes
    sure that nothing of the log is left.
    """

    def __init__(self, path: str | Path, *, partial: bool = False) -> None:
        self.path = Path(path)
        log = read_log(self.path)
        if log.end is None and not partial:
            raise InputError(
                f"the log {str(self.path)!r} has no end: it was cut after {len(log.entries)} "
                "answers; let its run go on to the end or, in Python, give partial=True to replay "
                "as much as there is."
            )
        self._entries = {entry.id: entry for entry in log.entries}
        self._due: dict[int, list[Entry]] = {}
        for entry in log.entries:
            self._due.setdefault(entry.collect, []).append(entry)
        self._end, self._digest = log.end, log.digest
        self._last = max(self._due, default=-1)
        self._n_collects = self._n_asked = self._n_answered = 0
        self._warned = False
        self._open: dict[int, Query] = {}

    def ask(self, queries: Sequence[Query]) -> None:
        """Take questions, each of which must be the one of then."""
        for query in queries:
            if self._end is not None and query.id >= self._end.asked:
                raise InputError(
                    f"batch {query.step} asks question {query.id}, but the log "
                    f"{str(self.path)!r} ends after {self._end.asked} questions; replay the run "
                    "that it was recorded in."
                )
            if (entry := self._entries.get(query.id)) is not None:
                self._check(query, entry)
                self._open[query.id] = query
        self._n_asked += len(queries)

    def collect(self) -> list[Answer]:
        """The answers that came in this call."""
        number = self._n_collects
        if self._end is None and number > self._last and not self._warned:
            self._warned = True
            warnings.warn(
                f"the log {str(self.path)!r} was cut after {len(self._entries)} answers; from "
                f"batch {number} on nobody answers.",
                stacklevel=2,
            )
        due = self._due.get(number, [])
        for entry in due:
            if entry.id not in self._open:
                raise InputError(
                    f"the log {str(self.path)!r} answers question {entry.id} in batch {number}, "
                    "where it has not been asked; replay the run that it was recorded in."
                )
        self._n_collects += 1
        self._n_answered += len(due)
        return [Answer(self._open.pop(entry.id), entry.correct, entry.named) for entry in due]

    def end(self) -> None:
        """Make sure that all of the log has been given."""
        left = len(self._entries) - self._n_answered
        if left:
            raise InputError(
                f"the stream is over, but the log {str(self.path)!r} holds {left} further answers; "
                "replay the run that it was recorded in."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end()

    def state_dict(self) -> State:
        """How far the replay is; the log is brought again."""
        return {
            "digest": self._digest,
            "n_collects": self._n_collects,
            "n_asked": self._n_asked,
            "n_answered": self._n_answered,
            "open": [query.state_dict() for query in self._open.values()],
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        if state["digest"] != self._digest:
            raise InputError(
                f"{str(self.path)!r} is not the log that was being replayed; bring it back."
            )
        self._n_collects, self._n_asked = state["n_collects"], state["n_asked"]
        self._n_answered = state["n_answered"]
        self._open = {query["id"]: Query(**query) for query in state["open"]}

    def _check(self, query: Query, entry: Entry) -> None:
        if difference := entry.difference(query):
            raise InputError(
                f"question {query.id} in batch {query.step} is not the one in the log "
                f"{str(self.path)!r}: {difference}; replay the run that it was recorded in."
            )
