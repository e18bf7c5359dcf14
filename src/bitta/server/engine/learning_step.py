"""Learning steps: take answers from the store, learn from them, and commit the step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from itertools import count
from math import isfinite
from time import monotonic
from typing import TypeAlias

from torch import Tensor

from bitta.server.engine.interruptible_session import Interrupt
from bitta.server.engine.learner import AnsweredSample, Learner, derive_sample_id
from bitta.server.engine.served_log import ServedLog
from bitta.server.monitoring import DutyCycle
from bitta.server.store import LearnableAnswer, LearnedStep, Store
from bitta.server.store.errors import StoreError

_CLAIM_SECONDS = 0.1
"""Longest wait for the store's answers. A healthy database takes less."""

AnswersWithInputs: TypeAlias = Sequence[tuple[LearnableAnswer, Tensor | None]]
"""Answers with their inputs. An input is None if its image is gone."""


class WorkTimer:
    """Timer that does not count the time inside `paused` blocks."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._started, self._paused_seconds = clock(), 0.0
        self._is_paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count this block. Blocks may be nested."""
        if self._is_paused:
            yield
            return
        self._is_paused, started = True, self._clock()
        try:
            yield
        finally:
            self._is_paused = False
            self._paused_seconds += self._clock() - started

    @property
    def seconds(self) -> float:
        """Counted seconds so far."""
        return self._clock() - self._started - self._paused_seconds


class LearningSteps:
    """Runs learning steps in the worker's thread."""

    def __init__(
        self,
        learner: Learner,
        store: Store,
        served_log: ServedLog,
        duty: DutyCycle,
        *,
        clock: Callable[[], int],
    ) -> None:
        self._learner, self._store, self._served_log = learner, store, served_log
        self._duty, self._clock = duty, clock
        self.last_losses: dict[str, float | None] = {}
        self.last_step_at: int | None = None
        self._commit_future: Future[None] | None = None
        """Commit of the last step."""
        self._claim: Future[list[LearnableAnswer]] | None = None
        """Answers claimed for the next step."""

    @property
    def is_committed(self) -> bool:
        """True if the last step is on disk. Before that, no step runs and no snapshot is taken."""
        return self._commit_future is None or self._commit_future.done()

    def wait_for_commit(self, timeout: float) -> None:
        """Wait for the commit of the last step, at most `timeout` seconds."""
        if self._commit_future is not None:
            wait([self._commit_future], timeout=timeout)

    @property
    def is_due(self) -> bool:
        """True if a step can run now."""
        return (
            self.is_committed
            and self._learner.can_learn
            and self._duty.remaining_seconds() <= 0
            and self._store.last_write_error is None
        )

    def run(self, *, between_updates: Callable[[int], None], interrupt: Interrupt) -> bool:
        """Run a step. Return False if the store has not delivered the answers.

        Requests wait at most .1 s for the database. If it is slower or fails, the step is tried
        again later.
        `between_updates` gets the number of finished optimiser updates. The time of both callbacks
        does not count as learning.
        """
        if self._claim is None:
            self._claim = self._store.claim_answers()
            wait([self._claim], timeout=_CLAIM_SECONDS)
        if not self._claim.done():
            return False
        claim, self._claim = self._claim, None
        timer = WorkTimer()
        try:
            answers = [(answer, self._served_log.find_input(answer)) for answer in claim.result()]
        except StoreError:  # the step is tried again later, with these answers
            self._store.release_answers()
            return False
        lost = [answer.feedback_id for answer, inputs in answers if inputs is None]
        if lost:
            self._store.expire_answers(lost, "its image is no longer available")
        n_updates = count(1)

        def after_update() -> None:
            with timer.paused():
                between_updates(next(n_updates))

        def paused_interrupt() -> None:
            with timer.paused():
                interrupt()

        losses = self._learner.learn(
            _answered_samples(answers), between_updates=after_update, interrupt=paused_interrupt
        )
        self._commit(answers, losses.mean(), timer.seconds)
        return True

    def release_answers(self) -> None:
        """Release the claimed answers. Call it in a pause, before a rollback and at the end."""
        if self._claim is not None:
            self._claim = None
            self._store.release_answers()

    def _commit(
        self, answers: AnswersWithInputs, losses: Mapping[str, float], seconds: float
    ) -> None:
        """Store the step together with its answers."""
        self._duty.add_learning(seconds)
        self.last_losses = {n: v if isfinite(v) else None for n, v in losses.items()}
        self.last_step_at = self._clock()
        used = [answer for answer, inputs in answers if inputs is not None]
        self._commit_future = self._store.log_learned_step(
            LearnedStep(
                version=self._learner.version,
                answers=[answer.feedback_id for answer in used],
                losses=self.last_losses,
                seconds=seconds,
                replacing=[answer.feedback_id for answer in used if answer.replaces_answer],
            )
        )


def _answered_samples(answers: AnswersWithInputs) -> list[AnsweredSample]:
    return [
        AnsweredSample(
            input=inputs,
            label=answer.class_index,
            correct=answer.verdict == "correct",
            position=answer.position,
            sample_id=derive_sample_id(answer.prediction_id, answer.annotator_id),
            replaces_answer=answer.replaces_answer,
        )
        for answer, inputs in answers
        if inputs is not None
    ]
