"""CoTTA: a student learns from an averaged teacher, and some student weights are restored.

Wang et al., CVPR 2022, "Continual Test-Time Domain Adaptation".
Departures from the authors' code: each image of a batch has its own augmentation parameters. The
augmented copies are computed only if they are used. Serving and learning draw different
augmentations. Samples with a question stay out of the consistency loss of their batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.augment import augment_images
from bitta.config_base import require
from bitta.memory import MixedBatch
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import Statistics, WrappedModel, restore_stochastically, update_teacher
from bitta.seeding import RandomKey
from bitta.types import Feedback, Losses, State, softmax

_VIEWS_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class CottaConfig(UnsupervisedConfig):
    """Settings of CoTTA."""

    lr: float = 1e-3
    """Learning rate. The default is the authors' value for CIFAR with batches of 200. They use .01
    with SGD for ImageNet."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """Optimiser. The authors use adam on CIFAR and sgd on ImageNet, the code published with BiTTA
    always sgd."""
    momentum: float = 0.9
    """Nesterov momentum of SGD. The default is the authors' value."""
    weight_decay: float = 0.0
    """Weight decay. The authors use 0, the code published with BiTTA 5e-4 on CIFAR."""
    teacher_rate: float = 1e-3
    """Share by which the teacher moves towards the student after a batch. The default is the
    authors' value."""
    restore: float = 0.01
    """Probability with which each weight of the student returns to its source value after a batch.
    The authors use .01 for CIFAR and .001 for ImageNet."""
    augment_below: float = 0.92
    """The teacher averages over augmented views if the mean confidence of the source model is below
    this. The authors use .92 for CIFAR-10, .72 for CIFAR-100, .1 for ImageNet. 0 turns it off."""
    n_augmentations: int = 32
    """Number of augmented views to average over. The default is the authors' value."""
    symmetric: bool = False
    """Average the loss with the one in which teacher and student are exchanged, as the authors do
    on ImageNet."""
    feedback_on: Literal["student", "teacher"] = "student"
    """Model that the loss on answered samples is computed from. The code published with BiTTA uses
    the teacher. Answers then have no effect, because only the student is trained."""

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
    """Serves the teacher and trains the student. The source model decides when to augment."""

    Config = CottaConfig
    paper: ClassVar[str] = "Wang et al., CVPR 2022"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    is_capturable: bool = False

    def __init__(self, wrapped: WrappedModel, config: CottaConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.source_model = wrapped.clone_model()
        """The source model. It never changes."""
        self.learns_from_feedback &= config.feedback_on == "student"

    def make_trained_model(self) -> WrappedModel:
        """Return a copy as the student. The user's model is the teacher."""
        return self.wrapped.clone_model()

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return all parameters."""
        return list(model.parameters())

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return Adam, or SGD with Nesterov momentum."""
        config = self.config
        if config.optimiser == "adam":
            return self.make_adam(weight_decay=config.weight_decay)
        return self.make_sgd(
            momentum=config.momentum, weight_decay=config.weight_decay, nesterov=True
        )

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the teacher's logits, averaged over views if the source model is uncertain."""
        return self.teacher_logits(inputs, RandomKey((self.seed, "cotta", self.version)))

    @torch.no_grad()
    def teacher_logits(self, inputs: Tensor, random_key: RandomKey) -> Tensor:
        """Return the teacher's logits, or their mean over augmented views."""
        if not self._needs_augmentation(inputs):
            return self.wrapped(inputs, statistics="batch")
        total = torch.zeros((), device=inputs.device)
        n = self.config.n_augmentations
        for start in range(0, n, _VIEWS_AT_ONCE):
            n_views = min(_VIEWS_AT_ONCE, n - start)
            views = augment_images(inputs, random_key, "augment", start, views=n_views)
            for view in views.chunk(n_views):
                total = total + self.wrapped(view, statistics="batch")
        return total / n

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:
        """Return the cross-entropy of the student with the teacher's probabilities."""
        teacher = self.teacher_logits(inputs, random_key)
        student = self.trained_model(inputs, statistics="batch")
        loss = F.cross_entropy(student, teacher.softmax(-1))
        if self.config.symmetric:
            loss = (loss + F.cross_entropy(teacher, student.softmax(-1))) / 2
        return {"consistency": loss}

    def feedback_terms(self, mixed: MixedBatch) -> dict[str, Tensor]:
        """Return the student's loss on answers. The teacher has no gradient."""
        return super().feedback_terms(mixed) if self.config.feedback_on == "student" else {}

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Update the student, move the teacher, restore some weights of the student."""
        losses = super().adapt(unlabelled, feedback)
        if losses.terms:
            update_teacher(self.model, self.trained_model.model, rate=self.config.teacher_rate)
            restore_stochastically(
                self.trained_model.model,
                self.source_weights.on_device(self.trained_model.device),
                rate=self.config.restore,
                key=(self.seed, "restore", self.version),
            )
        return losses

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state. The source model gets the saved weights."""
        super().load_state_dict(state)
        self.source_weights.restore(self.source_model.model)

    def close(self) -> None:
        """Restore the model, and close the student and the source model."""
        self.source_model.close()
        super().close()

    def _needs_augmentation(self, inputs: Tensor) -> bool:
        """Return True if the mean confidence of the source model is below the limit."""
        if not self.config.augment_below:
            return False
        confidence = softmax(self.source_model(inputs, statistics="batch")).amax(-1).mean()
        return bool(confidence < self.config.augment_below)
