"""RoTTA: a student learns from its teacher on a balanced memory, with statistics that move slowly.

Yuan et al., CVPR 2023, "Robust Test-Time Adaptation in Dynamic Scenarios".
Departures from the authors' code: each image of a batch is augmented by parameters of its own;
the memory is learned from once per batch (or window), which is every 64 samples for batches of 64;
samples asked about are not offered to it; one value per channel moves no statistics; models
without BatchNorm are adapted by scale and shift of the normalisation they have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from typing import Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.augment import augmented
from bitta.config import require
from bitta.losses import entropy
from bitta.memory import MixedBatch
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import (
    RobustNorm,
    Statistics,
    WrappedModel,
    batch_norms,
    norm_parameters,
    update_teacher,
)
from bitta.seeding import RandomKey
from bitta.types import Feedback, Losses, State, move_to_device

Insertion: TypeAlias = Literal["quota", "until_full"]
"""Whether a class has its share of the room from the start, or only once the memory is full."""


@dataclass(slots=True)
class _Item:
    slot: int
    label: int
    doubt: float
    """Entropy as a share of the most there can be."""
    age: int = 0
    """Samples offered since it came, itself included."""


class TimelyMemory:
    """CSTU: keep `capacity` samples, giving up the oldest and least certain of a large class.

    The worth of keeping a sample falls with λ_t / (1 + exp(-age / capacity)) + λ_u H / ln C.
    """

    def __init__(
        self,
        capacity: int,
        *,
        lambda_t: float = 1.0,
        lambda_u: float = 1.0,
        insertion: Insertion = "quota",
    ) -> None:
        self.capacity = capacity
        self.lambda_t, self.lambda_u = lambda_t, lambda_u
        self.insertion = insertion
        self._items: list[_Item] = []
        self._room: Tensor | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def inputs(self) -> Tensor:
        """(samples, ...), in the order they came; the shape is known from the first offer on."""
        assert self._room is not None, "a memory is read only after its first offer"
        return self._room[self._index([item.slot for item in self._items])]

    @property
    def labels(self) -> list[int]:
        """The class each was taken for when it came."""
        return [item.label for item in self._items]

    @property
    def ages(self) -> list[int]:
        """How many samples have been offered since each came, itself included."""
        return [item.age for item in self._items]

    def offer(self, inputs: Tensor, logits: Tensor) -> None:
        """One sample after another, each as its logits describe it; some are turned away."""
        if self._room is None:
            self._room = inputs.new_empty((self.capacity, *inputs.shape[1:]))
        n_classes = logits.shape[1]
        # One transfer for all that the rule needs to know.
        known = torch.stack([logits.argmax(-1).double(), entropy(logits).double()]).T.tolist()
        taken: dict[int, int] = {}  # slot: row
        for row, (label, doubt) in enumerate(known):
            slot = self._slot_for(int(label), doubt / log(n_classes), n_classes)
            if slot is not None:
                taken[slot] = row
            for item in self._items:
                item.age += 1
        self._room[self._index(list(taken))] = inputs[self._index(list(taken.values()))].detach()

    def score(self, age: int, doubt: float) -> float:
        """How much there is against keeping a sample; `doubt` is its H / ln C."""
        return self.lambda_t / (1 + exp(-age / self.capacity)) + self.lambda_u * doubt

    def clear(self) -> None:
        """Forget everything but the shape."""
        self._items.clear()

    def state_dict(self) -> State:
        """The samples, if there ever were any, and what is known of them."""
        if self._room is None:
            return {}
        doubts = [item.doubt for item in self._items]
        return {"inputs": self.inputs, "labels": self.labels, "ages": self.ages, "doubts": doubts}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved samples."""
        self._room = None
        self.clear()
        if not state:
            return
        inputs = state["inputs"].to(device)
        self._room = inputs.new_empty((self.capacity, *inputs.shape[1:]))
        self._room[: len(inputs)] = inputs
        known = zip(state["labels"], state["doubts"], state["ages"], strict=True)
        self._items.extend(_Item(slot, *of_sample) for slot, of_sample in enumerate(known))

    def _index(self, places: list[int]) -> Tensor:
        assert self._room is not None
        return move_to_device(torch.tensor(places, dtype=torch.long), self._room.device)

    def _slot_for(self, label: int, doubt: float, n_classes: int) -> int | None:
        """Where a new sample goes, if anywhere; it is remembered as being there."""
        slot = self._free_slot(label, self.score(0, doubt), n_classes)
        if slot is not None:
            self._items.append(_Item(slot, label, doubt))
        return slot

    def _free_slot(self, label: int, score: float, n_classes: int) -> int | None:
        """A free one, or that of the item with the highest score if the new one's is lower."""
        counts: dict[int, int] = dict.fromkeys([label], 0)
        for item in self._items:
            counts[item.label] = counts.get(item.label, 0) + 1
        full = len(self._items) >= self.capacity
        within = counts[label] < self.capacity / n_classes
        if not full and (within or self.insertion == "until_full"):
            used = {item.slot for item in self._items}
            return next(slot for slot in range(self.capacity) if slot not in used)
        most = max(counts.values())
        large = {name for name, n in counts.items() if n == most} if within else {label}
        rivals = [item for item in self._items if item.label in large]
        worst = max(rivals, key=lambda item: self.score(item.age, item.doubt))
        if self.score(worst.age, worst.doubt) <= score:
            return None
        self._items.remove(worst)
        return worst.slot


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
        "reference": {**PUBLISHED_BASELINE, "insertion": "until_full", "feedback_on": "teacher"}
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
    training_statistics: Statistics = "running"
    trains: ClassVar[str] = "norm layers"
    is_capturable: bool = False

    def __init__(self, wrapped: WrappedModel, config: RottaConfig, *, seed: int = 0) -> None:
        require(
            not (config.micro_batch and batch_norms(wrapped.model)),
            "micro_batch",
            config.micro_batch,
            "0 where a model has BatchNorm, whose statistics follow whole batches in RoTTA",
        )
        super().__init__(wrapped, config, seed=seed)
        self.timely = TimelyMemory(
            config.capacity,
            lambda_t=config.lambda_t,
            lambda_u=config.lambda_u,
            insertion=config.insertion,
        )
        self.learns_from_feedback &= config.feedback_on == "student"

    def make_trained_model(self) -> WrappedModel:
        """A student; the user's model is the teacher. Both get the robust BatchNorm."""
        self.wrapped.normaliser = RobustNorm(self.config.alpha)
        return self.wrapped.clone_model()

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Scale and shift only."""
        return norm_parameters(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Adam, as the authors use."""
        return self.make_adam()

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Offer the new samples to the memory, and learn from it in their place."""
        if len(unlabelled):
            self.timely.offer(unlabelled, self.logits(unlabelled))
            unlabelled = self.timely.inputs
        losses = super().adapt(unlabelled, feedback)
        if losses.terms:
            update_teacher(self.model, self.trained_model.model, rate=self.config.teacher_rate)
        return losses

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:
        """The student, on a strong view, learns what the teacher says; less of old samples.

        Running statistics of both follow what they are given.
        """
        with torch.no_grad():
            teacher = self.wrapped(inputs, statistics="batch")
        view = augmented(inputs, random_key, "augment")
        student = self.trained_model(view, statistics="batch")
        each = F.cross_entropy(student, teacher.softmax(-1), reduction="none")
        return {"consistency": (self.age_weights(like=each) * each).mean()}

    def age_weights(self, *, like: Tensor) -> Tensor:
        """exp(-age / N) / (1 + exp(-age / N)) of each sample remembered."""
        return torch.sigmoid(-like.new_tensor(self.timely.ages) / self.config.capacity)

    def feedback_terms(self, mixed: MixedBatch) -> dict[str, Tensor]:
        """The usual loss on the student; none on the teacher, which has no gradient."""
        return super().feedback_terms(mixed) if self.config.feedback_on == "student" else {}

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
        self.timely.load_state_dict(state["timely"], device=self.wrapped.device)
