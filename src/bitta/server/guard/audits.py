"""Accuracy on questions drawn by chance, which nothing biases."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from bitta.config import check_integer, require
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
    """Audits of the lineage so far, of which n are looked at; needed where `compared` is not 0."""

    @classmethod
    def of(
        cls, verdicts: Sequence[tuple[bool, bool | None]], *, size: int, total: int | None = None
    ) -> Self:
        """The last `size` verdicts, oldest first.

        Of each, whether it was correct, and whether the source weights give the class that was
        judged. `total` where some have been left out already.
        """
        recent = verdicts[-size:]
        compared = [(correct, same) for correct, same in recent if same is not None]
        return cls(
            n=len(recent),
            correct=sum(correct for correct, _ in recent),
            compared=len(compared),
            source_wrong=sum(correct != same for correct, same in compared),
            total=len(verdicts) if total is None else total,
        )

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


class SameAsSource:
    """Whether the source weights give the class that was served, for the newest predictions.

    To be told when an audit is asked for; what has been forgotten is None.
    """

    def __init__(self, size: int = 1000) -> None:
        self.size = check_integer("size", size)
        require(self.size >= 1, "size", size, "1 or more predictions")
        self._same: OrderedDict[str, bool] = OrderedDict()

    def add(self, prediction_id: str, *, same: bool) -> None:
        """Take one in, in place of the oldest if there is no room."""
        self._same[prediction_id] = same
        if len(self._same) > self.size:
            self._same.popitem(last=False)

    def of(self, prediction_id: str) -> bool | None:
        """None where it is not known."""
        return self._same.get(prediction_id)

    def state_dict(self) -> dict[str, bool]:
        """By prediction, oldest first."""
        return dict(self._same)

    def load_state_dict(self, state: Mapping[str, bool]) -> None:
        """Go on from a saved state, within the size of now."""
        self._same.clear()
        for prediction_id, same in state.items():
            self.add(prediction_id, same=same)
