"""Status of the model, its questions and annotators (GET /v1/status), and health checks."""

import asyncio
import shutil
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from bitta.errors import BittaError
from bitta.server.api.authentication import Caller
from bitta.server.api.engine_interface import (
    EngineInterface,
    EngineStatusInterface,
    wait_for_future,
)
from bitta.server.api.schemas import (
    AnnotatorStatus,
    AuditStatus,
    CallerStatus,
    CollapseStatus,
    ConfidenceStatus,
    DistanceStatus,
    LatencyStatus,
    LearningStatus,
    ModelStatus,
    QuestionCounts,
    StatusBody,
    StatusHistory,
    TrafficStatus,
)
from bitta.server.settings import ServeSettings
from bitta.server.store import AnnotatorCounts, Store, StoreCounts, now

if TYPE_CHECKING:
    from bitta.server.api.dependencies import AppState
    from bitta.server.api.events import LogWatcher

_DAY = 86_400_000_000  # microseconds
_ROLLBACK_SHOWN = 3_600_000_000  # microseconds
"""Time for which the status shows a rollback by the guard."""
_SUMMARY_SECONDS = 1.0
"""Time for which a summary of the store is reused."""
_HEALTH_SECONDS = 1.0
"""Time for which the result of the readiness check is reused."""
_CHECK_TIMEOUT_SECONDS = 5.0
_MIN_FREE_BYTES = 16 * 2**20
"""Free disk space below which the server is not ready."""


@dataclass(frozen=True, slots=True)
class _StoreSummary:
    """Part of the status that comes from the store. It is the same for every caller."""

    counts: StoreCounts
    annotators: list[AnnotatorCounts]
    answered_today: dict[str, int]
    names: dict[str, str]
    n_snapshots: int
    rollback_reason: str
    """Reason of the guard's rollback within the last hour, or empty."""


