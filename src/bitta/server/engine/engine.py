"""What the rest of the server sees of the model."""

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
from bitta.server.engine.config import EngineConfig
from bitta.server.engine.inbox import Order, Request
from bitta.server.engine.learner import Learner
from bitta.server.engine.ledger import Served
from bitta.server.engine.worker import PAUSED, Worker
from bitta.server.store import Store, StoredSnapshot, StoreUnavailable

_STUCK = 30.0  # seconds without a round


class Overloaded(BittaError):  # noqa: N818 (a state, not a mistake)
    """Too many samples wait to be served."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """How the model fares, as of now."""

    model_version: str
    weights: str | None
    """Hash of the weights at the last snapshot."""
    execution: str
    learning: Literal["on", "paused"]
    reason: str | None
    """Why it is paused."""
    duty: float
    """Share of its time that the worker has spent on learning lately."""
    n_steps: int
    last_step_at: int | None
    losses: Mapping[str, float | None]
    n_served: int
    """Since the start."""
    per_second: float
    latency_ms: Mapping[str, float | None]
    audits: Mapping[str, int | float | None]
    agreement: float | None
    confidence: Mapping[str, float | None]
    distance: Mapping[str, float | None]
    collapse: Mapping[str, Any]
    history: Mapping[str, Sequence[float | None]]
    queue_depth: int
    """Samples that wait."""
    last_snapshot_at: int | None


class Engine:
    """A thread-safe face of the worker that owns the model."""

    def __init__(
        self,
        model: nn.Module,
        classes: Sequence[str],
        store: Store,
        config: EngineConfig,
        *,
        data_dir: Path,
        clock: Callable[[], int],
        input_shape: tuple[int, ...],
        name: str = "model",
    ) -> None:
        self.config = config
        self.input_shape = input_shape
        """Of one sample."""
        self._worker = Worker(
            Learner(model, config.learner),
            store,
            config,
            name=name,
            classes=classes,
            data_dir=data_dir,
            clock=clock,
        )

    def start(self) -> str:
        """Recover what there is and begin to serve; a sentence about what it began from."""
        self._worker.begin()
        return self._worker.begun_from

    def stop(self) -> None:
        """Finish what is under way and keep the state."""
        self._worker.stop()

    @property
    def model_name(self) -> str:
        """As clients know it."""
        return self._worker.model_name

    @property
    def model_version(self) -> str:
        """Of the weights that serve now."""
        return self._worker.learner.version

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self._worker.classes

    @property
    def alive(self) -> bool:
        """Whether the worker goes round."""
        return self._worker.is_alive() and self.idle < _STUCK

    @property
    def idle(self) -> float:
        """Seconds since the worker last served, came round, or was ready to serve."""
        return monotonic() - self._worker.beat

    def ping(self) -> "Future[None]":
        """Done as soon as the worker has come round."""
        return self._ordered(lambda: None)

    def predict(
        self, inputs: "np.ndarray[Any, np.dtype[np.float32]]", *, request_id: str
    ) -> "Future[Served]":
        """Serve some samples, (n, ...), together."""
        request = Request(torch.from_numpy(np.array(inputs, dtype=np.float32)), request_id)
        if not self._worker.is_alive():
            raise StoreUnavailable(
                "the worker that owns the model has ended; the server must restart."
            )
        behind = self._worker.ledger.unwritten >= self.config.max_waiting
        if behind and (why := self._worker.store.last_write_error) is not None:
            raise StoreUnavailable(f"predictions cannot be stored: {why}.")
        if behind or not self._worker.inbox.put(request):
            raise Overloaded("too many images wait to be served or stored; try again in a moment.")
        return request.done

    def snapshot(self, reason: Literal["asked"] = "asked") -> "Future[StoredSnapshot]":
        """Keep the state as it is between two batches."""

        def work() -> StoredSnapshot:
            self._worker.require_sound()
            return self._worker.keeper.take(reason)

        return self._ordered(work)

    def rollback(self, snapshot_id: str, *, by: str, reason: str) -> "Future[str]":
        """Go back to a snapshot; the version that serves from then on."""
        return self._ordered(lambda: self._worker.roll_back(snapshot_id, by=by, reason=reason))

    def pause(self, by: str, reason: str) -> "Future[None]":
        """Serve on, learn no more."""

        def work() -> None:
            self._worker.store.log_event("paused", {"by": by, "reason": reason}).result()
            self._worker.paused = reason or PAUSED

        return self._ordered(work)

    def resume(self, by: str) -> "Future[None]":
        """Learn again."""

        def work() -> None:
            self._worker.require_sound()
            self._worker.store.log_event("resumed", {"by": by}).result()
            self._worker.resume()

        return self._ordered(work)

    def keep_answered(self, prediction_id: str) -> None:
        """Keep the image of an answer that nobody asked for, if it is at hand."""
        self._worker.ledger.keep_answered(prediction_id)

    def forget(self, sha256: str) -> None:
        """Let go of every copy of an image that is only in memory, before the next batch."""
        self._ordered(lambda: self._worker.ledger.recent.forget(sha256))

    def status(self) -> Status:
        """Read without waiting for the worker."""
        worker, watch = self._worker, self._worker.watch
        snapshot = worker.keeper.last
        verdict = watch.verdict
        return Status(
            model_version=worker.learner.version,
            weights=snapshot.weights_hash if snapshot else None,
            execution=worker.learner.execution,
            learning="paused" if worker.paused else "on",
            reason=worker.paused or None,
            duty=worker.duty.used_share(),
            n_steps=worker.learner.step,
            last_step_at=worker.study.last_step_at,
            losses=dict(worker.study.last_losses),
            n_served=worker.n_served,
            per_second=watch.per_second,
            latency_ms=watch.latencies.to_status(),
            audits=worker.gauge.audited().to_status(),
            agreement=watch.agreement,
            confidence={"recent": watch.confidence, "reference": watch.reference_confidence},
            distance={"now": worker.distance, "limit": self.config.guard.max_distance},
            collapse={"state": verdict.state, "reasons": list(verdict.reasons)},
            history=watch.history.to_status(),
            queue_depth=worker.inbox.depth,
            last_snapshot_at=snapshot.created_at if snapshot else None,
        )

    def _ordered(self, work: Callable[[], Any]) -> "Future[Any]":
        order = Order(work)
        self._worker.inbox.order(order)
        return order.done
