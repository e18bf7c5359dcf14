"""SoTTA: learn from a memory of confident samples only, at a flat minimum.

Gong et al., NeurIPS 2023, https://openreview.net/forum?id=3bdXag2rUd
Departures from the authors' code: an update follows every batch of any size. The top layers are
found by structure instead of by name. Departure from the code published with BiTTA: a single
answered sample does not change how the others are normalised.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bitta.config_base import require
from bitta.errors import SettingError
from bitta.losses import entropy
from bitta.memory import ConfidentMemory, MixedBatch
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import WrappedModel, batch_norms, norm_parameters_below_top, sam_ascent
from bitta.seeding import RandomKey
from bitta.types import Feedback, Losses, State


@dataclass(frozen=True, kw_only=True)
class SottaConfig(UnsupervisedConfig):
    """Settings of SoTTA."""

    lr: float = 1e-3
    """Learning rate of Adam. The default is the authors' value."""
    weight_decay: float = 0.0
    """Weight decay of Adam. The code published with BiTTA has 5e-4 on CIFAR."""
    rho: float = 0.05
    """Radius ρ of the neighbourhood in which SAM flattens the loss. The BiTTA paper has .5, its
    code .05."""
    capacity: int = 64
    """Capacity of the memory of confident samples."""
    confident: float = 0.99
    """Lowest confidence C₀ of a sample in the memory. The authors use .99 on CIFAR-10 and PACS,
    .66 on CIFAR-100, .33 on ImageNet and Tiny-ImageNet."""
    bn_momentum: float = 0.2
    """Rate at which the running statistics follow the memory, in each of the two passes."""
    entropy_eps: float = 0.0
    """Constant inside the logarithm of the entropy. The code published with BiTTA has 1e-6."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {**PUBLISHED_BASELINE, "weight_decay": 5e-4, "entropy_eps": 1e-6},
        "paper": {"rho": 0.5},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.capacity >= 1, "capacity", self.capacity, "1 or more")
        for name in ("confident", "bn_momentum"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        for name in ("weight_decay", "rho", "entropy_eps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")


class Sotta(UnsupervisedAdapter[SottaConfig]):
    """Minimises the entropy of a class-uniform memory of confident samples at a flat minimum."""

    Config = SottaConfig
    paper: ClassVar[str] = "Gong et al., NeurIPS 2023"
    trains: ClassVar[str] = "norm layers below the top"
    is_capturable: bool = False

    def __init__(self, wrapped: WrappedModel, config: SottaConfig, *, seed: int = 0) -> None:
        if config.micro_batch and batch_norms(wrapped.model):
            raise SettingError(
                f"micro_batch is {config.micro_batch}; allowed: 0 for SoTTA on a model with "
                "BatchNorm, whose running statistics follow the whole memory at once."
            )
        super().__init__(wrapped, config, seed=seed)
        self.confident = ConfidentMemory(
            config.capacity, min_confidence=config.confident, key=(seed, "sotta")
        )

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return scale and shift of the normalisation layers, without the last stage."""
        return norm_parameters_below_top(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return self.make_adam(weight_decay=self.config.weight_decay)

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Add confident samples to the memory, then learn from the memory instead of the batch."""
        if len(unlabelled):
            served = self.predict(unlabelled)
            self.confident.offer(unlabelled, served.labels, served.confidence)
        remembered = self.confident.inputs if len(self.confident) else unlabelled[:0]
        return super().adapt(remembered, feedback)

    def compute_gradients(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Compute the gradient g at θ, then the gradient of the update at θ + ρ g / ‖g‖."""
        super().compute_gradients(mixed, random_key)
        with sam_ascent(self.parameters, rho=self.config.rho):
            return super().compute_gradients(mixed, random_key)

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the mean entropy of the memory. The running statistics follow the memory."""
        logits = self.trained_model(inputs, statistics="batch", momentum=self.config.bn_momentum)
        return {"entropy": entropy(logits, eps=self.config.entropy_eps).mean()}

    def reset(self) -> None:
        """Also empty the memory of confident samples."""
        super().reset()
        self.confident.clear()

    def state_dict(self) -> State:
        """Return the state, with the memory of confident samples."""
        return super().state_dict() | {"confident": self.confident.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self.confident.load_state_dict(state["confident"], device=self.wrapped.device)
