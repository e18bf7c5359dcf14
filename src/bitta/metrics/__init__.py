"""Measures of a run, from what was served and what it cost."""

from bitta.metrics.calibration import Reliability
from bitta.metrics.cost import Stopwatch, peak_memory, reset_peak_memory

__all__ = ["Reliability", "Stopwatch", "peak_memory", "reset_peak_memory"]
