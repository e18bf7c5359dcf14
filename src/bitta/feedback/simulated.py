"""Simulated annotators: verdicts or full labels, with errors, delays and absences."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from bitta.config import require, whole
from bitta.errors import FeedbackError, InputError, SettingError
from bitta.feedback.base import FeedbackSource
from bitta.feedback.human import Human
from bitta.feedback.log import Recording
from bitta.seeding import generator
from bitta.types import Answer, Query, State


class Annotator(ABC):
    """Answers each question from the label at its place in the stream.

    `delay` is how many batches late an answer comes; with `answer_every` n only the questions of
    every n-th batch are answered at all.
    """

    def __init__(self, truth: Any, *, delay: int, answer_every: int, seed: int) -> None:
        delay, answer_every = whole("delay", delay), whole("answer_every", answer_every)
        require(delay >= 0, "delay", delay, "0 or more batches")
        require(answer_every >= 1, "answer_every", answer_every, "1 or more")
        self.truth = labels_of(truth)
        self.delay, self.answer_every = delay, answer_every
        self.seed = whole("seed", seed)
        self._batches = 0
        self._next_id = 0
        self._waiting: list[tuple[int, Query]] = []

    @abstractmethod
    def respond(self, query: Query, truth: int) -> Answer:
        """The answer to one question, by the label that is right; slips are drawn by its id."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, float]:
        """Whatever decides the answers, besides the truth."""

    def ask(self, queries: Sequence[Query]) -> None:
        """Queue questions for the batch in which they will be answered."""
        if any(query.id < self._next_id for query in queries):
            raise FeedbackError(
                "this annotator has answered another session's questions; make one per session."
            )
        self._next_id = max((query.id + 1 for query in queries), default=self._next_id)
        if self._batches % self.answer_every == 0:
            self._waiting += [(self._batches + self.delay, query) for query in queries]

    def collect(self) -> list[Answer]:
        """Answer what is due."""
        due = [query for when, query in self._waiting if when <= self._batches]
        self._waiting = [(when, query) for when, query in self._waiting if when > self._batches]
        self._batches += 1
        return [self.respond(query, true_label(self.truth, query)) for query in due]

    def state_dict(self) -> State:
        """What waits, without the truth: whoever resumes brings it again."""
        return {
            "settings": self.settings,
            "batches": self._batches,
            "next_id": self._next_id,
            "waiting": [{"when": when, "query": q.state_dict()} for when, q in self._waiting],
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        if state["settings"] != self.settings:
            raise InputError(
                f"the annotator was saved with {state['settings']}, but is now {self.settings}; "
                "give the same settings."
            )
        self._batches = state["batches"]
        self._next_id = state["next_id"]
        self._waiting = [(item["when"], Query(**item["query"])) for item in state["waiting"]]


def labels_of(truth: Any) -> Tensor:
    """One label per sample of the stream, on the CPU."""
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
    return labels


def true_label(truth: Tensor, query: Query) -> int:
    """The label at the place of a question."""
    if query.position >= len(truth):
        raise InputError(
            f"the stream has reached sample {query.position}, but truth holds "
            f"{len(truth)} labels; give one label per sample."
        )
    return int(truth[query.position])


class Simulated(Annotator):
    """Judge each question against the label at its place in the stream.

    `flip` is the probability of a wrong verdict, `delay` how many batches late an answer comes,
    `answer_every` n that only the questions of every n-th batch are answered at all.
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
        """One bit, the wrong one now and then."""
        slips = torch.rand((), generator=generator(self.seed, "flip", query.id)).item() < self.flip
        return Answer(query, (query.label == truth) != slips)

    @property
    def settings(self) -> dict[str, float]:
        """Whatever decides the answers, besides the truth."""
        names = ("flip", "delay", "answer_every", "seed")
        return {name: getattr(self, name) for name in names}


class Labels(Annotator):
    """Name the class of each sample asked about; a verdict on the label shown comes with it.

    With probability `error` the class named is a wrong one, each as likely as the others: a model
    as the annotator, as in the paper's comparison with GPT-4o, is `error=0.4`. `delay` and
    `answer_every` are those of `Simulated`.
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
        n_classes = whole("n_classes", n_classes)
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
        """The class, and whether it is the one shown."""
        named = self._named(query, truth)
        return Answer(query, query.label == named, named)

    def _named(self, query: Query, truth: int) -> int:
        chance = generator(self.seed, "label", query.id)
        if torch.rand((), generator=chance).item() >= self.error:
            return truth
        # One to all but one places further on: every other class, each as likely.
        away = 1 + int(torch.randint(self.n_classes - 1, (), generator=chance))
        return (truth + away) % self.n_classes

    @property
    def settings(self) -> dict[str, float]:
        """Whatever decides the answers, besides the truth."""
        names = ("n_classes", "error", "delay", "answer_every", "seed")
        return {name: getattr(self, name) for name in names}


class Panel:
    """Each question goes to one of the sources, in turn; who answered is not told."""

    def __init__(self, sources: Sequence[FeedbackSource], names: Sequence[str] = ()) -> None:
        self.sources = tuple(sources)
        self.names = tuple(names) or tuple(str(place + 1) for place in range(len(self.sources)))
        if not self.sources or len(self.names) != len(self.sources):
            raise SettingError(
                f"a panel of {len(self.sources)} sources with {len(self.names)} names was given; "
                "at least one source, and one name for each, are needed."
            )
        if len({id(source) for source in self.sources}) < len(self.sources):
            raise SettingError(
                "a panel holds the same source twice, which would count each batch twice; make one "
                "for each place."
            )
        if any(_waits_for_a_person(source) for source in self.sources):
            raise SettingError(
                "a panel cannot hold Human, whose questions nobody could tell from those of the "
                "others; give a person a session's whole attention, or use simulated sources."
            )

    def name_for(self, query: Query) -> str:
        """Who is asked this question."""
        return self.names[query.id % len(self.names)]

    def ask(self, queries: Sequence[Query]) -> None:
        """Deal questions out by their ids."""
        n = len(self.sources)
        for place, source in enumerate(self.sources):
            source.ask([query for query in queries if query.id % n == place])

    def collect(self) -> list[Answer]:
        """Whatever any of them has answered."""
        return [answer for source in self.sources for answer in source.collect()]

    def state_dict(self) -> State:
        """That of each."""
        return {
            "sources": [
                {"kind": type(source).__name__, "state": source.state_dict()}
                for source in self.sources
            ]
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        kinds = [type(source).__name__ for source in self.sources]
        saved = [item["kind"] for item in state["sources"]]
        if saved != kinds:
            raise InputError(
                f"the panel was saved with {', '.join(saved)}, but is now {', '.join(kinds)}; "
                "give the same sources."
            )
        for source, item in zip(self.sources, state["sources"], strict=True):
            source.load_state_dict(item["state"])


def _waits_for_a_person(source: FeedbackSource) -> bool:
    return isinstance(source, Human) or (
        isinstance(source, Recording) and _waits_for_a_person(source.source)
    )
