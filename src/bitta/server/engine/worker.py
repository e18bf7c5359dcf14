"""The one thread that owns the model: it serves, asks, and learns between batches."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import torch
from torch import Tensor

from bitta.errors import BittaError, ModelError
from bitta.server.engine.compiler import Import
from bitta.server.engine.config import EngineConfig
from bitta.server.engine.gauge import Gauge
from bitta.server.engine.inbox import Inbox, Request, brief, refuse
from bitta.server.engine.keeper import Keeper
from bitta.server.engine.learner import Learner
from bitta.server.engine.ledger import Ledger
from bitta.server.engine.lessons import Stopwatch
from bitta.server.engine.notebook import Notebook
from bitta.server.engine.study import Study
from bitta.server.engine.tidy import Tidy
from bitta.server.engine.watch import Watch
from bitta.server.monitoring import DutyCycle
from bitta.server.store import Store, StoreUnavailable
from bitta.server.store.errors import StoreError
from bitta.types import Prediction

_log = logging.getLogger(__name__)
_IDLE = 0.05  # seconds between two looks at the clock
_LAST_WRITE = 10.0  # seconds that a full or locked database is waited for at the end
_PATIENCE, _MOST_PATIENCE = 1.0, 60.0  # seconds between two tries to go back
PAUSED = "paused by an operator"
"""Where no reason was given."""
_TORCH = (RuntimeError, BittaError)
"""What torch raises is of the first kind; of the second is what the library says in its place."""


class Worker(Thread):
    """Runs until it is told to stop; everything about the model happens in here."""

    def __init__(
        self,
        learner: Learner,
        store: Store,
        config: EngineConfig,
        *,
        name: str,
        classes: Sequence[str],
        data_dir: Path,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(name="bitta-worker", daemon=True)
        self.learner, self.store, self.config = learner, store, config
        self.model_name, self.classes = name, tuple(classes)
        self.inbox = Inbox(
            max_batch=config.max_batch, max_wait=config.max_wait, capacity=config.max_waiting
        )
        self.ledger = Ledger(store, config, name=name, classes=self.classes, clock=clock)
        self.keeper = Keeper(learner, store, config, data_dir=data_dir, clock=clock)
        self.watch = Watch(config.guard, n_classes=len(self.classes), clock=lambda: clock() / 1e6)
        self.gauge = Gauge(store, learner, config.guard, clock=clock)
        self.duty = DutyCycle(config.duty)
        self.study = Study(learner, store, self.ledger, self.duty, clock=clock)
        self.notebook = Notebook(data_dir, {"watch": self.watch, "gauge": self.gauge})
        self.tidy = Tidy()
        self.paused = ""
        """Why it does not learn; empty while it does."""
        self.failure = ""
        """What has failed, until somebody lets it learn again."""
        self._astray = False
        """Whether what failed has left the model in a state that must not serve."""
        self._not_before, self._patience = 0.0, _PATIENCE
        self.beat = monotonic()
        """When it last went round, or got further in a step."""
        self.n_served = 0
        self.distance = 0.0
        """From the source weights, at the last window."""
        self.begun_from = ""
        self._offset = 0
        """Samples served before the session's own count began."""
        self._during: tuple[int, int] | None = None
        self._aside: list[tuple[Tensor, Prediction]] = []
        """Served inside a step or a question, not yet counted into a window."""
        self._compiler = Import()
        self._asked_by = ""
        """The version of the last window that raised questions."""
        self._stopping = Event()
        self._whole = False
        """Whether it has ended between two rounds, not by an error in one."""

    def begin(self) -> None:
        """Recover, then run; raises where there is nothing to go on from."""
        self.begun_from = self.keeper.begin()
        self._offset = self.store.counts().served - self.learner.n_seen
        back = self.store.last_event(("rollback",))
        self.gauge.lineage_began = 0 if back is None else back.seq
        self.notebook.read()
        self._stay_paused()
        self.start()

    def _stay_paused(self) -> None:
        """As it was when the process before ended: only an operator lets it learn again."""
        last = self.store.last_event(("paused", "resumed"))
        if last is not None and last.kind == "paused":
            self.paused = last.body["reason"] or PAUSED
            self.failure = self.paused if last.body["by"] == "guard" else ""

    def run(self) -> None:
        """Orders, requests, learning, snapshots: round and round."""
        while not self._stopping.is_set():
            try:
                self._go_round()
            except Exception as error:  # whatever it is, serving goes on
                self._has_failed(error)
        self._whole = not self._astray

    def _go_round(self) -> None:
        self.beat = monotonic()
        self.ledger.count_written()
        for order in self.inbox.orders():
            order.carry_out()
        if self._astray and monotonic() >= self._not_before:
            self._go_back()
        requests = self.inbox.batch(patience=_IDLE)
        if self._astray:
            refuse(requests, StoreUnavailable(self.failure))
            return
        if requests:
            self._serve(requests)
            self.tidy.used()
        self.ledger.expire()
        # First what is due to be kept: a step under way would have to settle before.
        if self.keeper.due and self.study.settled and self.store.last_write_error is None:
            with suppress(StoreError):  # tried again in a while
                self.keeper.take("interval")
        if self.paused:
            self.study.give_back()
        elif self.study.due and self._compiler.finished():
            self._learn()
            self.tidy.used()
        self.tidy.when_due()

    def _has_failed(self, error: Exception) -> None:
        """Learn no more for now, and go back soon: not in here, as the error holds on to memory."""
        self.failure = f"learning failed: {brief(error)}"
        _log.error("%s", self.failure, exc_info=error)
        self.inbox.give_up(ModelError(self.failure))
        self.paused, self._astray, self._during = self.failure, True, None
        self._aside.clear()

    def _go_back(self) -> None:
        """To the newest snapshot, as after a crash; where that cannot be logged, later."""
        self._not_before = monotonic() + self._patience
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        try:
            self.roll_back(self.keeper.newest(), by="guard", reason=self.failure, again=True)
        except (BittaError, OSError) as error:
            _log.warning("the model cannot go back yet: %s", brief(error))
        else:
            self._not_before, self._patience = 0.0, _PATIENCE
            self.store.log_event("paused", {"by": "guard", "reason": self.failure})

    def stop(self) -> None:
        """Finish what is under way, keep the state, refuse what still waits."""
        self._stopping.set()
        self.join()
        for left in self.inbox.empty():
            left.done.set_exception(BittaError("the server is shutting down; try again soon."))
        self.study.give_back()
        self.study.settle(_LAST_WRITE)
        self.notebook.write(now=True)
        if self.study.settled and self._whole:
            with suppress(StoreError):  # the next start goes on from the one before
                self.keeper.stopped()
        self.learner.close()

    def _serve(self, requests: Sequence[Request]) -> None:
        """Answer first; a window that is full raises questions afterwards."""
        inputs = torch.cat([request.inputs for request in requests])
        version, windows, first = self.learner.version, self.learner.n_windows, self._position
        silent = self.learner.fills(len(inputs)) and self._asks_nothing()
        self._take_aside()
        stopwatch = Stopwatch()

        def answered(prediction: Prediction) -> None:
            nonlocal stopwatch
            self._answer(requests, inputs, prediction, first=first, version=version, silent=silent)
            self.watch.served(inputs, prediction)
            stopwatch = Stopwatch()

        def turn() -> None:
            with stopwatch.resting():
                self._serve_within()

        try:
            prediction = self.learner.serve(inputs, answered=answered, turn=turn, silent=silent)
        except _TORCH as error:
            if not refuse(requests, error):  # all were answered, and the questions failed
                raise
            return
        if self.learner.n_windows > windows:
            self.gauge.compare(self.ledger.ask(prediction.queries, offset=self._offset))
            if not silent:
                self._asked_by = version
                self.duty.add_learning(stopwatch.worked)
            self._judge(prediction)

    def _asks_nothing(self) -> bool:
        """Choosing may be what has failed; and nobody can answer, nor a step learn, without end."""
        ahead = self._asked_by == self.learner.version and self.duty.remaining_seconds() > 0
        return bool(self.failure) or ahead or self.ledger.enough_asked()

    def _serve_within(self) -> None:
        """Serve who has waited long enough, inside a step or a question."""
        self.beat = monotonic()
        if not self.inbox.depth or not (room := self.learner.room):
            return
        requests = self.inbox.overdue(most=min(room, self.config.max_batch))
        if not requests:
            return
        inputs = torch.cat([request.inputs for request in requests])
        version, first = self.learner.version, self._position
        try:
            prediction = self.learner.serve_within(inputs)
        except _TORCH as error:
            refuse(requests, error)
            return
        self._answer(requests, inputs, prediction, first=first, version=version)
        self._aside.append((inputs, prediction))

    def _answer(
        self,
        requests: Sequence[Request],
        inputs: Tensor,
        prediction: Prediction,
        *,
        first: int,
        version: str,
        silent: bool = False,
    ) -> None:
        served = self.ledger.enter(
            requests,
            inputs,
            prediction,
            first=first,
            version=version,
            during=self._during,
            silent=silent,
        )
        start = 0
        for request in requests:
            stop = start + len(request.inputs)
            request.done.set_result(served.part(start, stop))
            self.watch.latencies.add(monotonic() - request.came_at)
            start = stop
        self.n_served += len(inputs)

    def _take_aside(self) -> None:
        for inputs, prediction in self._aside:
            self.watch.served(inputs, prediction)
        self._aside.clear()

    @property
    def _position(self) -> int:
        return self._offset + self.learner.n_seen

    def _judge(self, prediction: Prediction) -> None:
        """A window is full: has the model collapsed?"""
        self.distance = self.learner.distance
        agreement = None if prediction.agreement is None else float(prediction.agreement)
        verdict = self.watch.window(
            self.distance, self.gauge.audited(), agreement, self.gauge.answers()
        )
        self.notebook.write()
        if verdict.state != "collapsed" or not self.config.rollback:
            return
        if self._during is not None or self.paused:
            return
        with suppress(BittaError):  # the next window says so again
            target = self.keeper.older_than(verdict.n_windows)
            self.roll_back(target, by="guard", reason="; ".join(verdict.reasons))

    def require_sound(self) -> None:
        """Refuse what needs a state that can serve."""
        if self._astray:
            raise StoreUnavailable(self.failure)

    def resume(self) -> None:
        """Learn and ask again. To be called in this thread, as what follows."""
        self.paused = self.failure = ""

    def roll_back(self, snapshot_id: str, *, by: str, reason: str, again: bool = False) -> str:
        """Serve by a snapshot from now on; `again`: learn again what was learned after it."""
        position = self._position
        self.study.give_back()
        snapshot = self.keeper.roll_back(snapshot_id, by=by, reason=reason, again=again)
        self._astray = False
        self._offset = position - self.learner.n_seen
        self.gauge.lineage_began = snapshot.seq
        self.watch.rolled_back(to_source=snapshot.step == 0)
        self.notebook.write(now=True)
        return snapshot.model_version

    def _learn(self) -> None:
        learned = self.study.step(between=self._between, turn=self._serve_within)
        self._during = None
        if learned:
            self.keeper.learned()

    def _between(self, epoch: int) -> None:
        """Serve who waits, between two steps of the optimiser."""
        self.beat = monotonic()
        self._during = (self.learner.step, epoch)
        waiting = self.inbox.depth
        while waiting > 0 and (requests := self.inbox.batch(patience=0)):
            self._serve(requests)
            waiting -= sum(len(request.inputs) for request in requests)
