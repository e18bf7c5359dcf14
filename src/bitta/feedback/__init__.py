"""Who answers: a person, the truth playing one, a function, several of them, or a log."""

from bitta.feedback.base import FeedbackSource
from bitta.feedback.function import Judge
from bitta.feedback.human import Human
from bitta.feedback.log import Recorded, Recording
from bitta.feedback.simulated import Annotator, Labels, Panel, Simulated

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
