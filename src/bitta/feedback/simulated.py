"""The truth playing an annotator who says right or wrong: may err, may be late, may be away."""

from numbers import Real
from typing import Any

import torch

from bitta.config import require
from bitta.feedback.annotator import Annotator
from bitta.seeding import generator
from bitta.types import Answer, Query


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
