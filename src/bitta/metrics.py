"""Metrics of a run: agreement, calibration, collapse, forgetting, time, memory and scaling."""

import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import log
from time import perf_counter
from typing import Any, Self, TypeAlias

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


SCALING_AXES = ("batch", "memory", "n_classes", "passes")
"""Fields of a case whose effect on the run time is measured."""
DOES_NOT_FIT = "does not fit"
"""Value of `SpeedMeasurement.failure` for a case that runs out of memory."""


@dataclass(frozen=True, kw_only=True)
class SpeedCase:
    """Case to time: a method on a model, with all sizes."""

    method: str
    model: str
    """Name of the architecture. Its weights are random."""
    n_classes: int
    size: int
    """Width and height of the images, in pixels."""
    batch: int
    n_queries: int
    """Questions per batch. All of them are answered."""
    memory: int
    """Capacity of each of the memories for correct and for incorrect samples."""
    passes: int
    """Number N of MC-dropout passes."""
    epochs: int
    """Number E of updates on each batch; 0 for a method without updates."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method that differ from its defaults."""


@dataclass(frozen=True, kw_only=True)
class SpeedMeasurement:
    """Measurement of one case on one machine. Times are in milliseconds, after a device sync."""

    case: SpeedCase
    execution: str = ""
    """Execution path as text, such as "eager, float32, channels_last"."""
    failure: str = ""
    """Reason why nothing was measured; empty on success."""
    n_timed: int = 0
    ms: float = 0.0
    """Median time of serving, selecting and learning over the timed batches."""
    ms_p25: float = 0.0
    ms_p75: float = 0.0
    serve_ms: float = 0.0
    """Median time of serving alone, without questions and learning."""
    peak_memory: int = 0
    """Peak bytes, with warm-up and capture: tensors on a GPU, the whole process on a CPU."""
    timed_peak_memory: int = 0
    """Peak bytes over the timed batches. CUDA graphs allocate their memory earlier, at capture."""
    reserved_memory: int = 0
    """Bytes that the allocator reserved on a GPU, with CUDA graphs; 0 on a CPU."""
    forwards: int = 0
    """Samples times forward passes, per batch."""
    backwards: int = 0
    flops: int = 0
    """Operations of convolutions and matrix products per batch, counted on the eager path."""
    matmul_share: float = 0.0
    """Rate of these operations divided by the measured matmul rate of the machine."""

    @property
    def images_per_second(self) -> float:
        """Samples per second, including selection and learning."""
        return 1000 * self.case.batch / self.ms if self.ms else 0.0

    def as_table(self) -> dict[str, Any]:
        """Return plain values for a JSON file."""
        return {**asdict(self), "images_per_second": self.images_per_second}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Restore the values returned by `as_table`."""
        values = {name: value for name, value in table.items() if name != "images_per_second"}
        return cls(**{**values, "case": SpeedCase(**table["case"])})


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """Measurements of one method whose cases differ along one axis only."""

    axis: str
    method: str
    measurements: Sequence[SpeedMeasurement]  # ascending along the axis

    @property
    def points(self) -> list[tuple[int, float]]:
        """Pairs of the value on the axis and the time in milliseconds."""
        return [(getattr(m.case, self.axis), m.ms) for m in self.measurements]

    @property
    def exponent(self) -> float:
        """Exponent p of ms ~ axis^p, fitted to all points."""
        return fit_growth_exponent(self.points)

    @property
    def last_exponent(self) -> float:
        """Exponent p between the two largest points, where fixed costs matter least."""
        return fit_growth_exponent(self.points[-2:])


def fit_growth_exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through (log x, log y)."""
    logs = [(log(x), log(y)) for x, y in points]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    variance = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / variance


def find_scaling_curves(
    measurements: Sequence[SpeedMeasurement], *, min_cases: int = 3
) -> list[ScalingCurve]:
    """Return a curve for each group of cases that differ along one axis only.

    Groups with fewer than `min_cases` cases, or fewer than two measured ones, are left out.
    """
    curves = []
    for axis in SCALING_AXES:
        for group in _group_along_axis(measurements, axis):
            measured = [m for m in group if not m.failure]
            if len(group) >= min_cases and len(measured) > 1:
                curves.append(ScalingCurve(axis, group[0].case.method, measured))
    return curves


def _group_along_axis(
    measurements: Sequence[SpeedMeasurement], axis: str
) -> list[list[SpeedMeasurement]]:
    groups: dict[str, list[SpeedMeasurement]] = {}
    for measurement in sorted(measurements, key=lambda m: int(getattr(m.case, axis))):
        other_fields = {**asdict(measurement.case), axis: None}
        groups.setdefault(repr(other_fields), []).append(measurement)
    return sorted(groups.values(), key=lambda group: measurements.index(group[0]))
