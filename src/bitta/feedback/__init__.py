"""Feedback sources: a person, simulated annotators, a function, a panel, or a recorded log."""

from bitta.feedback.base import AnswerCheck, FeedbackSource
from bitta.feedback.function import Judge
from bitta.feedback.human import Human
from bitta.feedback.log import FeedbackRecorder, FeedbackReplay
from bitta.feedback.simulated import (
    GroundTruthAnnotator,
    Panel,
    Simulated,
    SimulatedLabels,
    SimulatedPeople,
)

__all__ = [
    "AnswerCheck",
    "FeedbackRecorder",
    "FeedbackReplay",
    "FeedbackSource",
    "GroundTruthAnnotator",
    "Human",
    "Judge",
    "Panel",
    "Simulated",
    "SimulatedLabels",
    "SimulatedPeople",
]