class StoreSummaryReader:
    """Reads the store at most once per second, for all requests together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._cached: tuple[float, _StoreSummary] | None = None

    async def read(self) -> _StoreSummary:
        """Return a summary that is at most a second old."""
        async with self._lock:
            if self._cached is None or monotonic() - self._cached[0] > _SUMMARY_SECONDS:
                self._cached = monotonic(), await asyncio.to_thread(_summarize, self._store)
            return self._cached[1]


async def status_body(state: "AppState", caller: Caller) -> StatusBody:
    """Return the status as this caller may see it."""
    summary = await state.summary_reader.read()
    status = await asyncio.to_thread(state.engine.status)  # reads the store
    own = next((each for each in summary.annotators if each.annotator_id == caller.id), None)
    visible = summary.annotators if caller.role == "operator" else [own] if own else []
    return StatusBody(
        model=ModelStatus(
            name=state.engine.model_name,
            classes=list(state.engine.classes),
            version=status.model_version,
            weights=status.weights,
        ),
        learning=_learning(status),
        served=_traffic(status),
        questions=_question_counts(summary.counts),
        audits=AuditStatus.model_validate(dict(status.audits)),
        agreement=status.agreement,
        confidence=ConfidenceStatus.model_validate(dict(status.confidence)),
        distance=DistanceStatus.model_validate(dict(status.distance)),
        collapse=_collapse(status, summary),
        snapshots=summary.n_snapshots,
        history=_history(status),
        annotators=[_annotator(each, summary) for each in visible],
        me=CallerStatus(
            id=caller.id,
            role=caller.role,
            answered_today=summary.answered_today.get(caller.id, 0),
            answered=own.answered if own else 0,
        ),
    )


def _summarize(store: Store) -> _StoreSummary:
    time = now()
    rollbacks = store.events(kinds=("rollback",))
    rollback_reason = ""
    if rollbacks:
        last = rollbacks[-1]
        if last.body.get("by") == "guard" and time - last.at < _ROLLBACK_SHOWN:
            rollback_reason = str(last.body.get("reason", ""))
    today = store.count_by_annotator(since=time - time % _DAY)
    return _StoreSummary(
        counts=store.counts(),
        annotators=store.count_by_annotator(),
        answered_today={each.annotator_id: each.answered for each in today},
        names={key.id: key.name for key in store.keys.list()},
        n_snapshots=len(store.snapshots()),
        rollback_reason=rollback_reason,
    )


def _learning(status: EngineStatusInterface) -> LearningStatus:
    return LearningStatus(
        state=status.learning,
        reason=status.reason,
        duty=status.duty,
        steps=status.n_learning_steps,
        last_step_at=status.last_step_at,
        losses=dict(status.losses),
    )


def _traffic(status: EngineStatusInterface) -> TrafficStatus:
    return TrafficStatus(
        n=status.n_served,
        per_second=status.per_second,
        latency_ms=LatencyStatus.model_validate(dict(status.latency_ms)),
    )


def _question_counts(counts: StoreCounts) -> QuestionCounts:
    return QuestionCounts(
        open=counts.open,
        asked=counts.asked,
        answered=counts.answered,
        skipped=counts.skipped,
        expired=counts.expired,
    )


def _collapse(status: EngineStatusInterface, summary: _StoreSummary) -> CollapseStatus:
    if summary.rollback_reason and status.collapse["state"] == "ok":
        return CollapseStatus(state="rolled back", reasons=[summary.rollback_reason])
    return CollapseStatus.model_validate(dict(status.collapse))


def _history(status: EngineStatusInterface) -> StatusHistory:
    columns = {name: list(column) for name, column in status.history.items()}
    columns["at"] = [int(1e6 * (at or 0)) for at in columns.get("at", [])]
    missing: list[float | None] = [None] * len(columns["at"])
    return StatusHistory.model_validate(
        {name: columns.get(name, missing) for name in StatusHistory.model_fields}
    )


def _annotator(count: AnnotatorCounts, summary: _StoreSummary) -> AnnotatorStatus:
    return AnnotatorStatus(
        id=count.annotator_id,
        name=summary.names.get(count.annotator_id, count.annotator_id),
        answered=count.answered,
        skipped=count.skipped,
        agreement=count.agreed / count.compared if count.compared else None,
    )


class HealthChecks:
    """Liveness and readiness. Probes need no key, so checks run at most once per second."""

    def __init__(
        self,
        engine: EngineInterface,
        store: Store,
        settings: ServeSettings,
        log_watcher: "LogWatcher",
    ) -> None:
        self._engine = engine
        self._store = store
        self._data_dir = settings.data_dir
        self._log_watcher = log_watcher
        self._cached: tuple[float, str] | None = None
        self._lock = asyncio.Lock()

    def liveness_problem(self) -> str:
        """Return a problem that only a restart can solve, or an empty string."""
        if self._engine.is_alive:
            return ""
        return "the worker thread that owns the model has ended or is stuck; restart the server."

    async def readiness_problem(self) -> str:
        """Return the reason why requests should go to another server, or an empty string."""
        if self._log_watcher.is_closing:
            return "the server is shutting down."
        async with self._lock:
            if self._cached is None or monotonic() - self._cached[0] > _HEALTH_SECONDS:
                problem = (
                    self.liveness_problem()
                    or await self._worker_problem()
                    or await self._storage_problem()
                )
                self._cached = monotonic(), problem
            return self._cached[1]

    async def _worker_problem(self) -> str:
        try:
            await wait_for_future(self._engine.ping(), _CHECK_TIMEOUT_SECONDS)
        except TimeoutError:
            if self._engine.idle_seconds < _CHECK_TIMEOUT_SECONDS:
                return ""  # it serves requests during a long learning step
            return f"the worker has not responded for {_CHECK_TIMEOUT_SECONDS:g} seconds."
        except BittaError as error:
            return str(error)
        return ""

    async def _storage_problem(self) -> str:
        try:
            free_bytes = (await asyncio.to_thread(shutil.disk_usage, self._data_dir)).free
            if free_bytes < _MIN_FREE_BYTES:
                return f"the disk of the data folder has {free_bytes:,} bytes left."
            # This write changes nothing. It is queued and committed like every other write.
            await wait_for_future(self._store.expire_questions(0), _CHECK_TIMEOUT_SECONDS)
        except TimeoutError:
            return f"the store has not written for {_CHECK_TIMEOUT_SECONDS:g} seconds."
        except (OSError, BittaError) as error:
            return f"the store cannot be written: {error}"
        return ""
