"""One step: answers are taken from the store, learned from, and written down as learned."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from itertools import count
from math import isfinite

from bitta.server.engine.learner import Learner
from bitta.server.engine.ledger import Ledger
from bitta.server.engine.lessons import Known, Stopwatch, lessons_of
from bitta.server.monitoring import DutyCycle
from bitta.server.store import LearnableAnswer, LearnedStep, Store
from bitta.server.store.errors import StoreError

_AT_ONCE = 0.1  # seconds: a database in good health takes less, a step of the optimiser as long


class Study:
    """Belongs to the thread that owns the model."""

    def __init__(
        self,
        learner: Learner,
        store: Store,
        ledger: Ledger,
        duty: DutyCycle,
        *,
        clock: Callable[[], int],
    ) -> None:
        self._learner, self._store, self._ledger = learner, store, ledger
        self._duty, self._clock = duty, clock
        self.last_losses: dict[str, float | None] = {}
        self.last_step_at: int | None = None
        self._owed: Future[None] | None = None
        """The last step, on its way to the disk."""
        self._claim: Future[list[LearnableAnswer]] | None = None
        """Answers for the next step, on their way from there."""

    @property
    def settled(self) -> bool:
        """Whether the last step is on disk; nothing more is learned or kept before."""
        return self._owed is None or self._owed.done()

    def settle(self, seconds: float) -> None:
        """Wait for that, no longer than this."""
        if self._owed is not None:
            wait([self._owed], timeout=seconds)

    @property
    def due(self) -> bool:
        """Whether a step may be made now."""
        return (
            self.settled
            and self._learner.due
            and self._duty.remaining_seconds() <= 0
            and self._store.last_write_error is None
        )

    def step(self, *, between: Callable[[int], None], turn: Callable[[], None]) -> bool:
        """The answers enter the memory with the step that is committed with them; whether it was.

        Nobody who is to be served waits for the database: while it has not handed them out, there
        is no step yet. `between` is told how many steps of the optimiser are made. What it and
        `turn` do is no part of the step's time.
        """
        if self._claim is None:
            self._claim = self._store.claim_answers()
            wait([self._claim], timeout=_AT_ONCE)
        if not self._claim.done():
            return False
        claim, self._claim = self._claim, None
        stopwatch = Stopwatch()
        try:
            known = [(answer, self._ledger.input(answer)) for answer in claim.result()]
        except StoreError:  # tried again in a while; whatever was claimed is free again by then
            self._store.release_all_answers()
            return False
        lost = [answer.feedback_id for answer, given in known if given is None]
        if lost:
            self._store.expire_answers(lost, "its image is not at hand any more")
        epochs = count(1)

        def after_epoch() -> None:
            with stopwatch.resting():
                between(next(epochs))

        def given_turn() -> None:
            with stopwatch.resting():
                turn()

        losses = self._learner.learn(lessons_of(known), between=after_epoch, turn=given_turn)
        self._commit(known, losses.mean(), stopwatch.worked)
        return True

    def give_back(self) -> None:
        """Claim nothing: there is no step to come soon, or another state is to make it."""
        if self._claim is not None:
            self._claim = None
            self._store.release_all_answers()

    def _commit(self, known: Known, losses: Mapping[str, float], seconds: float) -> None:
        self._duty.add_learning(seconds)
        self.last_losses = {n: v if isfinite(v) else None for n, v in losses.items()}
        self.last_step_at = self._clock()
        used = [answer for answer, given in known if given is not None]
        self._owed = self._store.log_learned_step(
            LearnedStep(
                version=self._learner.version,
                answers=[answer.feedback_id for answer in used],
                losses=self.last_losses,
                seconds=seconds,
                overruling=[answer.feedback_id for answer in used if answer.overrules],
            )
        )
