"""Measures of a run, from what was served and what it cost."""

from bitta.metrics.calibration import Reliability
from bitta.metrics.cost import Stopwatch, peak_memory, reset_peak_memory
from bitta.metrics.speed import Case, Curve, Measurement, curves_of, growth

__all__ = [
    "Case",
    "Curve",
    "Measurement",
    "Reliability",
    "Stopwatch",
    "curves_of",
    "growth",
    "peak_memory",
    "reset_peak_memory",
]
