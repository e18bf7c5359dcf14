"""Simulated annotators: verdicts or full labels, with errors, delays and skipped batches."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from bitta.config_base import check_integer, require
from bitta.errors import FeedbackError, InputError, SettingError
from bitta.feedback.base import FeedbackSource
from bitta.feedback.human import Human
from bitta.feedback.log import FeedbackRecorder
from bitta.seeding import generator
from bitta.types import Answer, Query, State


class GroundTruthAnnotator(ABC):
    """Base class of annotators that answer from the true label at the position of a question.

    An answer comes `delay` batches late. Only questions of every `answer_every`-th batch are
    answered at all.
    """

    def __init__(self, truth: Any, *, delay: int, answer_every: int, seed: int) -> None:
        delay, answer_every = (
            check_integer("delay", delay),
            check_integer("answer_every", answer_every),
        )
        require(delay >= 0, "delay", delay, "0 or more batches")
        require(answer_every >= 1, "answer_every", answer_every, "1 or more")
        self.truth = parse_truth(truth)
        self.delay, self.answer_every = delay, answer_every
        self.seed = check_integer("seed", seed)
        self._n_batches = 0
        self._next_id = 0
        self._waiting: list[tuple[int, Query]] = []
        """Questions with the number of the batch in which they are answered."""

    @abstractmethod
    def respond(self, query: Query, truth: int) -> Answer:
        """Return the answer to a question. Random errors are keyed by the id of the query."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, float]:
        """Settings that determine the answers, besides the truth."""

    def ask(self, queries: Sequence[Query]) -> None:
        """Queue questions until the batch in which they are answered."""
        if any(query.id < self._next_id for query in queries):
            raise FeedbackError(
                "this annotator has answered another session's questions; make one per session."
            )
        for n_classes in {query.n_classes for query in queries} - {None}:
            self._check_classes(n_classes)
        self._next_id = max((query.id + 1 for query in queries), default=self._next_id)
        if self._n_batches % self.answer_every == 0:
            self._waiting += [(self._n_batches + self.delay, query) for query in queries]

    def _check_classes(self, n_classes: int | None) -> None:
        highest = int(self.truth.max()) if len(self.truth) else 0
        if n_classes is not None and highest >= n_classes:
            raise InputError(
                f"truth holds the label {highest}, but the model has {n_classes} classes (0 to "
                f"{n_classes - 1}); give the class numbers of the model."
            )

    def collect(self) -> list[Answer]:
        """Answer the questions that are due in this batch."""
        due = [query for due_batch, query in self._waiting if due_batch <= self._n_batches]
        self._waiting = [item for item in self._waiting if item[0] > self._n_batches]
        self._n_batches += 1
        return [self.respond(query, get_true_label(self.truth, query)) for query in due]

    def state_dict(self) -> State:
        """Return the queued questions and the counters, without the truth."""
        return {
            "settings": self.settings,
            "batches": self._n_batches,
            "next_id": self._next_id,
            "waiting": [
                {"due_batch": due_batch, "query": query.state_dict()}
                for due_batch, query in self._waiting
            ],
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        if state["settings"] != self.settings:
            raise InputError(
                f"the annotator was saved with {state['settings']}, but is now {self.settings}; "
                "give the same settings."
            )
        self._n_batches = state["batches"]
        self._next_id = state["next_id"]
        self._waiting = [(item["due_batch"], Query(**item["query"])) for item in state["waiting"]]


def parse_truth(truth: Any) -> Tensor:
    """Return the labels as a tensor on the CPU, one per sample of the stream."""
    try:
        labels = torch.as_tensor(truth).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"truth cannot be read as labels ({error}); give one whole number per sample."
        ) from None
    if labels.dim() != 1:
        raise InputError(
            f"truth has shape {tuple(labels.shape)}; one label per sample of the stream, "
            "in its order, is needed."
        )
    if not torch.equal(labels, labels.long()):
        raise InputError("truth holds labels that are not whole numbers; give class numbers.")
    if len(labels) and labels.min() < 0:
        raise InputError(
            f"truth holds the label {int(labels.min())}; give class numbers of 0 or more."
        )
    return labels.long()


