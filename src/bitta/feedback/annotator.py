"""What annotators made of the truth share: they may be late, and they may be away."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bitta.config import require, whole
from bitta.errors import FeedbackError, InputError
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
