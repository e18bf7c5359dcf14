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
    if not gc.get_freeze_count():  # Else somebody has frozen what is not ours to thaw.
        gc.freeze()
        gc.unfreeze()  # All of it is old now, and the next young collection passes it over.
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