def get_true_label(truth: Tensor, query: Query) -> int:
    """Return the true label at the position of a question."""
    if query.position >= len(truth):
        raise InputError(
            f"the stream has reached sample {query.position}, but truth holds "
            f"{len(truth)} labels; give one label per sample."
        )
    return int(truth[query.position])


class Simulated(GroundTruthAnnotator):
    """Annotator who judges the served label against the true label.

    A verdict is wrong with probability `flip`. It comes `delay` batches late, and only questions of
    every `answer_every`-th batch are answered at all.
    """

    def __init__(
        self,
        truth: Any,
        *,
        flip: float = 0.0,
        delay: int = 0,
        answer_every: int = 1,
        seed: int = 0,
    ) -> None:
        require(isinstance(flip, Real), "flip", flip, "0 to 1")
        require(0 <= flip <= 1, "flip", flip, "0 to 1")
        super().__init__(truth, delay=delay, answer_every=answer_every, seed=seed)
        self.flip = float(flip)

    def respond(self, query: Query, truth: int) -> Answer:
        """Return the verdict, inverted with probability `flip`."""
        rng = generator(self.seed, "flip", query.id)
        is_flipped = torch.rand((), generator=rng).item() < self.flip
        return Answer(query, (query.shown_label == truth) != is_flipped)

    @property
    def settings(self) -> dict[str, float]:
        """Settings that determine the answers, besides the truth."""
        names = ("flip", "delay", "answer_every", "seed")
        return {name: getattr(self, name) for name in names}


class SimulatedLabels(GroundTruthAnnotator):
    """Annotator who names the class of a sample, and so judges the served label too.

    With probability `error` a wrong class is named; all wrong classes are equally likely.
    `error=0.4` simulates a model as annotator, as in the BiTTA paper's comparison with GPT-4o.
    `delay` and `answer_every` are those of `Simulated`.
    """

    def __init__(
        self,
        truth: Any,
        n_classes: int,
        *,
        error: float = 0.0,
        delay: int = 0,
        answer_every: int = 1,
        seed: int = 0,
    ) -> None:
        n_classes = check_integer("n_classes", n_classes)
        require(n_classes >= 2, "n_classes", n_classes, "2 or more")
        require(isinstance(error, Real), "error", error, "0 to 1")
        require(0 <= error <= 1, "error", error, "0 to 1")
        super().__init__(truth, delay=delay, answer_every=answer_every, seed=seed)
        if len(self.truth) and not 0 <= int(self.truth.min()) <= int(self.truth.max()) < n_classes:
            raise InputError(
                f"truth goes from {int(self.truth.min())} to {int(self.truth.max())}, but there "
                f"are {n_classes} classes (0 to {n_classes - 1}); give the right n_classes."
            )
        self.n_classes, self.error = n_classes, float(error)

    def respond(self, query: Query, truth: int) -> Answer:
        """Return the named class, and the verdict that follows from it."""
        named = self._name_class(query, truth)
        return Answer(query, query.shown_label == named, named)

    def _name_class(self, query: Query, truth: int) -> int:
        rng = generator(self.seed, "label", query.id)
        if torch.rand((), generator=rng).item() >= self.error:
            return truth
        # An offset of 1 to n_classes - 1 reaches every wrong class with equal probability.
        offset = 1 + int(torch.randint(self.n_classes - 1, (), generator=rng))
        return (truth + offset) % self.n_classes

    @property
    def settings(self) -> dict[str, float]:
        """Settings that determine the answers, besides the truth."""
        names = ("n_classes", "error", "delay", "answer_every", "seed")
        return {name: getattr(self, name) for name in names}


