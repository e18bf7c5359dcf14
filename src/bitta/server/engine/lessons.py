"""Answers made into lessons, and the time that learning from them takes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from torch import Tensor

from bitta.server.engine.lesson import Lesson, derive_sample_id
from bitta.server.store import LearnableAnswer

Known = Sequence[tuple[LearnableAnswer, Tensor | None]]
"""Answers with what they are about, where that could be found."""


def lessons_of(known: Known) -> list[Lesson]:
    """Those that can be learned from."""
    return [
        Lesson(
            input=given,
            label=answer.class_index,
            correct=answer.verdict == "correct",
            position=answer.position,
            sample_id=derive_sample_id(answer.prediction_id, answer.annotator_id),
            overrules=answer.overrules,
        )
        for answer, given in known
        if given is not None
    ]


class Stopwatch:
    """Keeps the time of learning itself: whatever runs inside `resting` is left out."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began, self._rested = clock(), 0.0
        self._resting = False

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Leave this out, once where it is nested."""
        if self._resting:
            yield
            return
        self._resting, left = True, self._clock()
        try:
            yield
        finally:
            self._resting = False
            self._rested += self._clock() - left

    @property
    def worked(self) -> float:
        """Seconds so far."""
        return self._clock() - self._began - self._rested
