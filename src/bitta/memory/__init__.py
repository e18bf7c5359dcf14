"""What a method remembers of its stream."""

from bitta.memory.feedback import FeedbackMemory, Mixed
from bitta.memory.fifo import Fifo
from bitta.memory.window import Window

__all__ = ["FeedbackMemory", "Fifo", "Mixed", "Window"]
