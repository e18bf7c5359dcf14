"""The adapter contract as a public suite, and small models to try methods on."""

from bitta.testing.contract import ABOUT_ANSWERS, CHECKS, Subject, check_method
from bitta.testing.toy_models import NORMS, Norm, needed_settings, toy_classifier, toy_statistics

__all__ = [
    "ABOUT_ANSWERS",
    "CHECKS",
    "NORMS",
    "Norm",
    "Subject",
    "check_method",
    "needed_settings",
    "toy_classifier",
    "toy_statistics",
]
