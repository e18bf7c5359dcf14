"""Accuracy on questions drawn by chance, which nothing biases."""

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from bitta.config import require, whole
from bitta.server.guard.wilson import Interval, wilson


@dataclass(frozen=True, slots=True)
class Audited:
    """What the recent audits say."""

    n: int = 0
    correct: int = 0
    compared: int = 0
    """Of n, those for which it is known what the source weights would have served."""
    source_wrong: int = 0
    """Of those, where the source weights are known to err: the same class, and incorrect; or
    another class, and the one served was correct."""
    total: int | None = None
    """Audits ever taken in, of which n are looked at; needed where `compared` is not 0."""

    @property
    def accuracy(self) -> float | None:
        """Share of correct answers; None without any."""
        return self.correct / self.n if self.n else None

    @property
    def interval(self) -> Interval:
        """In which accuracy lies, at 95 %."""
        return wilson(self.correct, self.n)

    @property
    def source_errors(self) -> Interval:
        """In which the known part of the source weights' errors lies, at 95 %."""
        return wilson(self.source_wrong, self.compared)

    def as_status(self) -> dict[str, int | float | None]:
        """For `audits` of /v1/status."""
        low, high = self.interval if self.n else (None, None)
        return {"n": self.n, "correct": self.correct, "accuracy": self.accuracy,
                "low": low, "high": high}  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class _Answer:
    at: float
    id: str
    correct: bool
    source_same: bool | None


class Audits:
    """The last answers to audits, at most `size` and none whose prediction is older than `seconds`.

    An answer counts for the time its prediction was served, since it judges the model of that
    time. Skips are not answers. The same id again replaces (change of mind).
    """

    def __init__(self, *, size: int = 100, seconds: float | None = None) -> None:
        self.size = whole("size", size)
        require(self.size >= 1, "size", size, "1 or more answers")
        require(seconds is None or seconds > 0, "seconds", seconds, "more than 0, or None")
        self.seconds = seconds
        self._answers: list[_Answer] = []  # by time
        self._total = 0

    def add(
        self, id_: str, *, correct: bool, served_at: float, source_same: bool | None = None
    ) -> None:
        """Take one in; `source_same` says whether the source weights give the same class."""
        known = len(self._answers)
        self.remove(id_)
        self._total += len(self._answers) == known
        insort(self._answers, _Answer(served_at, id_, correct, source_same))
        del self._answers[: -self.size]

    def remove(self, id_: str) -> None:
        """Forget one that was undone; unknown ids are no error, they have been pushed out."""
        self._answers = [answer for answer in self._answers if answer.id != id_]

    def clear(self) -> None:
        """Forget all: they judged weights that no longer serve."""
        self._answers = []

    def estimate(self, now: float) -> Audited:
        """What the answers in the window say at this time."""
        oldest = now - (inf if self.seconds is None else self.seconds)
        recent = [answer for answer in tuple(self._answers) if answer.at >= oldest]
        compared = [answer for answer in recent if answer.source_same is not None]
        return Audited(
            n=len(recent),
            correct=sum(answer.correct for answer in recent),
            compared=len(compared),
            source_wrong=sum(answer.correct != answer.source_same for answer in compared),
            total=self._total,
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain lists."""
        return {
            "total": self._total,
            "answers": [[answer.at, answer.id, answer.correct, answer.source_same]
                        for answer in self._answers]
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, within the size of now."""
        answers = sorted(_Answer(*answer) for answer in state["answers"])
        self._answers = answers[-self.size :]
        self._total = state["total"]
