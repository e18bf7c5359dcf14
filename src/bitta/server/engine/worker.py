"""The one thread that owns the model: it serves, asks, and learns between batches."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from math import isfinite
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from bitta.errors import BittaError
from bitta.server.engine.compiler import Import
from bitta.server.engine.config import EngineConfig
from bitta.server.engine.inbox import Inbox, Request
from bitta.server.engine.keeper import Keeper
from bitta.server.engine.learner import Learner
from bitta.server.engine.ledger import Ledger
from bitta.server.engine.lessons import Known, Stopwatch, lessons_of
from bitta.server.engine.watch import Watch
from bitta.server.guard import Audited, DutyCycle, SameAsSource
from bitta.server.store import LearnedStep, Store
from bitta.server.store.errors import StoreError
from bitta.types import Prediction, Query

_log = logging.getLogger(__name__)
_MINUTE = 60_000_000  # microseconds
_IDLE = 0.05  # seconds between two looks at the clock
_LAST_WRITE = 10.0  # seconds that a full or locked database is waited for at the end


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
        self.model_name, self.classes, self._clock = name, tuple(classes), clock
        self.inbox = Inbox(
            max_batch=config.max_batch, max_wait=config.max_wait, capacity=config.max_waiting
        )
        self.ledger = Ledger(store, config, name=name, classes=self.classes, clock=clock)
        self.keeper = Keeper(learner, store, config, data_dir=data_dir, clock=clock)
        self.watch = Watch(config.guard, n_classes=len(self.classes), clock=lambda: clock() / 1e6)
        self.duty = DutyCycle(config.duty)
        self.paused = ""
        """Why it does not learn; empty while it does."""
        self.beat = monotonic()
        """When it last went round, or got further in a step."""
        self.n_served = 0
        self.distance = 0.0
        """From the source weights, at the last window."""
        self.last_losses: dict[str, float | None] = {}
        self.last_step_at: int | None = None
        self.begun_from = ""
        self._offset = 0
        """Samples served before the session's own count began."""
        self._lineage_began = 0
        """Where in the log."""
        self._during: tuple[int, int] | None = None
        self._owed: Future[None] | None = None
        """The last step, on its way to the disk."""
        self._aside: list[tuple[Tensor, Prediction]] = []
        """Served inside a step or a question, not yet counted into a window."""
        self._audited = Audited()
        self._same = SameAsSource()
        self._answers = 0
        """Of the last minute."""
        self._compiler = Import()
        self._stopping = Event()
        self._whole = False
        """Whether it has ended between two rounds, not by an error in one."""

    def begin(self) -> None:
        """Recover, then run; raises where there is nothing to go on from."""
        self.begun_from = self.keeper.begin()
        self._offset = self.store.counts().served - self.learner.n_seen
        lineages = [one for one in self.store.snapshots() if one.lineage == self.learner.lineage]
        self._lineage_began = min(one.seq for one in lineages)
        self.start()

    def run(self) -> None:
        """Orders, requests, learning, snapshots: round and round."""
        while not self._stopping.is_set():
            self.beat = monotonic()
            self.ledger.count_written()
            for order in self.inbox.orders():
                _done(order.done, order.work)
            requests = self.inbox.batch(patience=_IDLE)
            if requests:
                self._serve(requests)
            # First what is due to be kept: a step under way would have to settle before.
            if self.keeper.due and self._settled and self.store.trouble is None:
                with suppress(StoreError):  # tried again in a while
                    self.keeper.take("interval")
            if self._may_learn():
                self._learn()
        self._whole = True

    def stop(self) -> None:
        """Finish what is under way, keep the state, refuse what still waits."""
        self._stopping.set()
        self.join()
        for left in self.inbox.empty():
            left.done.set_exception(BittaError("the server is shutting down; try again soon."))
        if self._owed is not None:
            wait([self._owed], timeout=_LAST_WRITE)
        if self._settled and self._whole:
            with suppress(StoreError):  # the next start goes on from the one before
                self.keeper.take("interval")
        self.learner.close()

    def _serve(self, requests: Sequence[Request]) -> None:
        """Answer first; a window that is full raises questions afterwards."""
        inputs = torch.cat([request.inputs for request in requests])
        version, windows, first = self.learner.version, self.learner.n_windows, self._position
        silent = self.learner.fills(len(inputs)) and self.ledger.enough_asked()
        self._take_aside()

        def answered(prediction: Prediction) -> None:
            self._answer(requests, inputs, prediction, first=first, version=version, silent=silent)
            self.watch.served(inputs, prediction)

        try:
            prediction = self.learner.serve(
                inputs, answered=answered, turn=self._serve_within, silent=silent
            )
        except BittaError as error:
            _refuse(requests, error)
            return
        if self.learner.n_windows > windows:
            self._compare(self.ledger.ask(prediction.queries, offset=self._offset))
            self._judge(prediction)

    def _compare(self, asked: Mapping[str, Query]) -> None:
        """Would the source weights have said the same? Known of audits, for the guard."""
        for name, query in asked.items():
            label = self.learner.source_label(query.input) if query.audit else None
            if label is not None:
                self._same.add(name, same=label == query.label)

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
        except BittaError as error:
            _refuse(requests, error)
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
        verdict = self.watch.window(self.distance, self.audited(), agreement, self.answers())
        if verdict.state != "collapsed" or not self.config.rollback:
            return
        if self._during is not None or self.paused:
            return
        with suppress(BittaError):  # the next window says so again
            target = self.keeper.older_than(verdict.windows)
            self.roll_back(target, by="guard", reason="; ".join(verdict.reasons))

    def audited(self) -> Audited:
        """What the newest answers to audits of this lineage say, as far as can be known now."""
        if self.store.trouble is not None:
            return self._audited
        guard = self.config.guard
        oldest = self._clock() - int(1e6 * guard.audit_seconds)
        with suppress(StoreError):
            found = self.store.audits(since=self._lineage_began)
            self._audited = Audited.of(
                [
                    (one.correct, self._same.of(one.prediction_id))
                    for one in found
                    if one.received_at > oldest
                ],
                size=guard.audit_window,
                total=len(found),
            )
        return self._audited

    def answers(self) -> int:
        """Received in the last minute, as far as can be known now."""
        if self.store.trouble is not None:
            return self._answers
        with suppress(StoreError):
            self._answers = self.store.received(since=self._clock() - _MINUTE)
        return self._answers

    def roll_back(self, snapshot_id: str, *, by: str, reason: str) -> str:
        """To be called in this thread."""
        position = self._position
        snapshot = self.keeper.roll_back(snapshot_id, by=by, reason=reason)
        self._offset = position - self.learner.n_seen
        self._lineage_began = snapshot.seq
        self.watch.rolled_back(to_source=snapshot.step == 0)
        return snapshot.model_version

    def _may_learn(self) -> bool:
        if not self._settled or self.paused or not self.learner.due or self.duty.wait() > 0:
            return False
        return self.store.trouble is None and self._compiler.finished()

    @property
    def _settled(self) -> bool:
        """Whether the last step is on disk; nothing more is learned or kept before."""
        return self._owed is None or self._owed.done()

    def _learn(self) -> None:
        """The answers enter the memory with the step that is committed with them."""
        try:
            taken = self.store.take().result()
            known = [(answer, self.ledger.input(answer)) for answer in taken]
        except StoreError:  # tried again in a while; whatever was claimed is free again by then
            self.store.release_all()
            return
        lost = [answer.feedback_id for answer, given in known if given is None]
        if lost:
            self.store.unusable(lost, "its image is not at hand any more")
        self._step(known)
        self.keeper.learned()

    def _step(self, known: Known) -> None:
        lessons, stopwatch, epoch = lessons_of(known), Stopwatch(), 0

        def between() -> None:
            nonlocal epoch
            epoch += 1
            with stopwatch.resting():
                self._between(epoch)

        def turn() -> None:
            with stopwatch.resting():
                self._serve_within()

        losses = self.learner.learn(lessons, between=between, turn=turn).mean()
        self._during = None
        seconds = stopwatch.worked
        self.duty.spent(seconds)
        self.last_losses = {n: v if isfinite(v) else None for n, v in losses.items()}
        self.last_step_at = self._clock()
        self._owed = self.store.learned(
            LearnedStep(
                version=self.learner.version,
                answers=[answer.feedback_id for answer, given in known if given is not None],
                losses=self.last_losses,
                seconds=seconds,
            )
        )

    def _between(self, epoch: int) -> None:
        """Serve who waits, between two steps of the optimiser."""
        self.beat = monotonic()
        self._during = (self.learner.step, epoch)
        waiting = self.inbox.depth
        while waiting > 0 and (requests := self.inbox.batch(patience=0)):
            self._serve(requests)
            waiting -= sum(len(request.inputs) for request in requests)


def _done(future: "Future[Any]", work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except (BittaError, OSError) as error:
        future.set_exception(error)


def _refuse(requests: Sequence[Request], error: BittaError) -> None:
    """Tell those who wait; where all were answered already, the questions have failed."""
    waiting = [request for request in requests if not request.done.done()]
    for request in waiting:
        request.done.set_exception(error)
    if not waiting:
        _log.warning("a window raised no questions: %s", error)
