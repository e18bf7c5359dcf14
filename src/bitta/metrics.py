"""Measures of a run: agreement, calibration, collapse, forgetting, time and memory."""

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
    """Samples on which the policy was computed, and on how many it agreed."""

    n_measured: int = 0
    n_agreeing: int = 0
    n_agreeing_correct: int = 0
    n_correct: int = 0
    """Of those measured."""

    @classmethod
    def of(cls, labels: Tensor, correct: Tensor, policy: Tensor | None) -> Self:
        """Of one batch; none where nobody asked for the policy, (batch, classes)."""
        if policy is None:
            return cls()
        agreeing = (policy.argmax(-1) == labels).cpu()
        correct = correct.cpu()
        return cls(
            len(labels), int(agreeing.sum()), int((agreeing & correct).sum()), int(correct.sum())
        )

    @property
    def rate(self) -> float | None:
        """Percent of samples on which both agree."""
        return _percent(self.n_agreeing, self.n_measured)

    @property
    def accuracy_agreeing(self) -> float | None:
        """Percent right where both agree."""
        return _percent(self.n_agreeing_correct, self.n_agreeing)

    @property
    def accuracy_disagreeing(self) -> float | None:
        """Percent right where they do not."""
        right = self.n_correct - self.n_agreeing_correct
        return _percent(right, self.n_measured - self.n_agreeing)


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


WORST = 2.0
"""All probability on a wrong class."""


@torch.no_grad()
def brier_sum(probs: Tensor, truth: Tensor) -> float:
    """Sum over samples of Σ (p - one-hot)², 0 to 2 each; what is no number counts as the worst."""
    wanted = F.one_hot(truth.to(probs.device), probs.shape[-1])
    squares = (probs.double() - wanted).square().sum(-1)
    return float(squares.nan_to_num(WORST, posinf=WORST).sum())


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


LEAST_ENTROPY = 0.3
"""Of labels served, as a part of that of the true ones, below which a model has collapsed."""
LEAST_ACCURACY = 0.5
"""As a part of the source model's, below which a model has collapsed."""

Spreads: TypeAlias = Mapping[str, Mapping[str, float]]
"""By domain: the entropy of the labels "served" and of the "true" ones, 0 to 1."""


@dataclass(slots=True)
class Histograms:
    """How often each class was served, and was right, in each domain."""

    served: dict[str, Tensor] = field(default_factory=dict)  # each (classes,)
    true: dict[str, Tensor] = field(default_factory=dict)

    def add(self, domain: str, labels: Tensor, truth: Tensor, *, n_classes: int) -> None:
        """Take a batch in."""
        for counts, seen in ((self.served, labels), (self.true, truth)):
            new = torch.bincount(seen.cpu(), minlength=n_classes)
            counts[domain] = counts[domain] + new if domain in counts else new

    @property
    def spreads(self) -> dict[str, dict[str, float]]:
        """The normalised entropies, which is all that is kept of them."""
        return {
            domain: {"served": spread(counts), "true": spread(self.true[domain])}
            for domain, counts in self.served.items()
        }

    def state_dict(self) -> State:
        """Both, as lists: names of domains may hold anything."""
        domains = list(self.served)
        return {
            "domains": domains,
            "served": [self.served[domain] for domain in domains],
            "true": [self.true[domain] for domain in domains],
        }

    @classmethod
    def of(cls, state: State) -> Self:
        """From a saved state."""
        names = state["domains"]
        return cls(
            dict(zip(names, state["served"], strict=True)),
            dict(zip(names, state["true"], strict=True)),
        )


def spread(counts: Tensor) -> float:
    """Entropy of a histogram as a part of the most there could be: 1 if all classes are as many."""
    shares = counts.double() / counts.sum().clamp_min(1)
    return float(-torch.xlogy(shares, shares).sum()) / log(max(2, len(counts)))


def narrowed(spreads: Spreads) -> list[str]:
    """Domains in which far fewer classes are served than there are."""
    return [domain for domain, of in spreads.items() if of["served"] < LEAST_ENTROPY * of["true"]]


def fallen_behind(accuracy: Mapping[str, float], source: Mapping[str, float]) -> list[str]:
    """Domains in which accuracy is less than half of the source model's."""
    return [
        domain
        for domain, percent in accuracy.items()
        if domain in source and percent < LEAST_ACCURACY * source[domain]
    ]


