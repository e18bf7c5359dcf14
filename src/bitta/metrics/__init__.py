"""Measures of a run, from what was served and what it cost."""

from bitta.metrics.agreement import Agreement
from bitta.metrics.brier import brier_sum
from bitta.metrics.calibration import Reliability, confidence_sum
from bitta.metrics.collapse import Histograms, Spreads, fallen_behind, narrowed
from bitta.metrics.cost import Stopwatch, peak_memory, reset_peak_memory
from bitta.metrics.forgetting import Forgetting
from bitta.metrics.speed import DOES_NOT_FIT, Case, Curve, Measurement, curves_of, growth

__all__ = [
    "DOES_NOT_FIT",
    "Agreement",
    "Case",
    "Curve",
    "Forgetting",
    "Histograms",
    "Measurement",
    "Reliability",
    "Spreads",
    "Stopwatch",
    "brier_sum",
    "confidence_sum",
    "curves_of",
    "fallen_behind",
    "growth",
    "narrowed",
    "peak_memory",
    "reset_peak_memory",
]
