"""Engine: the thread-safe interface of the worker that owns the model."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from bitta.errors import BittaError
from bitta.server.engine.request_queue import InferenceRequest, WorkerTask
from bitta.server.engine.served_log import ServedPredictions
from bitta.server.engine.worker import DEFAULT_PAUSE_REASON, Worker
from bitta.server.settings import ServeSettings
from bitta.server.store import Store, StoredSnapshot, StoreUnavailable

_MAX_IDLE_SECONDS = 30.0
"""Time without activity after which the worker counts as stuck."""


class EngineOverloadedError(BittaError):
    """Raised when too many samples wait to be served or stored."""


@dataclass(frozen=True, kw_only=True)
class ServingStatus:
    """Current state of the model, its learning and its monitoring."""

    model_version: str
    weights: str | None
    """Hash of the weights at the last snapshot."""
    execution: str
    learning: Literal["on", "paused"]
    reason: str | None
    """Reason for the pause."""
    duty: float
    """Share of the last minute that was spent on asking and learning."""
    n_learning_steps: int
    last_step_at: int | None
    losses: Mapping[str, float | None]
    n_served: int
    """Number of samples served since the start of the process."""
    per_second: float
    latency_ms: Mapping[str, float | None]
    audits: Mapping[str, int | float | None]
    agreement: float | None
    confidence: Mapping[str, float | None]
    distance: Mapping[str, float | None]
    collapse: Mapping[str, Any]
    history: Mapping[str, Sequence[float | None]]
    queue_depth: int
    """Number of samples in the queue."""
    last_snapshot_at: int | None


class Engine:
    """Model that serves and learns in a worker thread. Any thread may call its methods."""

    def __init__(
        self,
        model: nn.Module,
        classes: Sequence[str],
        store: Store,
        settings: ServeSettings,
        *,
        data_dir: Path,
        clock: Callable[[], int],
        input_shape: tuple[int, ...],
        name: str = "model",
    ) -> None:
        self.settings = settings
        self.input_shape = input_shape
        """Shape of one sample."""
        self._worker = Worker(
            model,
            store,
            settings,
            model_name=name,
            classes=classes,
            data_dir=data_dir,
            clock=clock,
        )

    def start(self) -> str:
        """Recover the last state and start to serve. Return a message about the weights."""
        self._worker.recover_and_start()
        return self._worker.start_message

    def stop(self) -> None:
        """Finish the current work and save the state."""
        self._worker.stop()

    @property
    def model_name(self) -> str:
        """Name of the model for clients."""
        return self._worker.model_name

    @property
    def model_version(self) -> str:
        """Version of the weights that serve now."""
        return self._worker.learner.version

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self._worker.classes

    @property
    def is_alive(self) -> bool:
        """True if the worker runs and is not stuck."""
        return self._worker.is_alive() and self.idle_seconds < _MAX_IDLE_SECONDS

    @property
    def idle_seconds(self) -> float:
        """Seconds since the worker was last active."""
        return monotonic() - self._worker.last_active_at

    def ping(self) -> "Future[None]":
        """Return a future that is done after the worker's current batch or learning step."""
        return self._run_in_worker(lambda: None)

    def predict(
        self, inputs: "np.ndarray[Any, np.dtype[np.float32]]", *, request_id: str
    ) -> "Future[ServedPredictions]":
        """Serve samples of shape (n, ...) together."""
        worker = self._worker
        request = InferenceRequest(torch.from_numpy(np.array(inputs, dtype=np.float32)), request_id)
        if not worker.is_alive():
            raise StoreUnavailable(
                "the worker that owns the model has ended; the server must restart."
            )
        store_lags = worker.served_log.n_unwritten >= self.settings.max_queued_images
        if store_lags and (why := worker.store.last_write_error) is not None:
            raise StoreUnavailable(f"predictions cannot be stored: {why}.")
        if store_lags or not worker.queue.put(request):
            raise EngineOverloadedError(
                "too many images wait to be served or stored; try again in a moment."
            )
        return request.future

    def snapshot(self, reason: Literal["asked"] = "asked") -> "Future[StoredSnapshot]":
        """Take a snapshot after the current batch or learning step."""

        def take() -> StoredSnapshot:
            self._worker.require_valid_model()
            return self._worker.snapshots.take(reason)

        return self._run_in_worker(take)

    def rollback(self, snapshot_id: str, *, by: str, reason: str) -> "Future[str]":
        """Roll back to a snapshot. The result is the version that serves afterwards."""
        return self._run_in_worker(
            lambda: self._worker.roll_back(snapshot_id, by=by, reason=reason)
        )

    def pause(self, by: str, reason: str) -> "Future[None]":
        """Pause learning. Serving continues."""

        def pause() -> None:
            self._worker.store.log_event("paused", {"by": by, "reason": reason}).result()
            self._worker.pause_reason = reason or DEFAULT_PAUSE_REASON

        return self._run_in_worker(pause)

    def resume(self, by: str) -> "Future[None]":
        """Resume learning."""

        def resume() -> None:
            self._worker.require_valid_model()
            self._worker.store.log_event("resumed", {"by": by}).result()
            self._worker.resume()

        return self._run_in_worker(resume)

    def keep_answered_image(self, prediction_id: str) -> None:
        """Write the image of an answered prediction to disk, if it is in memory."""
        self._worker.served_log.keep_answered_image(prediction_id)

    def forget_image(self, sha256: str) -> None:
        """Erase an image from the recent inputs, which answers refer to.

        It happens after the current batch or learning step. Copies in the memories and the window
        of the method, and in snapshots, stay.
        """
        self._run_in_worker(lambda: self._worker.served_log.recent.forget_image(sha256))

    def status(self) -> ServingStatus:
        """Return the current status without waiting for the worker."""
        worker, monitor = self._worker, self._worker.monitor
        snapshot = worker.snapshots.last
        verdict = monitor.verdict
        return ServingStatus(
            model_version=worker.learner.version,
            weights=snapshot.weights_hash if snapshot else None,
            execution=worker.learner.execution,
            learning="paused" if worker.pause_reason else "on",
            reason=worker.pause_reason or None,
            duty=worker.duty.used_share(),
            n_learning_steps=worker.learner.step,
            last_step_at=worker.learning.last_step_at,
            losses=dict(worker.learning.last_losses),
            n_served=worker.n_served,
            per_second=monitor.samples_per_second,
            latency_ms=monitor.latencies.to_status(),
            audits=worker.answer_statistics.audits().to_status(),
            agreement=monitor.agreement,
            confidence={"recent": monitor.confidence, "reference": monitor.reference_confidence},
            distance={"now": worker.distance, "limit": self.settings.guard.max_distance},
            collapse={"state": verdict.state, "reasons": list(verdict.reasons)},
            history=monitor.history.to_status(),
            queue_depth=worker.queue.n_waiting,
            last_snapshot_at=snapshot.created_at if snapshot else None,
        )

    def _run_in_worker(self, function: Callable[[], Any]) -> "Future[Any]":
        task = WorkerTask(function)
        self._worker.queue.put_task(task)
        return task.future