class Stopwatch:
    """Seconds between `start` and `stop`, both taken when the device has nothing left to do."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = 0.0

    def start(self) -> None:
        """Begin."""
        self._synchronise()
        self._started = perf_counter()

    def stop(self) -> float:
        """Seconds since the start."""
        self._synchronise()
        return perf_counter() - self._started

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def peak_memory(device: torch.device) -> int:
    """Most bytes held at once: tensors on a GPU, the whole process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_memory(device: torch.device) -> None:
    """Forget earlier work, where that is possible: on a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Accuracy in percent on the clean counterpart of a stream."""

    n_samples: int
    before: float
    """Of the source model."""
    after: float
    """Of what is served once the stream is over."""

    @property
    def drop(self) -> float:
        """Points that were lost; below 0 where some were gained."""
        return self.before - self.after


AXES = ("batch", "memory", "n_classes", "passes")
"""What a case can be made larger by."""
DOES_NOT_FIT = "does not fit"
"""Why a case that runs out of memory was not measured."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is timed: a method on a model, and how much there is of everything."""

    method: str
    model: str
    """Name of the architecture; its weights are random."""
    n_classes: int
    size: int
    """Side of the images, in pixels."""
    batch: int
    n_queries: int
    """Questions per batch, all of them answered."""
    memory: int
    """Capacity of each memory: of samples judged correct, and of those judged incorrect."""
    passes: int
    """Number N of MC-dropout passes."""
    epochs: int
    """Number E of steps on each batch; 0 for a method that takes none."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the method, where they are not its defaults."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One case on one machine; times are in milliseconds, the device caught up."""

    case: Case
    execution: str = ""
    """The path that ran."""
    failure: str = ""
    """Why nothing was measured; empty where something was."""
    n_timed: int = 0
    ms: float = 0.0
    """Median over the timed batches of serving, selecting and learning."""
    ms_p25: float = 0.0
    ms_p75: float = 0.0
    serve_ms: float = 0.0
    """Median of serving alone, while no question and no learning is due."""
    peak_memory: int = 0
    """Bytes, warm-up and capture included: of tensors on a GPU, of the whole process on a CPU."""
    timed_peak_memory: int = 0
    """The same over the timed batches; what a graph holds was allocated at its capture."""
    reserved_memory: int = 0
    """Bytes the allocator took from a GPU, graphs included; 0 on a CPU."""
    forwards: int = 0
    """Samples times passes through the model, per batch."""
    backwards: int = 0
    flops: int = 0
    """Operations of convolutions and matrix products per batch, counted on the plain path."""
    matmul_share: float = 0.0
    """What part of the machine's own matmul rate they are carried out at."""

    @property
    def images_per_second(self) -> float:
        """Samples served, selected from and learned from in a second."""
        return 1000 * self.case.batch / self.ms if self.ms else 0.0

    def as_table(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "images_per_second": self.images_per_second}

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """From plain values."""
        values = {name: value for name, value in table.items() if name != "images_per_second"}
        return cls(**{**values, "case": Case(**table["case"])})


@dataclass(frozen=True, slots=True)
class Curve:
    """Measurements of one method that differ along one axis alone."""

    axis: str
    method: str
    measurements: Sequence[Measurement]  # by place on the axis

    @property
    def points(self) -> list[tuple[int, float]]:
        """(place, ms)."""
        return [(getattr(m.case, self.axis), m.ms) for m in self.measurements]

    @property
    def exponent(self) -> float:
        """The p of ms ~ axis^p over all points."""
        return growth(self.points)

    @property
    def last_exponent(self) -> float:
        """The p between the two largest, where fixed costs weigh least."""
        return growth(self.points[-2:])


def growth(points: Sequence[tuple[float, float]]) -> float:
    """Slope of the least-squares line through (log x, log y)."""
    logs = [(log(x), log(y)) for x, y in points]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread


def curves_of(measurements: Sequence[Measurement], *, at_least: int = 3) -> list[Curve]:
    """Every line of so many cases along one axis, as far as at least two were measured."""
    curves = []
    for axis in AXES:
        for line in _lines(measurements, axis):
            measured = [m for m in line if not m.failure]
            if len(line) >= at_least and len(measured) > 1:
                curves.append(Curve(axis, line[0].case.method, measured))
    return curves


def _lines(measurements: Sequence[Measurement], axis: str) -> list[list[Measurement]]:
    lines: dict[str, list[Measurement]] = {}
    for measurement in sorted(measurements, key=lambda m: int(getattr(m.case, axis))):
        elsewhere = {**asdict(measurement.case), axis: None}
        lines.setdefault(repr(elsewhere), []).append(measurement)
    return sorted(lines.values(), key=lambda line: measurements.index(line[0]))
