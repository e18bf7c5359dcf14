"""RoTTA: a student learns from its teacher on a balanced memory, with statistics that move slowly.

Yuan et al., CVPR 2023, "Robust Test-Time Adaptation in Dynamic Scenarios".
Departures from the authors' code: each image of a batch is augmented by parameters of its own;
the memory is learned from once per batch (or window), which is every 64 samples for batches of 64;
samples asked about are not offered to it; one value per channel moves no statistics; models
without BatchNorm are adapted by scale and shift of the normalisation they have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.augment import augmented
from bitta.config import require
from bitta.memory import Insertion, Mixed, TimelyMemory
from bitta.nn import Network, RobustNorm, Statistics, batch_norms, follow, scale_and_shift
from bitta.seeding import Chance
from bitta.types import Feedback, Losses, State
from bitta.unsupervised import HANDICAP, UnsupervisedAdapter, UnsupervisedConfig


@dataclass(frozen=True, kw_only=True)
class RottaConfig(UnsupervisedConfig):
    """Settings of RoTTA."""

    lr: float = 1e-3
    """Step size of Adam; the authors' 1e-3."""
    alpha: float = 0.05
    """How fast the running statistics follow the batches learned from; the authors' α = .05."""
    teacher_rate: float = 1e-3
    """Share of the student that the teacher takes over after a batch; the authors' ν = .001."""
    capacity: int = 64
    """How many samples of the stream are remembered; the authors' N = 64."""
    lambda_t: float = 1.0
    """Weight of age in giving samples up; the authors' 1."""
    lambda_u: float = 1.0
    """Weight of uncertainty in giving samples up; the authors' 1."""
    insertion: Insertion = "quota"
    """Whether a class may fill its share of the memory at most, as in the authors' code (quota), or
    more as long as there is room, as in the code published with BiTTA (until_full)."""
    judged_among: Literal["all", "judged", "alike"] = "judged"
    """Which samples go through the student along with answered ones; of no effect here, since
    running statistics normalise them."""
    feedback_on: Literal["student", "teacher"] = "student"
    """Whose loss on answered samples counts; teacher as in the code published with BiTTA, where
    nothing follows from it since only the student is trained."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {**HANDICAP, "insertion": "until_full", "feedback_on": "teacher"}
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.capacity >= 1, "capacity", self.capacity, "1 or more")
        for name in ("alpha", "teacher_rate"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        for name in ("lambda_t", "lambda_u"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")


class Rotta(UnsupervisedAdapter[RottaConfig]):
    """Serve the teacher by running statistics; teach the student on augmented memories."""

    Config = RottaConfig
    paper: ClassVar[str] = "Yuan et al., CVPR 2023"
    learner_statistics: Statistics = "running"
    trains: ClassVar[str] = "norm layers"
    captured: bool = False

    def __init__(self, network: Network, config: RottaConfig, *, seed: int = 0) -> None:
        require(
            not (config.micro_batch and batch_norms(network.model)),
            "micro_batch",
            config.micro_batch,
            "0 where a model has BatchNorm, whose statistics follow whole batches in RoTTA",
        )
        super().__init__(network, config, seed=seed)
        self.timely = TimelyMemory(
            config.capacity,
            lambda_t=config.lambda_t,
            lambda_u=config.lambda_u,
            insertion=config.insertion,
        )
        self.learns_from_feedback &= config.feedback_on == "student"

    def make_learner(self) -> Network:
        """A student; the user's model is the teacher. Both get the robust BatchNorm."""
        self.network.normaliser = RobustNorm(self.config.alpha)
        return self.network.twin()

    def trained(self, model: nn.Module) -> list[nn.Parameter]:
        """Scale and shift only."""
        return scale_and_shift(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Adam, as the authors use."""
        return self.adam()

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Offer the new samples to the memory, and learn from it in their place."""
        if len(unlabelled):
            self.timely.offer(unlabelled, self.logits(unlabelled))
            unlabelled = self.timely.inputs
        losses = super().adapt(unlabelled, feedback)
        if losses.terms:
            follow(self.model, self.learner.model, rate=self.config.teacher_rate)
        return losses

    def unsupervised(self, inputs: Tensor, chance: Chance) -> dict[str, Tensor]:
        """The student, on a strong view, learns what the teacher says; less of old samples.

        Running statistics of both follow what they are given.
        """
        with torch.no_grad():
            teacher = self.network(inputs, statistics="batch")
        view = augmented(inputs, chance, "augment")
        student = self.learner(view, statistics="batch")
        each = F.cross_entropy(student, teacher.softmax(-1), reduction="none")
        return {"consistency": (self.age_weights(like=each) * each).mean()}

    def age_weights(self, *, like: Tensor) -> Tensor:
        """exp(-age / N) / (1 + exp(-age / N)) of each sample remembered."""
        return torch.sigmoid(-like.new_tensor(self.timely.ages) / self.config.capacity)

    def answered(self, mixed: Mixed) -> dict[str, Tensor]:
        """The usual loss on the student; none on the teacher, which has no gradient."""
        return super().answered(mixed) if self.config.feedback_on == "student" else {}

    def reset(self) -> None:
        """An empty memory of the stream, too."""
        super().reset()
        self.timely.clear()

    def state_dict(self) -> State:
        """The memory of the stream beside the rest."""
        return super().state_dict() | {"timely": self.timely.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        self.timely.load_state_dict(state["timely"], device=self.network.device)
