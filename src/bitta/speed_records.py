"""Records of speed measurements, and the growth of time along an axis."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import log
from typing import Any, Self

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
