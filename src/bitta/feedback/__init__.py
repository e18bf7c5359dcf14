"""Who answers: a person, or the truth playing one."""

from bitta.feedback.human import Human
from bitta.feedback.simulated import Simulated
from bitta.feedback.source import FeedbackSource

__all__ = ["FeedbackSource", "Human", "Simulated"]
