"""Worker: the thread that owns the model. It serves, asks questions, and learns between batches."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import torch
from torch import Tensor, nn

from bitta.errors import BittaError, ModelError
from bitta.malloc import give_back_freed_memory
from bitta.server.engine.learner import CompilerImport, Learner
from bitta.server.engine.learning_step import LearningSteps, WorkTimer
from bitta.server.engine.model_monitor import AnswerStatistics, ModelMonitor, MonitorStateFile
from bitta.server.engine.request_queue import (
    InferenceRequest,
    RequestQueue,
    fail_unfinished,
    first_line,
)
from bitta.server.engine.served_log import ServedLog
from bitta.server.engine.snapshots_and_rollback import SnapshotStore
from bitta.server.monitoring import DutyCycle
from bitta.server.settings import ServeSettings
from bitta.server.store import Store, StoreUnavailable
from bitta.server.store.errors import StoreError
from bitta.types import Prediction

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.05
"""Longest wait for a request before the loop checks what else is due."""
_LAST_COMMIT_SECONDS = 10.0
"""Longest wait for the commit of the last step when the worker stops."""
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 60.0
"""Waiting time between two attempts to roll back after an error."""
RELEASE_SECONDS = 60.0
"""Interval at which freed memory is returned. Each return delays requests and allocations."""
DEFAULT_PAUSE_REASON = "paused by an operator"
_FORWARD_ERRORS = (RuntimeError, BittaError)
"""Errors that a forward pass can raise."""


class MemoryRelease:
    """Return of freed memory to the system, at most once per `RELEASE_SECONDS`."""

    def __init__(
        self,
        *,
        release: Callable[[], None] = give_back_freed_memory,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._release, self._clock = release, clock
        self._has_worked = False
        self._released_at = clock()

    def record_work(self) -> None:
        """Record that memory was allocated and freed."""
        self._has_worked = True

    def release_if_due(self) -> None:
        """Return freed memory if there was work and the last release is long enough ago."""
        if self._has_worked and self._clock() - self._released_at >= RELEASE_SECONDS:
            self._release()
            self._has_worked, self._released_at = False, self._clock()


class Worker(Thread):
    """Thread that owns the model: it serves, asks questions, learns and takes snapshots."""

    def __init__(
        self,
        model: nn.Module,
        store: Store,
        settings: ServeSettings,
        *,
        model_name: str,
        classes: Sequence[str],
        data_dir: Path,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(name="bitta-worker", daemon=True)
        self.learner = learner = Learner(model, settings)
        self.store, self.settings = store, settings
        self.model_name, self.classes = model_name, tuple(classes)
        self.queue = RequestQueue(
            max_batch=settings.max_batch,
            max_wait_seconds=settings.max_wait_ms / 1000,
            capacity=settings.max_queued_images,
        )
        self.served_log = ServedLog(
            store, settings, model_name=model_name, classes=self.classes, clock=clock
        )
        self.snapshots = SnapshotStore(learner, store, settings, data_dir=data_dir, clock=clock)
        self.monitor = ModelMonitor(
            settings.guard, n_classes=len(self.classes), clock=lambda: clock() / 1e6
        )
        self.answer_statistics = AnswerStatistics(store, learner, settings.guard, clock=clock)
        self.duty = DutyCycle(settings.duty)
        self.learning = LearningSteps(learner, store, self.served_log, self.duty, clock=clock)
        self.state_file = MonitorStateFile(
            data_dir, {"monitor": self.monitor, "answers": self.answer_statistics}
        )
        self.memory_release = MemoryRelease()
        self.pause_reason = ""
        """Reason why learning is paused; empty while it is on."""
        self.failure = ""
        """Last error, until learning is resumed."""
        self._needs_rollback = False
        """True if an error has left the model in a state that must not serve."""
        self._retry_at, self._retry_seconds = 0.0, _MIN_RETRY_SECONDS
        self.last_active_at = monotonic()
        self.n_served = 0
        self.distance = 0.0
        """Distance from the source weights at the last window."""
        self.start_message = ""
        self._position_offset = 0
        """Number of served samples that the session does not count, because a rollback or restart
        restored an older state of it."""
        self._during: tuple[int, int] | None = None
        """Running learning step and number of its finished updates. None between steps, and until
        the first update of a step is finished."""
        self._interrupt_batches: list[tuple[Tensor, Prediction]] = []
        """Batches served in an interrupt that the monitor has not counted yet."""
        self._compiler_import = CompilerImport()
        self._last_asking_version = ""
        """Model version that served the last window with questions."""
        self._stopping = Event()
        self._ended_cleanly = False

    def recover_and_start(self) -> None:
        """Recover the last state and start the thread."""
        self.start_message = self.snapshots.recover_or_start()
        self._position_offset = self.store.counts().served - self.learner.n_session_samples
        rollback = self.store.last_event(("rollback",))
        self.answer_statistics.lineage_start = 0 if rollback is None else rollback.seq
        self.state_file.read()
        self._restore_pause()
        self.start()

    def _restore_pause(self) -> None:
        """Stay paused if the last process was. Only an operator resumes learning."""
        last = self.store.last_event(("paused", "resumed"))
        if last is not None and last.kind == "paused":
            self.pause_reason = last.body["reason"] or DEFAULT_PAUSE_REASON
            self.failure = self.pause_reason if last.body["by"] == "guard" else ""

    def run(self) -> None:
        """Run tasks, serve, take snapshots and learn until stopped."""
        while not self._stopping.is_set():
            try:
                self._run_once()
            except Exception as error:  # serving continues after any error
                self._handle_failure(error)
        self._ended_cleanly = not self._needs_rollback

    def _run_once(self) -> None:
        self.last_active_at = monotonic()
        self.served_log.update_n_unwritten()
        for task in self.queue.take_tasks():
            task.run()
        if self._needs_rollback and monotonic() >= self._retry_at:
            self._roll_back_after_failure()
        requests = self.queue.next_batch(timeout=_POLL_SECONDS)
        if self._needs_rollback:
            fail_unfinished(requests, StoreUnavailable(self.failure))
            return
        if requests:
            self._serve(requests)
            self.memory_release.record_work()
        self.served_log.expire_questions()
        # Take a snapshot before learning. After a new step, it would have to wait for the commit.
        if (
            self.snapshots.is_due
            and self.learning.is_committed
            and self.store.last_write_error is None
        ):
            with suppress(StoreError):  # tried again later
                self.snapshots.take("interval")
        if self.pause_reason:
            self.learning.release_answers()
        elif self.learning.is_due and self._compiler_import.start_and_check():
            self._learn()
            self.memory_release.record_work()
        self.memory_release.release_if_due()

    def _handle_failure(self, error: Exception) -> None:
        """Pause learning and plan a rollback.

        The rollback runs later, when this error is freed: its traceback keeps tensors in memory.
        """
        self.failure = f"learning failed: {first_line(error)}"
        _log.error("%s", self.failure, exc_info=error)
        self.queue.fail_taken(ModelError(self.failure))
        self.pause_reason, self._needs_rollback, self._during = self.failure, True, None
        self._interrupt_batches.clear()

    def _roll_back_after_failure(self) -> None:
        """Roll back to the newest snapshot. If that fails, try again later."""
        self._retry_at = monotonic() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, _MAX_RETRY_SECONDS)
        try:
            snapshot_id = self.snapshots.newest_id()
            self.roll_back(snapshot_id, by="guard", reason=self.failure, repeat_answers=True)
        except (BittaError, OSError) as error:
            _log.warning("the model cannot be rolled back yet: %s", first_line(error))
        else:
            self._retry_at, self._retry_seconds = 0.0, _MIN_RETRY_SECONDS
            self.store.log_event("paused", {"by": "guard", "reason": self.failure})

    def stop(self) -> None:
        """Finish the current work, take a snapshot, and refuse waiting requests."""
        self._stopping.set()
        self.join()
        for item in self.queue.clear():
            item.future.set_exception(BittaError("the server is shutting down; try again soon."))
        self.learning.release_answers()
        self.learning.wait_for_commit(_LAST_COMMIT_SECONDS)
        self.state_file.write(now=True)
        if self.learning.is_committed and self._ended_cleanly:
            with suppress(StoreError):  # the next start uses an older snapshot
                self.snapshots.take_last()
        self.learner.close()

    def _serve(self, requests: Sequence[InferenceRequest]) -> None:
        """Serve a batch. Questions about a complete window are chosen after the response."""
        inputs = torch.cat([request.inputs for request in requests])
        version, n_windows, first = self.learner.version, self.learner.n_windows, self._position
        skip = self._skips_questions(len(inputs))
        self._count_interrupt_batches()
        timer = WorkTimer()

        def on_prediction(prediction: Prediction) -> None:
            nonlocal timer
            self._respond(
                requests,
                inputs,
                prediction,
                first_position=first,
                version=version,
                skips_questions=skip,
            )
            self.monitor.add_batch(inputs, prediction)
            timer = WorkTimer()

        def interrupt() -> None:
            with timer.paused():
                self._serve_in_interrupt()

        try:
            prediction = self.learner.serve(
                inputs, on_prediction=on_prediction, interrupt=interrupt, skip_questions=skip
            )
        except _FORWARD_ERRORS as error:
            # If all requests were answered before the error, the choice of questions has failed.
            if not fail_unfinished(requests, error):
                raise
            return
        if self.learner.n_windows > n_windows:
            asked = self.served_log.ask(prediction.queries, position_offset=self._position_offset)
            self.answer_statistics.compare_with_source(asked)
            if not skip:
                self._last_asking_version = version
                self.duty.add_learning(timer.seconds)
            self._end_window(prediction)

    def _skips_questions(self, n_samples: int) -> bool:
        """Return True if these samples complete a window about which no questions are asked.

        Questions are skipped after a failure, while learning lags behind, and if many are open.
        """
        if not self.learner.is_window_completed_by(n_samples):
            return False
        learning_lags = (
            self._last_asking_version == self.learner.version and self.duty.remaining_seconds() > 0
        )
        return bool(self.failure) or learning_lags or self.served_log.has_enough_open_questions()

    def _serve_in_interrupt(self) -> None:
        """Serve requests that have waited long enough, between two layers of the model."""
        self.last_active_at = monotonic()
        if not self.queue.n_waiting or not (n_samples := self.learner.n_interrupt_samples):
            return
        requests = self.queue.next_due_batch(max_samples=min(n_samples, self.settings.max_batch))
        if not requests:
            return
        inputs = torch.cat([request.inputs for request in requests])
        version, first = self.learner.version, self._position
        try:
            prediction = self.learner.serve_in_interrupt(inputs)
        except _FORWARD_ERRORS as error:
            fail_unfinished(requests, error)
            return
        self._respond(requests, inputs, prediction, first_position=first, version=version)
        self._interrupt_batches.append((inputs, prediction))

    def _respond(
        self,
        requests: Sequence[InferenceRequest],
        inputs: Tensor,
        prediction: Prediction,
        *,
        first_position: int,
        version: str,
        skips_questions: bool = False,
    ) -> None:
        served = self.served_log.add(
            requests,
            inputs,
            prediction,
            first_position=first_position,
            version=version,
            during=self._during,
            skips_questions=skips_questions,
        )
        start = 0
        for request in requests:
            stop = start + len(request.inputs)
            request.future.set_result(served.rows(start, stop))
            self.monitor.latencies.add(monotonic() - request.received_at)
            start = stop
        self.n_served += len(inputs)

    def _count_interrupt_batches(self) -> None:
        for inputs, prediction in self._interrupt_batches:
            self.monitor.add_batch(inputs, prediction)
        self._interrupt_batches.clear()

    @property
    def _position(self) -> int:
        """Index of the next sample among all samples served."""
        return self._position_offset + self.learner.n_session_samples

    def _end_window(self, prediction: Prediction) -> None:
        """Judge a complete window. Roll back if the model has collapsed."""
        self.distance = self.learner.distance
        agreement = None if prediction.agreement is None else float(prediction.agreement)
        verdict = self.monitor.end_window(
            self.distance,
            self.answer_statistics.audits(),
            agreement,
            self.answer_statistics.n_answers_last_minute(),
        )
        self.state_file.write()
        if verdict.state != "collapsed" or not self.settings.rollback:
            return
        if self._during is not None or self.pause_reason:
            return
        with suppress(BittaError):  # the next window tries again
            snapshot_id = self.snapshots.find_before(verdict.n_windows)
            self.roll_back(snapshot_id, by="guard", reason="; ".join(verdict.reasons))

    def require_valid_model(self) -> None:
        """Raise an error if the model's state must not serve."""
        if self._needs_rollback:
            raise StoreUnavailable(self.failure)

    def resume(self) -> None:
        """Resume learning and asking. Call this in the worker's thread, like `roll_back`."""
        self.pause_reason = self.failure = ""

    def roll_back(
        self, snapshot_id: str, *, by: str, reason: str, repeat_answers: bool = False
    ) -> str:
        """Serve with the weights of a snapshot. Return the new version.

        With `repeat_answers`, answers that were learned after the snapshot are learned again.
        """
        position = self._position
        self.learning.release_answers()
        snapshot = self.snapshots.roll_back(
            snapshot_id, by=by, reason=reason, repeat_answers=repeat_answers
        )
        self._needs_rollback = False
        self._position_offset = position - self.learner.n_session_samples
        self.answer_statistics.lineage_start = snapshot.seq
        self.monitor.reset_after_rollback(to_source=snapshot.step == 0)
        self.state_file.write(now=True)
        return snapshot.model_version

    def _learn(self) -> None:
        has_learned = self.learning.run(
            between_updates=self._serve_between_updates, interrupt=self._serve_in_interrupt
        )
        self._during = None
        if has_learned:
            self.snapshots.count_step()

    def _serve_between_updates(self, n_updates: int) -> None:
        """Serve the requests that wait now, between two optimiser updates."""
        self.last_active_at = monotonic()
        self._during = (self.learner.step, n_updates)
        n_waiting = self.queue.n_waiting
        while n_waiting > 0 and (requests := self.queue.next_batch(timeout=0)):
            self._serve(requests)
            n_waiting -= sum(len(request.inputs) for request in requests)
