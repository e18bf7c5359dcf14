"""Metrics of a run: agreement, calibration, collapse, forgetting, time and memory."""

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from time import perf_counter
from typing import Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from bitta.types import State


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts of samples on which the policy and the served labels agree."""

    n_measured: int = 0
    n_agreeing: int = 0
    n_agreeing_correct: int = 0
    n_correct: int = 0
    """Correct samples among the measured ones."""

    @classmethod
    def from_batch(cls, labels: Tensor, correct: Tensor, policy: Tensor | None) -> Self:
        """Count one batch. All counts are 0 if the policy, (batch, classes), was not computed."""
        if policy is None:
            return cls()
        agreeing = (policy.argmax(-1) == labels).cpu()
        correct = correct.cpu()
        return cls(
            len(labels), int(agreeing.sum()), int((agreeing & correct).sum()), int(correct.sum())
        )

    @property
    def rate(self) -> float | None:
        """Percentage of measured samples on which both agree."""
        return _percent(self.n_agreeing, self.n_measured)

    @property
    def accuracy_agreeing(self) -> float | None:
        """Accuracy in percent on samples where both agree."""
        return _percent(self.n_agreeing_correct, self.n_agreeing)

    @property
    def accuracy_disagreeing(self) -> float | None:
        """Accuracy in percent on samples where they disagree."""
        n_correct = self.n_correct - self.n_agreeing_correct
        return _percent(n_correct, self.n_measured - self.n_agreeing)


def _percent(part: int, total: int) -> float | None:
    return 100 * part / total if total else None


MAX_BRIER_SCORE = 2.0
"""Brier score of a sample with all probability on a wrong class."""


@torch.no_grad()
def brier_sum(probs: Tensor, truth: Tensor) -> float:
    """Return the sum over samples of Σ (p - one-hot)², 0 to 2 each. NaN counts as the maximum."""
    target = F.one_hot(truth.to(probs.device), probs.shape[-1])
    squares = (probs.double() - target).square().sum(-1)
    return float(squares.nan_to_num(MAX_BRIER_SCORE, posinf=MAX_BRIER_SCORE).sum())


N_BINS = 15


def _zeros() -> list[float]:
    return [0.0] * N_BINS


@dataclass(frozen=True)
class Reliability:
    """Counts of samples and correct samples, and sums of confidences, in 15 bins of equal width."""

    count: list[float] = field(default_factory=_zeros)
    confidence: list[float] = field(default_factory=_zeros)
    """Sum of the confidences in each bin."""
    correct: list[float] = field(default_factory=_zeros)

    def add(self, confidence: Tensor, correct: Tensor) -> Self:
        """Return a copy with a batch added. A confidence of NaN counts as 0."""
        confidence = confidence.nan_to_num(0.0)
        # Bins are open below and closed above, (0, 1/15] to (14/15, 1].
        bins = (confidence.double().cpu() * N_BINS).ceil().long().clamp(1, N_BINS) - 1
        return type(self)(
            _add_to_bins(self.count, bins, torch.ones_like(bins)),
            _add_to_bins(self.confidence, bins, confidence),
            _add_to_bins(self.correct, bins, correct),
        )

    @property
    def ece(self) -> float:
        """Expected calibration error in percent."""
        total = sum(self.count)
        pairs = zip(self.confidence, self.correct, strict=True)
        gap = sum(abs(confidence - correct) for confidence, correct in pairs)
        return 100 * gap / total if total else 0.0


def confidence_sum(confidence: Tensor) -> float:
    """Return the sum of the confidences of a batch. A confidence of NaN counts as 0."""
    return float(confidence.double().cpu().nan_to_num(0.0).sum())


def _add_to_bins(sums: list[float], bins: Tensor, values: Tensor) -> list[float]:
    added = torch.zeros(N_BINS, dtype=torch.float64)
    added.index_add_(0, bins, values.double().cpu())
    return [old + new for old, new in zip(sums, added.tolist(), strict=True)]


MIN_ENTROPY_RATIO = 0.3
"""Entropy of the served labels divided by that of the true labels. A lower ratio is a collapse."""
MIN_ACCURACY_RATIO = 0.5
"""Accuracy divided by that of the source model. A lower ratio is a collapse."""

LabelEntropies: TypeAlias = Mapping[str, Mapping[str, float]]
"""Normalised entropy, 0 to 1, of the "served" and of the "true" labels, by domain."""


@dataclass(slots=True)
class LabelHistograms:
    """Counts of the served and of the true labels, by domain."""

    served: dict[str, Tensor] = field(default_factory=dict)  # each (classes,)
    true: dict[str, Tensor] = field(default_factory=dict)

    def add(self, domain: str, labels: Tensor, truth: Tensor, *, n_classes: int) -> None:
        """Add a batch."""
        for counts, batch in ((self.served, labels), (self.true, truth)):
            new = torch.bincount(batch.cpu(), minlength=n_classes)
            counts[domain] = counts[domain] + new if domain in counts else new

    @property
    def entropies(self) -> dict[str, dict[str, float]]:
        """Normalised entropies by domain, as in `LabelEntropies`."""
        return {
            domain: {
                "served": normalised_entropy(counts),
                "true": normalised_entropy(self.true[domain]),
            }
            for domain, counts in self.served.items()
        }

    def state_dict(self) -> State:
        """Return equally long lists. Domain names may hold any character, so they are not keys."""
        domains = list(self.served)
        return {
            "domains": domains,
            "served": [self.served[domain] for domain in domains],
            "true": [self.true[domain] for domain in domains],
        }

    @classmethod
    def from_state_dict(cls, state: State) -> Self:
        """Restore a saved state."""
        names = state["domains"]
        return cls(
            dict(zip(names, state["served"], strict=True)),
            dict(zip(names, state["true"], strict=True)),
        )


def normalised_entropy(counts: Tensor) -> float:
    """Return the entropy of a histogram divided by the largest possible entropy, 0 to 1."""
    shares = counts.double() / counts.sum().clamp_min(1)
    return float(-torch.xlogy(shares, shares).sum()) / log(max(2, len(counts)))


def find_low_entropy_domains(entropies: LabelEntropies) -> list[str]:
    """Return the domains in which far fewer classes are served than occur."""
    return [
        domain
        for domain, entropy in entropies.items()
        if entropy["served"] < MIN_ENTROPY_RATIO * entropy["true"]
    ]


def find_low_accuracy_domains(
    accuracy: Mapping[str, float], source: Mapping[str, float]
) -> list[str]:
    """Return the domains in which the accuracy is below half of the source model's."""
    return [
        domain
        for domain, percent in accuracy.items()
        if domain in source and percent < MIN_ACCURACY_RATIO * source[domain]
    ]


class DeviceTimer:
    """Measure seconds between `start` and `stop`. Both wait for the device to finish."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = 0.0

    def start(self) -> None:
        """Start the measurement."""
        self._synchronise()
        self._started = perf_counter()

    def stop(self) -> float:
        """Return the seconds since the start."""
        self._synchronise()
        return perf_counter() - self._started

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak memory on a GPU. On a CPU it cannot be reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Accuracy in percent on the clean counterpart of a stream."""

    n_samples: int
    before: float
    """Accuracy of the source model."""
    after: float
    """Accuracy of the model at the end of the stream."""

    @property
    def drop(self) -> float:
        """Lost percentage points; negative if accuracy has risen."""
        return self.before - self.after
