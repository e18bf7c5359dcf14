"""What a method remembers of its stream."""

from bitta.memory.anchors import Anchors
from bitta.memory.balanced import Balanced
from bitta.memory.confident import ConfidentMemory
from bitta.memory.feedback import FeedbackMemory, Mixed
from bitta.memory.fifo import Fifo
from bitta.memory.support import Support
from bitta.memory.timely import Insertion, TimelyMemory
from bitta.memory.window import Window

__all__ = [
    "Anchors",
    "Balanced",
    "ConfidentMemory",
    "FeedbackMemory",
    "Fifo",
    "Insertion",
    "Mixed",
    "Support",
    "TimelyMemory",
    "Window",
]
