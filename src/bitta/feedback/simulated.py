"""An annotator made of the truth: may err, may be late, may be away."""

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch

from bitta.config import require, whole
from bitta.errors import FeedbackError, InputError
from bitta.seeding import generator
from bitta.types import Answer, Query, State


class Simulated:
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
        delay, answer_every = whole("delay", delay), whole("answer_every", answer_every)
        require(0 <= flip <= 1, "flip", flip, "0 to 1")
        require(delay >= 0, "delay", delay, "0 or more batches")
        require(answer_every >= 1, "answer_every", answer_every, "1 or more")
        try:
            self.truth = torch.as_tensor(truth).cpu()
        except (TypeError, ValueError) as error:
            raise InputError(f"truth cannot be read as labels ({error}).") from None
        if self.truth.dim() != 1:
            raise InputError(
                f"truth has shape {tuple(self.truth.shape)}; one label per sample of the stream, "
                "in its order, is needed."
            )
        self.flip, self.delay, self.answer_every, self.seed = flip, delay, answer_every, seed
        self._batches = 0
        self._next_id = 0
        self._waiting: list[tuple[int, Query]] = []

    def ask(self, queries: Sequence[Query]) -> None:
        """Queue questions for the batch in which they will be answered."""
        if any(query.id < self._next_id for query in queries):
            raise FeedbackError(
                "this annotator has answered another session's questions; make one per session."
            )
        self._next_id += len(queries)
        if self._batches % self.answer_every == 0:
            self._waiting += [(self._batches + self.delay, query) for query in queries]

    def collect(self) -> list[Answer]:
        """Judge what is due."""
        due = [query for when, query in self._waiting if when <= self._batches]
        self._waiting = [(when, query) for when, query in self._waiting if when > self._batches]
        self._batches += 1
        return [Answer(query, self._judge(query)) for query in due]

    def _judge(self, query: Query) -> bool:
        if query.position >= len(self.truth):
            raise InputError(
                f"the stream has reached sample {query.position}, but truth holds "
                f"{len(self.truth)} labels; give one label per sample."
            )
        slips = torch.rand((), generator=generator(self.seed, "flip", query.id)).item() < self.flip
        return (query.label == int(self.truth[query.position])) != slips

    @property
    def settings(self) -> dict[str, float]:
        """Whatever decides the answers, besides the truth."""
        names = ("flip", "delay", "answer_every", "seed")
        return {name: getattr(self, name) for name in names}

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
