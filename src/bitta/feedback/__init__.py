"""Who answers: a person, the truth playing one, a function, several of them, or a log."""

from bitta.feedback.annotator import Annotator
from bitta.feedback.human import Human
from bitta.feedback.judge import Judge
from bitta.feedback.labels import Labels
from bitta.feedback.panel import Panel
from bitta.feedback.recorded import Recorded
from bitta.feedback.recording import Recording
from bitta.feedback.simulated import Simulated
from bitta.feedback.source import FeedbackSource

__all__ = [
    "Annotator",
    "FeedbackSource",
    "Human",
    "Judge",
    "Labels",
    "Panel",
    "Recorded",
    "Recording",
    "Simulated",
]
