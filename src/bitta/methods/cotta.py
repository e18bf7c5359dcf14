"""CoTTA: a student follows an averaged teacher, and a few of its weights go home at each step.

Wang et al., CVPR 2022, "Continual Test-Time Domain Adaptation".
Departures from the authors' code: each image of a batch is augmented by parameters of its own; the
augmented copies are run only where they are used; what is served and what is learned from draw
their own augmentations; samples asked about stay out of the consistency loss of their batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.augment import augmented
from bitta.config import require
from bitta.memory import MixedBatch
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import Statistics, WrappedModel, restore_stochastically, update_teacher
from bitta.seeding import RandomKey
from bitta.types import Feedback, Losses, State, softmax

_TOGETHER = 8  # copies that are made at once


@dataclass(frozen=True, kw_only=True)
class CottaConfig(UnsupervisedConfig):
    """Settings of CoTTA."""

    lr: float = 1e-3
    """Step size; the authors' for CIFAR (batches of 200), .01 with SGD for ImageNet."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """adam as the authors on CIFAR, or sgd as they on ImageNet and the code published with BiTTA
    everywhere."""
    momentum: float = 0.9
    """Nesterov momentum of SGD; the authors' .9."""
    weight_decay: float = 0.0
    """Weight decay; the authors' 0, the code published with BiTTA 5e-4 on CIFAR."""
    teacher_rate: float = 1e-3
    """Share of the student that the teacher takes over after a batch; the authors keep .999."""
    restore: float = 0.01
    """Probability with which each weight of the student goes back to its source value after a
    batch; the authors' .01 for CIFAR, .001 for ImageNet."""
    augment_below: float = 0.92
    """Mean confidence of the source model below which the teacher averages over augmented copies;
    the authors' .92 for CIFAR-10, .72 for CIFAR-100, .1 for ImageNet; 0 never augments."""
    n_augmentations: int = 32
    """How many augmented copies are averaged over; the authors' 32."""
    symmetric: bool = False
    """Average the loss with the one that has teacher and student exchanged, as the authors on
    ImageNet."""
    feedback_on: Literal["student", "teacher"] = "student"
    """Whose loss on answered samples counts; teacher as in the code published with BiTTA, where
    nothing follows from it since only the student is trained."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {
            **PUBLISHED_BASELINE,
            "optimiser": "sgd",
            "weight_decay": 5e-4,
            "augment_below": 0.1,
            "feedback_on": "teacher",
        },
        "paper": {"augment_below": 0.1},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        require(self.n_augmentations >= 1, "n_augmentations", self.n_augmentations, "1 or more")
        for name in ("teacher_rate", "restore", "augment_below"):
            value = getattr(self, name)
            require(0 <= value <= 1, name, value, "0 to 1")


class Cotta(UnsupervisedAdapter[CottaConfig]):
    """Serve the teacher, train the student on it, and let the source model say when to augment."""

    Config = CottaConfig
    paper: ClassVar[str] = "Wang et al., CVPR 2022"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    is_capturable: bool = False

    def __init__(self, wrapped: WrappedModel, config: CottaConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.anchor = wrapped.clone_model()
        """The source model, which nothing changes."""
        self.learns_from_feedback &= config.feedback_on == "student"

    def make_trained_model(self) -> WrappedModel:
        """A student; the user's model is the teacher."""
        return self.wrapped.clone_model()

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """All of them."""
        return list(model.parameters())

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Adam, or SGD with Nesterov momentum."""
        config = self.config
        if config.optimiser == "adam":
            return self.make_adam(weight_decay=config.weight_decay)
        return self.make_sgd(
            momentum=config.momentum, weight_decay=config.weight_decay, nesterov=True
        )

    def logits(self, inputs: Tensor) -> Tensor:
        """The teacher's, averaged over augmented copies where the source model is unsure."""
        return self.target(inputs, RandomKey((self.seed, "cotta", self.version)))

    @torch.no_grad()
    def target(self, inputs: Tensor, random_key: RandomKey) -> Tensor:
        """The teacher's logits, or their mean over augmented copies."""
        if not self._unsure(inputs):
            return self.wrapped(inputs, statistics="batch")
        total = torch.zeros((), device=inputs.device)
        n = self.config.n_augmentations
        for start in range(0, n, _TOGETHER):
            few = min(_TOGETHER, n - start)
            for view in augmented(inputs, random_key, "augment", start, views=few).chunk(few):
                total = total + self.wrapped(view, statistics="batch")
        return total / n

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:
        """Cross-entropy of the student with the teacher's probabilities."""
        teacher = self.target(inputs, random_key)
        student = self.trained_model(inputs, statistics="batch")
        loss = F.cross_entropy(student, teacher.softmax(-1))
        if self.config.symmetric:
            loss = (loss + F.cross_entropy(teacher, student.softmax(-1))) / 2
        return {"consistency": loss}

    def feedback_terms(self, mixed: MixedBatch) -> dict[str, Tensor]:
        """The usual loss on the student; none on the teacher, which has no gradient."""
        return super().feedback_terms(mixed) if self.config.feedback_on == "student" else {}

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """A step of the student; the teacher follows; some of the student goes home."""
        losses = super().adapt(unlabelled, feedback)
        if losses.terms:
            update_teacher(self.model, self.trained_model.model, rate=self.config.teacher_rate)
            restore_stochastically(
                self.trained_model.model,
                self.source_weights.near(self.trained_model.device),
                rate=self.config.restore,
                key=(self.seed, "restore", self.version),
            )
        return losses

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state, whose source the anchor becomes."""
        super().load_state_dict(state)
        self.source_weights.restore(self.anchor.model)

    def close(self) -> None:
        """Give the model back, and let the student and the anchor go."""
        self.anchor.close()
        super().close()

    def _unsure(self, inputs: Tensor) -> bool:
        """Whether the source model's mean confidence in its labels is below the threshold."""
        if not self.config.augment_below:
            return False
        confidence = softmax(self.anchor(inputs, statistics="batch")).amax(-1).mean()
        return bool(confidence < self.config.augment_below)
