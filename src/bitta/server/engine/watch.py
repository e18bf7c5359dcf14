"""What is known of how the model fares, and whether it has collapsed."""

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from bitta.server.guard import (
    CollapseDetector,
    CollapseVerdict,
    GuardSettings,
    WindowSummary,
    input_variety,
)
from bitta.server.monitoring import AuditSummary, HistoryPoint, RecentLatencies, ServingHistory
from bitta.types import Prediction

_FINE = CollapseVerdict("ok")
_TEN = 10.0  # seconds


class Watch:
    """Collects what each window shows and asks the guard about it."""

    def __init__(
        self, config: GuardSettings, *, n_classes: int, clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        """Seconds since the epoch."""
        self._detector = CollapseDetector(config)
        self.history = ServingHistory()
        self.latencies = RecentLatencies()
        self.verdict = _FINE
        self.agreement: float | None = None
        self.confidence: float | None = None
        self._counts = torch.zeros(n_classes, dtype=torch.long)
        self._sure: list[Tensor] = []
        self._inputs: list[Tensor] = []
        self._times: deque[tuple[float, int]] = deque(maxlen=512)

    @property
    def per_second(self) -> float:
        """Samples served per second, over the last ten."""
        now = monotonic()
        return sum(n for at, n in list(self._times) if now - at <= _TEN) / _TEN

    @property
    def reference_confidence(self) -> float | None:
        """What it was in the first windows."""
        return self._detector.reference.confidence.value

    def served(self, inputs: Tensor, prediction: Prediction) -> None:
        """Take in a batch."""
        self._times.append((monotonic(), len(inputs)))
        labels = prediction.labels.cpu()
        self._counts += torch.bincount(labels, minlength=len(self._counts))[: len(self._counts)]
        self._sure.append(prediction.confidence.float().cpu())
        self._inputs.append(inputs)

    def window(
        self, distance: float, audited: AuditSummary, agreement: float | None, answers: int
    ) -> CollapseVerdict:
        """A window is full: judge it. `answers` are those of the last minute."""
        self.agreement = self.agreement if agreement is None else agreement
        self.confidence = float(torch.cat(self._sure).mean())
        self.verdict = self._detector.observe(
            WindowSummary(
                counts=self._counts.tolist(),
                confidence=self.confidence,
                distance=distance,
                agreement=agreement,
                variety=input_variety(torch.cat(self._inputs)),
                audits=audited,
            )
        )
        low, high = audited.interval if audited.n else (None, None)
        latency = self.latencies.to_status()
        self.history.add(
            HistoryPoint(
                at=self._clock(),
                accuracy=audited.accuracy,
                low=low,
                high=high,
                confidence=self.confidence,
                agreement=self.agreement,
                answers_per_minute=float(answers),
                latency_ms=latency["p50"],
                latency_p99_ms=latency["p99"],
            )
        )
        self._start_over()
        return self.verdict

    def rolled_back(self, *, to_source: bool) -> None:
        """Other weights serve from now on."""
        self._detector.rolled_back(to_source=to_source)
        self._start_over()

    def state_dict(self) -> dict[str, Any]:
        """What is normal, what has been seen, and the curves; nothing of a window half full."""
        return {
            "detector": self._detector.state_dict(),
            "history": self.history.state_dict(),
            "agreement": self.agreement,
            "confidence": self.confidence,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._detector.load_state_dict(state["detector"])
        self.history.load_state_dict(state["history"])
        self.agreement, self.confidence = state["agreement"], state["confidence"]

    def _start_over(self) -> None:
        self._counts.zero_()
        self._sure, self._inputs = [], []
