"""The adapter contract as a public suite, and small models to try methods on."""

from bitta.testing.contract import ABOUT_ANSWERS, CHECKS, check_method
from bitta.testing.models import NORMS, Norm, toy_classifier
from bitta.testing.sources import needed_settings, toy_statistics
from bitta.testing.subject import Subject

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
