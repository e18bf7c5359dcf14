"""Data types shared by streams, sessions, feedback sources and methods."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor

State: TypeAlias = dict[str, Any]
"""Saved state of an object: a tree of dicts, lists, tensors, numbers, strings and None."""
QueryReason: TypeAlias = Literal["uncertain", "audit", "paired_audit"]
"""Reason for a question. The sample is one of the most uncertain ones, was drawn at random, or was
drawn at random among those whose served label differs from the source model's label."""


def softmax(logits: Tensor) -> Tensor:
    """Return probabilities over the last dimension, at least in single precision."""
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def move_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a small CPU tensor to a device without waiting for the device.

    The tensor is pinned first: a copy from memory that is not pinned waits for the device.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Batch of a stream. Only metrics and simulated annotators may read `truth`."""

    inputs: Tensor  # (batch, ...)
    truth: Tensor  # (batch,)
    domain: str
    reset: bool = False
    """True if the model is reset to the source model before this batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Question to an annotator: is `shown_label` right for this input?"""

    id: int
    index: int
    """Row in the batch, or in the window, that the question is about."""
    served_label: int
    """Label that was served."""
    shown_label: int
    """Label that the question shows and the answer judges. It is the served label, or in a paired
    audit the source model's label with probability 1/2."""
    uncertainty: float
    input: Tensor = field(repr=False)
    step: int
    """Number of the batch in the session."""
    version: int
    """Version of the model that served the label: the number of times it had learned."""
    position: int
    """Position in the stream, counted in samples."""
    n_classes: int | None = None
    """Number of classes of the model."""
    reason: QueryReason = "uncertain"
    """Reason for the question. Answers to audits estimate the accuracy, answers to paired audits
    the difference in accuracy to the source model."""
    n_represented: float = 0.0
    """Number of samples that a paired audit stands for: those of its window whose served label
    differs from the source model's label, divided by the number of paired audits there."""

    def state_dict(self) -> State:
        """Return all fields as a tree."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Verdict on one query, and the class if the annotator names classes."""

    query: Query
    correct: bool
    label: int | None = None
    """Class named by an annotator who gives full labels."""

    @property
    def known_label(self) -> int | None:
        """True class if the answer reveals it: the named class, or the label judged correct."""
        return self.query.shown_label if self.correct and self.label is None else self.label


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Predictions served for a batch, and the questions about it."""

    labels: Tensor  # (batch,)
    probs: Tensor  # (batch, classes)
    confidence: Tensor  # (batch,)
    queries: tuple[Query, ...] = ()
    policy: Tensor | None = None  # (batch, classes)
    """Mean probabilities π of stochastic passes, if computed to choose the questions."""
    agreement: Tensor | None = None  # ()
    """Share of the candidates for a question on which π agrees with the served label."""

    @classmethod
    def from_logits(cls, logits: Tensor) -> Self:
        """Predict the most probable class."""
        probs = softmax(logits.detach())
        confidence, labels = probs.max(-1)
        return cls(labels, probs, confidence)

    def last_rows(self, n: int) -> Self:
        """Return the last n rows, without questions."""
        return type(self)(self.labels[-n:], self.probs[-n:], self.confidence[-n:])


@dataclass(frozen=True, slots=True, eq=False)
class JudgedSamples:
    """Samples with one kind of label: judged correct, judged incorrect, or only served.

    The number of samples may be 0.
    """

    inputs: Tensor  # (samples, ...)
    labels: Tensor  # (samples,) the labels that were judged or served
    sample_ids: Sequence[int] | None = None
    """Ids of the answered queries; None for samples without a question."""

    @classmethod
    def from_queries(cls, queries: Sequence[Query], labels: Sequence[int], *, like: Tensor) -> Self:
        """Stack the inputs of queries. `like` gives shape, type and device."""
        rows = [query.input.to(like) for query in queries]
        stacked = move_to_device(torch.tensor(labels, dtype=torch.long), like.device)
        inputs = torch.stack(rows) if rows else like[:0]
        return cls(inputs, stacked, [query.id for query in queries])


@dataclass(frozen=True, slots=True, eq=False)
class Feedback:
    """Answers, stacked by verdict. A full label counts as a label judged correct."""

    correct: JudgedSamples
    incorrect: JudgedSamples
    answers: tuple[Answer, ...] = ()
    """The answers themselves."""

    def __len__(self) -> int:
        return len(self.correct.labels) + len(self.incorrect.labels)

    @classmethod
    def from_answers(cls, answers: Iterable[Answer], *, like: Tensor) -> Self:
        """Stack answers for a method. `like` gives shape, type and device.

        The order is oldest batch first and descending row within a batch, as in the published
        code. It does not depend on the order in which the answers were given.
        """
        ordered = sorted(answers, key=lambda answer: (answer.query.step, -answer.query.index))
        known = [(a.query, a.known_label) for a in ordered if a.known_label is not None]
        wrong = [answer.query for answer in ordered if answer.known_label is None]
        return cls(
            JudgedSamples.from_queries(
                [query for query, _ in known], [label for _, label in known], like=like
            ),
            JudgedSamples.from_queries(wrong, [query.shown_label for query in wrong], like=like),
            tuple(ordered),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """Weighted terms of the objective, one value per update; empty if nothing was learned."""

    terms: Mapping[str, Tensor] = field(default_factory=dict)  # each (updates,)

    def mean(self) -> dict[str, float]:
        """Return the mean of each term over the updates that have it."""
        return {name: float(values.nanmean()) for name, values in self.terms.items()}
