"""GET /v1/status: how the model, its questions and its annotators fare."""

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from bitta.server.api.auth import Caller
from bitta.server.api.ports import EngineStatus
from bitta.server.api.status_models import (
    AnnotatorPart,
    AuditsPart,
    CollapsePart,
    ConfidencePart,
    DistancePart,
    HistoryPart,
    LatencyPart,
    LearningPart,
    MePart,
    ModelPart,
    QuestionsPart,
    ServedPart,
    StatusBody,
)
from bitta.server.store import AnnotatorCounts, Store, StoreCounts, now

if TYPE_CHECKING:
    from bitta.server.api.parts import Parts

_DAY = 86_400_000_000
_TOLD_FOR = 3_600_000_000
"""Microseconds for which a rollback by the guard is still the news."""
_FRESH = 1.0


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the store adds, the same for every caller."""

    counts: StoreCounts
    annotators: list[AnnotatorCounts]
    today: dict[str, int]
    names: dict[str, str]
    n_snapshots: int
    went_back: str
    """Why the guard went back within the last hour."""


class Reader:
    """Reads the store once per second, however many ask."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._read: tuple[float, _Stored] | None = None

    async def read(self) -> _Stored:
        """As of now, or of a second ago."""
        async with self._lock:
            if self._read is None or monotonic() - self._read[0] > _FRESH:
                self._read = monotonic(), await asyncio.to_thread(_stored, self._store)
            return self._read[1]


async def status_body(parts: "Parts", caller: Caller) -> StatusBody:
    """The whole, as this caller may see it."""
    stored = await parts.reader.read()
    status = await asyncio.to_thread(parts.engine.status)  # reads the store
    counts = stored.counts
    mine = next((each for each in stored.annotators if each.annotator_id == caller.id), None)
    shown = stored.annotators if caller.role == "operator" else [mine] if mine else []
    return StatusBody(
        model=ModelPart(
            name=parts.engine.model_name,
            classes=list(parts.engine.classes),
            version=status.model_version,
            weights=status.weights,
        ),
        learning=_learning(status),
        served=ServedPart(
            n=status.n_served,
            per_second=status.per_second,
            latency_ms=LatencyPart.model_validate(dict(status.latency_ms)),
        ),
        questions=QuestionsPart(
            open=counts.open,
            asked=counts.asked,
            answered=counts.answered,
            skipped=counts.skipped,
            expired=counts.expired,
        ),
        audits=AuditsPart.model_validate(dict(status.audits)),
        agreement=status.agreement,
        confidence=ConfidencePart.model_validate(dict(status.confidence)),
        distance=DistancePart.model_validate(dict(status.distance)),
        collapse=_collapse(status, stored),
        snapshots=stored.n_snapshots,
        history=_history(status),
        annotators=[_annotator(each, stored) for each in shown],
        me=MePart(
            id=caller.id,
            role=caller.role,
            answered_today=stored.today.get(caller.id, 0),
            answered=mine.answered if mine else 0,
        ),
    )


def _stored(store: Store) -> _Stored:
    at = now()
    rollbacks = store.events(kinds=("rollback",))
    last = rollbacks[-1] if rollbacks else None
    recent = last is not None and last.body.get("by") == "guard" and at - last.at < _TOLD_FOR
    today = store.count_by_annotator(since=at - at % _DAY)
    return _Stored(
        counts=store.counts(),
        annotators=store.count_by_annotator(),
        today={each.annotator_id: each.answered for each in today},
        names={key.id: key.name for key in store.keys.list()},
        n_snapshots=len(store.snapshots()),
        went_back=str(last.body.get("reason", "")) if recent and last is not None else "",
    )


def _learning(status: EngineStatus) -> LearningPart:
    return LearningPart(
        state=status.learning,
        reason=status.reason,
        duty=status.duty,
        steps=status.n_steps,
        last_step_at=status.last_step_at,
        losses=dict(status.losses),
    )


def _collapse(status: EngineStatus, stored: _Stored) -> CollapsePart:
    if stored.went_back and status.collapse["state"] == "ok":
        return CollapsePart(state="rolled back", reasons=[stored.went_back])
    return CollapsePart.model_validate(dict(status.collapse))


def _history(status: EngineStatus) -> HistoryPart:
    columns = {name: list(column) for name, column in status.history.items()}
    columns["at"] = [int(1e6 * (at or 0)) for at in columns.get("at", [])]
    empty: list[float | None] = [None] * len(columns["at"])
    return HistoryPart.model_validate(
        {name: columns.get(name, empty) for name in HistoryPart.model_fields}
    )


def _annotator(each: AnnotatorCounts, stored: _Stored) -> AnnotatorPart:
    return AnnotatorPart(
        id=each.annotator_id,
        name=stored.names.get(each.annotator_id, each.annotator_id),
        answered=each.answered,
        skipped=each.skipped,
        agreement=each.agreed / each.compared if each.compared else None,
    )
