"""Public test suite of the adapter contract, and small models to run methods on."""

from bitta.testing.contract import CHECKS, CHECKS_WITH_ANSWERS, Subject, check_method
from bitta.testing.toy_models import NORMS, Norm, needed_settings, toy_classifier, toy_statistics

__all__ = [
    "CHECKS",
    "CHECKS_WITH_ANSWERS",
    "NORMS",
    "Norm",
    "Subject",
    "check_method",
    "needed_settings",
    "toy_classifier",
    "toy_statistics",
]
