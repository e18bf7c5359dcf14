"""How fast a method ran, and how its time grows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import log
from typing import Any, Self

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