class SimulatedPeople(GroundTruthAnnotator):
    """Annotator who errs as people did: each answer is that of a person drawn at random.

    `label_counts`, (samples, classes), says how many people gave each label to each sample of the
    stream. CIFAR-10H has such counts for the test images of CIFAR-10. The person drawn finds the
    label shown correct if it is the one that they gave. `delay` and `answer_every` are those of
    `Simulated`.
    """

    def __init__(
        self, truth: Any, label_counts: Any, *, delay: int = 0, answer_every: int = 1, seed: int = 0
    ) -> None:
        super().__init__(truth, delay=delay, answer_every=answer_every, seed=seed)
        self.label_counts = torch.as_tensor(label_counts).double()
        if self.label_counts.dim() != 2 or len(self.label_counts) != len(self.truth):
            raise InputError(
                f"label_counts has shape {tuple(self.label_counts.shape)}, but truth holds "
                f"{len(self.truth)} labels; give one row per sample and one column per class."
            )
        if (self.label_counts < 0).any() or not (self.label_counts.sum(1) > 0).all():
            raise InputError(
                "label_counts holds a row without people, or a number below 0; give the number of "
                "people for each sample and class."
            )

    def respond(self, query: Query, truth: int) -> Answer:  # noqa: ARG002
        """Return the verdict of a person drawn at random."""
        counts = self.label_counts[query.position]
        if query.shown_label >= len(counts):
            raise InputError(
                f"a question is about class {query.shown_label}, but label_counts has "
                f"{len(counts)} columns; give one column per class of the model."
            )
        rng = generator(self.seed, "person", query.id)
        draw = torch.rand((), generator=rng, dtype=torch.float64) * counts.sum()
        named = int(torch.searchsorted(counts.cumsum(0), draw, right=True))
        return Answer(query, query.shown_label == named)

    @property
    def settings(self) -> dict[str, float]:
        """Settings that determine the answers, besides the truth and the counts."""
        return {name: getattr(self, name) for name in ("delay", "answer_every", "seed")}


class Panel:
    """Several feedback sources that answer the questions in turn."""

    def __init__(self, members: Sequence[FeedbackSource], names: Sequence[str] = ()) -> None:
        self.members = tuple(members)
        self.names = tuple(names) or tuple(str(index + 1) for index in range(len(self.members)))
        if not self.members or len(self.names) != len(self.members):
            raise SettingError(
                f"a panel of {len(self.members)} sources with {len(self.names)} names was given; "
                "at least one source, and one name for each, are needed."
            )
        if len({id(member) for member in self.members}) < len(self.members):
            raise SettingError(
                "a panel holds the same source twice, which would count each batch twice; make one "
                "for each member."
            )
        if any(_is_human(member) for member in self.members):
            raise SettingError(
                "a panel cannot hold Human, because a person could not see which questions are "
                "theirs; use Human as the only source of a session, or use simulated sources."
            )

    def name_for(self, query: Query) -> str:
        """Return the name of the source that is asked this question."""
        return self.names[query.id % len(self.names)]

    def ask(self, queries: Sequence[Query]) -> None:
        """Distribute questions by their ids."""
        n_members = len(self.members)
        for index, member in enumerate(self.members):
            member.ask([query for query in queries if query.id % n_members == index])

    def collect(self) -> list[Answer]:
        """Return the answers of all sources."""
        return [answer for member in self.members for answer in member.collect()]

    def state_dict(self) -> State:
        """Return the state of each source."""
        return {
            "members": [
                {"kind": type(member).__name__, "state": member.state_dict()}
                for member in self.members
            ]
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        kinds = [type(member).__name__ for member in self.members]
        saved = [item["kind"] for item in state["members"]]
        if saved != kinds:
            raise InputError(
                f"the panel was saved with {', '.join(saved)}, but is now {', '.join(kinds)}; "
                "give the same sources."
            )
        for member, item in zip(self.members, state["members"], strict=True):
            member.load_state_dict(item["state"])


def _is_human(source: FeedbackSource) -> bool:
    return isinstance(source, Human) or (
        isinstance(source, FeedbackRecorder) and _is_human(source.feedback_source)
    )
