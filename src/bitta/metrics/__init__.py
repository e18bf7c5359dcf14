"""Measures of a run, from what was served and what it cost."""

from bitta.metrics.calibration import Reliability
from bitta.metrics.cost import Stopwatch, peak_memory, reset_peak_memory
from bitta.metrics.speed import DOES_NOT_FIT, Case, Curve, Measurement, curves_of, growth

__all__ = [
    "DOES_NOT_FIT",
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
