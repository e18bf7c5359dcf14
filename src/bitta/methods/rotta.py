"""RoTTA: a student learns from its teacher on a balanced memory, with slowly moving statistics.

Yuan et al., CVPR 2023, "Robust Test-Time Adaptation in Dynamic Scenarios".
Departures from the authors' code: each image of a batch has its own augmentation parameters. The
method learns from the memory once per batch (or window); with batches of 64 that is every 64
samples, as in that code. Samples with a question are not offered to the memory. A layer input with
one value per channel does not change the running statistics. In models without BatchNorm, scale and
shift of the other normalisation layers are trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from typing import Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.augment import augment_images
from bitta.config_base import require
from bitta.losses import entropy
from bitta.memory import MixedBatch
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import (
    Normaliser,
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
"""A class is limited to its share of the memory: always, or only once the memory is full."""


@dataclass(slots=True)
class _StoredSample:
    slot: int
    label: int
    uncertainty: float
    """H / ln C, the entropy divided by its maximum."""
    age: int = 0
    """Number of samples offered since it was stored, including itself."""


class TimelyMemory:
    """Class-balanced memory of the newest and most certain samples (CSTU).

    Each sample has a removal score, λ_t / (1 + exp(-age / capacity)) + λ_u H / ln C. If there is no
    room for a new sample, it replaces the candidate with the highest score, if its own score is
    lower. The candidates are the samples of its class if this class has reached its share of the
    memory. Otherwise they are the samples of the largest classes.
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
        self._samples: list[_StoredSample] = []
        self._storage: Tensor | None = None  # (capacity, ...)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def inputs(self) -> Tensor:
        """Inputs in the order of arrival, (samples, ...). Available after the first `offer`."""
        assert self._storage is not None, "a memory cannot be read before its first offer"
        return self._storage[self._index([sample.slot for sample in self._samples])]

    @property
    def labels(self) -> list[int]:
        """Class of each sample, as predicted when it was stored."""
        return [sample.label for sample in self._samples]

    @property
    def ages(self) -> list[int]:
        """Number of samples offered since each sample was stored, including itself."""
        return [sample.age for sample in self._samples]

    def offer(self, inputs: Tensor, logits: Tensor) -> None:
        """Offer samples one after another. Their logits decide if they are stored."""
        if self._storage is None:
            self._storage = inputs.new_empty((self.capacity, *inputs.shape[1:]))
        n_classes = logits.shape[1]
        # Fetch all values from the device in one transfer.
        table = torch.stack([logits.argmax(-1).double(), entropy(logits).double()]).T.tolist()
        row_by_slot: dict[int, int] = {}
        for row, (label, nats) in enumerate(table):
            slot = self._find_slot(int(label), nats / log(n_classes), n_classes)
            if slot is not None:
                row_by_slot[slot] = row
            for sample in self._samples:
                sample.age += 1
        slots, rows = self._index(list(row_by_slot)), self._index(list(row_by_slot.values()))
        self._storage[slots] = inputs[rows].detach()

    def removal_score(self, age: int, uncertainty: float) -> float:
        """Return the score of a sample. The highest is removed first."""
        return self.lambda_t / (1 + exp(-age / self.capacity)) + self.lambda_u * uncertainty

    def clear(self) -> None:
        """Drop all samples. The sample shape stays known."""
        self._samples.clear()

    def state_dict(self) -> State:
        """Return the samples and their properties; empty before the first `offer`."""
        if self._storage is None:
            return {}
        return {
            "inputs": self.inputs,
            "labels": self.labels,
            "ages": self.ages,
            "uncertainties": [sample.uncertainty for sample in self._samples],
        }

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Replace the samples by saved ones."""
        self._storage = None
        self.clear()
        if not state:
            return
        inputs = state["inputs"].to(device)
        self._storage = inputs.new_empty((self.capacity, *inputs.shape[1:]))
        self._storage[: len(inputs)] = inputs
        columns = zip(state["labels"], state["uncertainties"], state["ages"], strict=True)
        self._samples.extend(_StoredSample(slot, *values) for slot, values in enumerate(columns))

    def _index(self, numbers: list[int]) -> Tensor:
        assert self._storage is not None
        return move_to_device(torch.tensor(numbers, dtype=torch.long), self._storage.device)

    def _find_slot(self, label: int, uncertainty: float, n_classes: int) -> int | None:
        """Return the slot for a new sample and register it; None if it is not stored."""
        slot = self._free_slot(label, self.removal_score(0, uncertainty), n_classes)
        if slot is not None:
            self._samples.append(_StoredSample(slot, label, uncertainty))
        return slot

    def _free_slot(self, label: int, score: float, n_classes: int) -> int | None:
        """Return an unused slot, or free the one with the highest score if `score` is lower."""
        counts: dict[int, int] = dict.fromkeys([label], 0)
        for sample in self._samples:
            counts[sample.label] = counts.get(sample.label, 0) + 1
        is_full = len(self._samples) >= self.capacity
        is_below_share = counts[label] < self.capacity / n_classes
        if not is_full and (is_below_share or self.insertion == "until_full"):
            used = {sample.slot for sample in self._samples}
            return next(slot for slot in range(self.capacity) if slot not in used)
        highest = max(counts.values())
        largest = {name for name, n in counts.items() if n == highest}
        labels = largest if is_below_share else {label}
        candidates = [sample for sample in self._samples if sample.label in labels]
        worst = max(candidates, key=lambda one: self.removal_score(one.age, one.uncertainty))
        if self.removal_score(worst.age, worst.uncertainty) <= score:
            return None
        self._samples.remove(worst)
        return worst.slot


@dataclass(frozen=True, kw_only=True)
class RottaConfig(UnsupervisedConfig):
    """Settings of RoTTA."""

    lr: float = 1e-3
    """Learning rate of Adam. The default is the authors' value."""
    alpha: float = 0.05
    """Rate α at which the running statistics follow the batches that are learned from. The default
    is the authors' value."""
    teacher_rate: float = 1e-3
    """Share ν by which the teacher moves towards the student after a batch. The default is the
    authors' value."""
    capacity: int = 64
    """Capacity N of the memory of the stream. The default is the authors' value."""
    lambda_t: float = 1.0
    """Weight of age in the removal score. The default is the authors' value."""
    lambda_u: float = 1.0
    """Weight of uncertainty in the removal score. The default is the authors' value."""
    insertion: Insertion = "quota"
    """Rule for new samples. "quota": a class never exceeds its share, as in the authors' code.
    "until_full": any class is stored until the memory is full, as in the code published with
    BiTTA."""
    judged_among: Literal["all", "judged", "alike"] = "judged"
    """Samples that go through the student together with an answered sample. The setting has no
    effect here, because running statistics normalise the samples."""
    feedback_on: Literal["student", "teacher"] = "student"
    """Model that the loss on answered samples is computed from. The code published with BiTTA uses
    the teacher. Answers then have no effect, because only the student is trained."""

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
    """Serves the teacher with running statistics and trains the student on the memory."""

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
            "0 for a model with BatchNorm, whose statistics follow whole batches in RoTTA",
        )
        super().__init__(wrapped, config, seed=seed)
        self.stream_memory = TimelyMemory(
            config.capacity,
            lambda_t=config.lambda_t,
            lambda_u=config.lambda_u,
            insertion=config.insertion,
        )
        self.learns_from_feedback &= config.feedback_on == "student"

    def make_normaliser(self) -> Normaliser:
        """Return the robust batch normalisation, for teacher and student."""
        return RobustNorm(self.config.alpha)

    def make_trained_model(self) -> WrappedModel:
        """Return a copy as the student. The user's model is the teacher."""
        return self.wrapped.clone_model()

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return scale and shift of the normalisation layers."""
        return norm_parameters(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return Adam, as the authors use."""
        return self.make_adam()

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Offer the samples to the memory, then learn from the memory instead of the batch."""
        if len(unlabelled):
            self.stream_memory.offer(unlabelled, self.logits(unlabelled))
            unlabelled = self.stream_memory.inputs
        losses = super().adapt(unlabelled, feedback)
        if losses.terms:
            update_teacher(self.model, self.trained_model.model, rate=self.config.teacher_rate)
        return losses

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:
        """Return the cross-entropy of student and teacher. The student gets an augmented view.

        Old samples have a lower weight. The running statistics of both models follow the inputs.
        """
        with torch.no_grad():
            teacher = self.wrapped(inputs, statistics="batch")
        view = augment_images(inputs, random_key, "augment")
        student = self.trained_model(view, statistics="batch")
        losses = F.cross_entropy(student, teacher.softmax(-1), reduction="none")
        return {"consistency": (self.age_weights(like=losses) * losses).mean()}

    def age_weights(self, *, like: Tensor) -> Tensor:
        """Return exp(-age / N) / (1 + exp(-age / N)) of each sample in the memory."""
        return torch.sigmoid(-like.new_tensor(self.stream_memory.ages) / self.config.capacity)

    def feedback_terms(self, mixed: MixedBatch) -> dict[str, Tensor]:
        """Return the student's loss on answers. The teacher has no gradient."""
        return super().feedback_terms(mixed) if self.config.feedback_on == "student" else {}

    def reset(self) -> None:
        """Also empty the memory of the stream."""
        super().reset()
        self.stream_memory.clear()

    def state_dict(self) -> State:
        """Return the state, with the memory of the stream."""
        return super().state_dict() | {"stream_memory": self.stream_memory.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self.stream_memory.load_state_dict(state["stream_memory"], device=self.wrapped.device)
