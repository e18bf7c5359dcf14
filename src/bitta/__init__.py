"""bitta: any classifier learns, while it serves, from one bit per question."""

import gc

_collecting = gc.isenabled()
gc.disable()  # What torch imports stays: to look for garbage in it takes a tenth of the time.

from bitta.errors import BittaError, FallbackWarning
from bitta.feedback import Human, Simulated
from bitta.session import Session
from bitta.types import Answer, Batch, Feedback, Losses, Prediction, Query
from bitta.version import __version__

if _collecting:
    gc.freeze()
    gc.unfreeze()  # All of it is old now: whatever is made next does not set off a look at it.
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
