"""Does a confidence of 80 % mean 80 % right?"""

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

N_BINS = 15


def _zeros() -> list[float]:
    return [0.0] * N_BINS


@dataclass(frozen=True)
class Reliability:
    """Fifteen equal-width bins of confidence: how many fell in, how sure, how right."""

    count: list[float] = field(default_factory=_zeros)
    confidence: list[float] = field(default_factory=_zeros)
    """Sum of the confidences in each bin."""
    correct: list[float] = field(default_factory=_zeros)

    def add(self, confidence: Tensor, correct: Tensor) -> Self:
        """With a batch taken in; a confidence that is no number counts as none."""
        confidence = confidence.nan_to_num(0.0)
        # Bins are open below and closed above, (0, 1/15] to (14/15, 1].
        bins = (confidence.double().cpu() * N_BINS).ceil().long().clamp(1, N_BINS) - 1
        return type(self)(
            _summed(self.count, bins, torch.ones_like(bins)),
            _summed(self.confidence, bins, confidence),
            _summed(self.correct, bins, correct),
        )

    @property
    def ece(self) -> float:
        """Expected calibration error in percent."""
        total = sum(self.count)
        gaps = zip(self.confidence, self.correct, strict=True)
        return 100 * sum(abs(sure - right) for sure, right in gaps) / total if total else 0.0


def confidence_sum(confidence: Tensor) -> float:
    """Over a batch; as above, one that is no number counts as none."""
    return float(confidence.double().cpu().nan_to_num(0.0).sum())


def _summed(sums: list[float], bins: Tensor, values: Tensor) -> list[float]:
    added = torch.zeros(N_BINS, dtype=torch.float64)
    added.index_add_(0, bins, values.double().cpu())
    return [old + new for old, new in zip(sums, added.tolist(), strict=True)]
