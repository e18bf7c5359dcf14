"""Methods with a loss of their own on unlabelled samples, to which answers add theirs."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch.nn.functional as F
from torch import Tensor

from bitta.config import require
from bitta.gradient import GradientAdapter, GradientConfig
from bitta.losses import complementary_loss
from bitta.memory import Mixed
from bitta.nn import Network, Statistics
from bitta.seeding import Chance
from bitta.types import softmax

HANDICAP: Mapping[str, Any] = {
    "selection": "last",
    "correct_memory": 3,
    "incorrect_memory": 3,
    "judged_among": "alike",
    "feedback_softmax": "double",
}
"""How the code published with BiTTA lets its baselines learn from answers."""


@dataclass(frozen=True, kw_only=True)
class UnsupervisedConfig(GradientConfig):
    """Settings of every unsupervised method that can learn from answers, too."""

    feedback_weight: float = 1.0
    """Weight of the loss on answered samples."""
    feedback_softmax: Literal["single", "double"] = "single"
    """double applies softmax again to the probabilities of answered samples, as the code published
    with BiTTA does."""
    judged_among: Literal["all", "judged", "alike"] = "all"
    """Whose statistics normalise answered samples: those of all samples of the step, of the
    answered ones, or of the ones with the same verdict."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.feedback_weight >= 0, "feedback_weight", self.feedback_weight, "0 or more")


U = TypeVar("U", bound=UnsupervisedConfig)


class UnsupervisedAdapter(GradientAdapter[U]):
    """`unsupervised` on what nobody was asked about, and the usual loss on answers.

    The unlabelled samples go through the model by themselves: their loss is the method's own,
    whether or not somebody answers.
    """

    learner_statistics: Statistics = "batch"
    """What normalises while learning."""

    def __init__(self, network: Network, config: U, *, seed: int = 0) -> None:
        super().__init__(network, config, seed=seed)
        self.learns_from_feedback = config.feedback_weight > 0

    @abstractmethod
    def unsupervised(self, inputs: Tensor, chance: Chance) -> dict[str, Tensor]:
        """The terms of the method's own loss."""

    def objective(self, mixed: Mixed, chance: Chance) -> dict[str, Tensor]:
        """Both losses, as far as there are samples for them."""
        *_, unlabelled = mixed.split(mixed.inputs)
        own = self.unsupervised(unlabelled, chance) if len(unlabelled) else {}
        return own | self.answered(mixed)

    def answered(self, mixed: Mixed) -> dict[str, Tensor]:
        """Cross-entropy on correct and complementary loss on incorrect samples."""
        if not (mixed.n_judged and self.config.feedback_weight):
            return {}
        correct, incorrect = self.judged_logits(mixed)
        if self.config.feedback_softmax == "double":
            correct, incorrect = softmax(correct), softmax(incorrect)
        terms = {}
        if len(correct):
            terms["correct"] = F.cross_entropy(correct, mixed.correct)
        if len(incorrect):
            terms["incorrect"] = complementary_loss(incorrect, mixed.incorrect)
        return {name: self.config.feedback_weight * term for name, term in terms.items()}

    def judged_logits(self, mixed: Mixed) -> tuple[Tensor, Tensor]:
        """Of the samples judged correct and incorrect, by the network that is trained."""
        if self.config.judged_among == "alike":
            correct, incorrect, _ = mixed.split(mixed.inputs)
            return self.learner_logits(correct), self.learner_logits(incorrect)
        among = len(mixed.inputs) if self.config.judged_among == "all" else mixed.n_judged
        correct, incorrect, _ = mixed.split(self.learner_logits(mixed.inputs[:among]))
        return correct, incorrect

    def learner_logits(self, inputs: Tensor) -> Tensor:
        """Of some rows, which may be none; running statistics stay where they are."""
        if not len(inputs):
            return inputs.new_zeros((0, 2))
        return self.learner(inputs, statistics=self.learner_statistics)
