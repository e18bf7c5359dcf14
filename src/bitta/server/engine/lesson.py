"""Answers as a learning step takes them in."""

from dataclasses import dataclass

from torch import Tensor

from bitta.seeding import derive_seed


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One answer, with the input that it is about."""

    input: Tensor
    label: int
    """The class that was served, which is the class judged."""
    correct: bool
    position: int
    """Place among all samples served."""
    sample_id: int
    """Id of the sample in the memories of the method."""
    overrules: bool = False
    """True if the memory may hold the opposite answer of the same person. That one is forgotten."""


def derive_sample_id(prediction_id: str, annotator_id: str) -> int:
    """Return the id of the sample that an answer adds to the memories.

    It is the same for all answers of one person to one prediction, because a later answer replaces
    the earlier one.
    """
    return derive_seed("sample", prediction_id, annotator_id)
