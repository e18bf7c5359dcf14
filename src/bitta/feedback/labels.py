"""The truth playing an annotator who names the class: costlier than a verdict, and tells more."""

from numbers import Real
from typing import Any

import torch

from bitta.config import require, whole
from bitta.errors import InputError
from bitta.feedback.annotator import Annotator
from bitta.seeding import generator
from bitta.types import Answer, Query


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
