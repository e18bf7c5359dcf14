"""The adapter contract as a public suite, and small models to try methods on."""

from bitta.testing.contract import CHECKS, Subject, check_method
from bitta.testing.models import NORMS, Norm, toy_classifier

__all__ = ["CHECKS", "NORMS", "Norm", "Subject", "check_method", "toy_classifier"]
