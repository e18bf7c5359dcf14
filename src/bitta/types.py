"""The vocabulary: what flows between a stream, a session, a feedback source and a method."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

State: TypeAlias = dict[str, Any]
"""A tree of dicts, lists, tensors, numbers, strings and None: all that a part needs to go on."""


def softmax(logits: Tensor) -> Tensor:
    """Probabilities over the last dimension, in single precision at least."""
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A small tensor of the host on a device, without waiting for the device.

    Pinned: an unpinned copy may still be under way when the host's memory holds something else.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What a stream delivers; `truth` is for metrics and simulated annotators only."""

    inputs: Tensor  # (batch, ...)
    truth: Tensor  # (batch,)
    domain: str
    reset: bool = False
    """Whether the model goes back to its source before this batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A question put to a person: is `label` right for this input?"""

    id: int
    index: int
    """Row in its batch, or in the window that was full when it was asked."""
    label: int
    """The label shown, which is the label judged."""
    uncertainty: float
    input: Tensor = field(repr=False)
    step: int
    """Which batch of the session it comes from."""
    version: int
    """How often the model had learned when it gave the label."""
    position: int
    """Place in the stream, counted in samples."""
    audit: bool = False
    """Whether it was drawn at random, so that its answer tells the accuracy of all."""

    def state_dict(self) -> State:
        """Everything, as a tree."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One bit about one query; from an annotator who names classes, the class as well."""

    query: Query
    correct: bool
    label: int | None = None
    """The right class according to a full-label annotator."""

    @property
    def settled(self) -> int | None:
        """The label that is right, as far as the answer says which: named, or found correct."""
        return self.query.label if self.correct and self.label is None else self.label


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What is served for a batch, and the questions it raises."""

    labels: Tensor  # (batch,)
    probs: Tensor  # (batch, classes)
    confidence: Tensor  # (batch,)
    queries: tuple[Query, ...] = ()
    policy: Tensor | None = None  # (batch, classes)
    """π, where it was computed to choose the questions."""
    agreement: Tensor | None = None  # ()
    """Share of the samples chosen from for which π's first choice was served."""

    @classmethod
    def of(cls, logits: Tensor) -> Self:
        """Serve the most probable class."""
        probs = softmax(logits.detach())
        confidence, labels = probs.max(-1)
        return cls(labels, probs, confidence)

    def last(self, n: int) -> Self:
        """The last n rows, without their questions."""
        return type(self)(self.labels[-n:], self.probs[-n:], self.confidence[-n:])


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Samples on which the verdict was the same; may be none."""

    inputs: Tensor  # (answers, ...)
    labels: Tensor  # (answers,) the labels that were judged

    @classmethod
    def of(cls, queries: Sequence[Query], labels: Sequence[int], *, like: Tensor) -> Self:
        """Stack what was asked about; `like` gives shape and device where there is nothing."""
        rows = [query.input.to(like) for query in queries]
        stacked = moved(torch.tensor(labels, dtype=torch.long), like.device)
        return cls(torch.stack(rows) if rows else like[:0], stacked)


@dataclass(frozen=True, slots=True, eq=False)
class Feedback:
    """Answers, stacked by verdict; a full label is a label found correct."""

    correct: Judged
    incorrect: Judged

    def __len__(self) -> int:
        return len(self.correct.labels) + len(self.incorrect.labels)

    @classmethod
    def of(cls, answers: Iterable[Answer], *, like: Tensor) -> Self:
        """Stack answers for a method; `like` gives shape and device where there are none.

        Oldest batch first, descending row within a batch (the published code's order), so that
        what is learned does not depend on the order in which somebody clicked.
        """
        ordered = sorted(answers, key=lambda answer: (answer.query.step, -answer.query.index))
        right = [(answer.query, answer.settled) for answer in ordered if answer.settled is not None]
        wrong = [answer.query for answer in ordered if answer.settled is None]
        return cls(
            Judged.of([query for query, _ in right], [label for _, label in right], like=like),
            Judged.of(wrong, [query.label for query in wrong], like=like),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """Each weighted term of the objective, once per epoch; empty where nothing was learned."""

    terms: Mapping[str, Tensor] = field(default_factory=dict)  # each (epochs,)

    def mean(self) -> dict[str, float]:
        """Each term averaged over the epochs in which it was there."""
        return {name: float(values.nanmean()) for name, values in self.terms.items()}
