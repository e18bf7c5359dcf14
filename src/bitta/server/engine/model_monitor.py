"""Monitoring of the served model: windows, audits, and their state on disk."""

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import torch
from torch import Tensor

from bitta.server.collapse_detector import (
    CollapseDetector,
    CollapseVerdict,
    GuardSettings,
    WindowSummary,
    input_variety,
)
from bitta.server.engine.learner import Learner
from bitta.server.monitoring import (
    AuditSummary,
    HistoryPoint,
    RecentLatencies,
    ServingHistory,
    SourceAgreement,
)
from bitta.server.store import Store
from bitta.server.store.errors import StoreError
from bitta.types import Prediction, Query

_MINUTE = 60_000_000  # microseconds
_RATE_SECONDS = 10.0
_FILE_NAME = "guard.json"
_WRITE_SECONDS = 5.0
"""Interval between two writes of the state. A crash loses the measurements since the last write."""
_log = logging.getLogger(__name__)


class ModelMonitor:
    """Monitor of the served model. The guard judges every complete window."""

    def __init__(
        self, settings: GuardSettings, *, n_classes: int, clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        """Seconds since the epoch."""
        self._detector = CollapseDetector(settings)
        self.history = ServingHistory()
        self.latencies = RecentLatencies()
        self.verdict = CollapseVerdict("ok")
        self.agreement: float | None = None
        self.confidence: float | None = None
        self._counts = torch.zeros(n_classes, dtype=torch.long)
        self._confidences: list[Tensor] = []
        self._inputs: list[Tensor] = []
        self._batch_sizes: deque[tuple[float, int]] = deque(maxlen=512)  # (time, samples)

    @property
    def samples_per_second(self) -> float:
        """Samples served per second, over the last 10 seconds."""
        now = monotonic()
        recent = [n for at, n in list(self._batch_sizes) if now - at <= _RATE_SECONDS]
        return sum(recent) / _RATE_SECONDS

    @property
    def reference_confidence(self) -> float | None:
        """Mean confidence of the reference windows."""
        return self._detector.reference.confidence.value

    def add_batch(self, inputs: Tensor, prediction: Prediction) -> None:
        """Add a served batch to the current window."""
        self._batch_sizes.append((monotonic(), len(inputs)))
        labels = prediction.labels.cpu()
        self._counts += torch.bincount(labels, minlength=len(self._counts))[: len(self._counts)]
        self._confidences.append(prediction.confidence.float().cpu())
        self._inputs.append(inputs)

    def end_window(
        self, distance: float, audits: AuditSummary, agreement: float | None, n_answers: int
    ) -> CollapseVerdict:
        """Judge a complete window. `n_answers` is the number of answers of the last minute."""
        self.agreement = self.agreement if agreement is None else agreement
        self.confidence = float(torch.cat(self._confidences).mean())
        self.verdict = self._detector.observe(
            WindowSummary(
                counts=self._counts.tolist(),
                confidence=self.confidence,
                distance=distance,
                agreement=agreement,
                variety=input_variety(torch.cat(self._inputs)),
                audits=audits,
            )
        )
        low, high = audits.interval if audits.n else (None, None)
        latency = self.latencies.to_status()
        self.history.add(
            HistoryPoint(
                at=self._clock(),
                accuracy=audits.accuracy,
                low=low,
                high=high,
                confidence=self.confidence,
                agreement=self.agreement,
                answers_per_minute=float(n_answers),
                latency_ms=latency["p50"],
                latency_p99_ms=latency["p99"],
            )
        )
        self._start_window()
        return self.verdict

    def reset_after_rollback(self, *, to_source: bool) -> None:
        """Start a new window after a rollback."""
        self._detector.reset_after_rollback(to_source=to_source)
        self._start_window()

    def state_dict(self) -> dict[str, Any]:
        """Return the detector, the history and the last window, without the current window."""
        return {
            "detector": self._detector.state_dict(),
            "history": self.history.state_dict(),
            "agreement": self.agreement,
            "confidence": self.confidence,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._detector.load_state_dict(state["detector"])
        self.history.load_state_dict(state["history"])
        self.agreement, self.confidence = state["agreement"], state["confidence"]

    def _start_window(self) -> None:
        self._counts.zero_()
        self._confidences, self._inputs = [], []


class AnswerStatistics:
    """Audits and answer counts of the store. If a read fails, the last values are returned."""

    def __init__(
        self, store: Store, learner: Learner, settings: GuardSettings, *, clock: Callable[[], int]
    ) -> None:
        self._store, self._learner, self._settings, self._clock = store, learner, settings, clock
        self.lineage_start = 0
        """Sequence number in the log of the last rollback; 0 if there was none."""
        self._audits = AuditSummary()
        self._source_agreement = SourceAgreement()
        self._n_answers = 0

    def compare_with_source(self, asked: Mapping[str, Query]) -> None:
        """Record for each new audit whether the source model predicts the same class."""
        for prediction_id, query in asked.items():
            label = self._learner.source_label(query.input) if query.reason == "audit" else None
            if label is not None:
                self._source_agreement.add(prediction_id, is_same=label == query.served_label)

    def audits(self) -> AuditSummary:
        """Summarise the newest answers to audits since the last rollback."""
        if self._store.last_write_error is not None:
            return self._audits
        oldest = self._clock() - int(1e6 * self._settings.audit_seconds)
        with suppress(StoreError):
            size = self._settings.audit_window
            found = self._store.audit_answers(since=self.lineage_start, newest=size)
            self._audits = AuditSummary.from_answers(
                [
                    (audit.correct, self._source_agreement.get(audit.prediction_id))
                    for audit in found
                    if audit.received_at > oldest
                ],
                max_n=size,
                n_in_lineage=self._store.count_audits(since=self.lineage_start),
            )
        return self._audits

    def n_answers_last_minute(self) -> int:
        """Count the answers received in the last minute."""
        if self._store.last_write_error is not None:
            return self._n_answers
        with suppress(StoreError):
            self._n_answers = self._store.count_recent_verdicts(since=self._clock() - _MINUTE)
        return self._n_answers

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the store."""
        return {"source_agreement": self._source_agreement.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._source_agreement.load_state_dict(state["source_agreement"])


class HasState(Protocol):
    """Object whose state is plain numbers and strings."""

    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...  # noqa: D102


class MonitorStateFile:
    """JSON file in the data folder with the state of the monitors.

    Without it, the windows after a restart would become the reference, even those of a collapsed
    model.
    """

    def __init__(self, data_dir: Path, parts: Mapping[str, HasState]) -> None:
        self._path = data_dir / _FILE_NAME
        self._parts = parts
        self._written_at = 0.0

    def read(self) -> None:
        """Restore the state. Log a warning if the file cannot be used."""
        try:
            state = json.loads(self._path.read_text())
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("the guard starts without a state; cannot use %s: %s", _FILE_NAME, error)

    def write(self, *, now: bool = False) -> None:
        """Write the state if `now`, or if the last write was at least 5 seconds ago.

        Disk errors are only logged.
        """
        if not now and monotonic() - self._written_at < _WRITE_SECONDS:
            return
        self._written_at = monotonic()
        draft = self._path.with_suffix(".draft")
        try:
            state = {name: part.state_dict() for name, part in self._parts.items()}
            draft.write_text(json.dumps(state))
            os.replace(draft, self._path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            _log.warning("the guard's state is not saved: %s", error.strerror)
