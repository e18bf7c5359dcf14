"""bitta: adapt a classifier while it serves, from one bit of feedback per question."""

import gc

_gc_was_enabled = gc.isenabled()
gc.disable()  # Collecting while torch is imported takes a tenth of the import time.

from bitta.errors import BittaError, FallbackWarning
from bitta.feedback import Human, Simulated
from bitta.session import Session
from bitta.types import Answer, Batch, Feedback, Losses, Prediction, Query
from bitta.version import __version__

if _gc_was_enabled:
    if not gc.get_freeze_count():  # Otherwise unfreeze would undo the caller's freeze.
        gc.freeze()
        gc.unfreeze()  # This moves all objects to the oldest generation.
    gc.enable()

__all__ = [
    "Answer",
    "Batch",
    "BittaError",
    "FallbackWarning",
    "Feedback",
    "Human",
    "Losses",
    "Prediction",
    "Query",
    "Session",
    "Simulated",
    "__version__",
]
