"""What a step is told by one answer, and what the memory must forget for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bitta.memory import FifoMemory
from bitta.methods.base import Adapter, GradientAdapter
from bitta.methods.simatta import Anchors, Simatta


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One answer with what it is about, as a step takes it in."""

    input: Tensor
    label: int
    """The class that was served, which is the class judged."""
    correct: bool
    position: int
    """Place among all samples served."""
    overrules: bool = False
    """Whether the memory holds the opposite, which the same person said before."""


def overrule(lessons: Sequence[Lesson], adapter: Adapter[Any]) -> None:
    """Let the opposite of those that overrule it leave the memory, so that the last word counts."""
    for lesson in lessons:
        if lesson.overrules:
            if isinstance(adapter, Simatta):
                anchors = adapter.anchors
                _take_out(lesson, anchors, anchors.correct != lesson.correct)
            elif isinstance(adapter, GradientAdapter):
                memory = adapter.memory
                _take_out(lesson, memory.incorrect if lesson.correct else memory.correct)


def _take_out(lesson: Lesson, kept: FifoMemory | Anchors, among: Tensor | None = None) -> None:
    """One sample of its input and label, the oldest; none where it was evicted before."""
    if not len(kept):
        return
    rows = kept.state_dict()
    inputs, labels = rows["inputs"], rows["labels"]
    alike = (inputs == lesson.input.to(inputs)).flatten(1).all(1) & (labels == lesson.label)
    if among is not None:
        alike &= among
    if not alike.any():
        return
    left = torch.arange(len(labels), device=labels.device) != alike.int().argmax()
    kept.load_state_dict({name: row[left] for name, row in rows.items()}, device=inputs.device)
