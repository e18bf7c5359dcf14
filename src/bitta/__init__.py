"""bitta: any classifier learns, while it serves, from one bit per question."""

from bitta.errors import BittaError, FallbackWarning
from bitta.feedback import Human, Simulated
from bitta.session import Session
from bitta.types import Answer, Batch, Feedback, Losses, Prediction, Query
from bitta.version import __version__

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
