"""Tent: minimise prediction entropy by training the normalisation layers.

Wang et al., ICLR 2021, https://openreview.net/forum?id=uXl3bZLkr3c
Departures from the authors' code: the served label comes from a separate forward pass before the
update. It is the same label, at the cost of one more pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bitta.losses import entropy
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.methods.mecta import MectaConfig
from bitta.nn import Statistics, norm_parameters
from bitta.seeding import RandomKey


@dataclass(frozen=True, kw_only=True)
class TentConfig(MectaConfig, UnsupervisedConfig):
    """Settings of Tent."""

    lr: float = 1e-3
    """Learning rate of Adam. The default is the authors' value for CIFAR-10-C."""
    entropy_eps: float = 0.0
    """Constant inside the logarithm of the entropy. The code published with BiTTA has 1e-6."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {**PUBLISHED_BASELINE, "entropy_eps": 1e-6}
    }


class Tent(UnsupervisedAdapter[TentConfig]):
    """Trains scale and shift of every normalisation layer to minimise entropy."""

    Config = TentConfig
    paper: ClassVar[str] = "Wang et al., ICLR 2021"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    trains: ClassVar[str] = "norm layers"

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return scale and shift of the normalisation layers."""
        return norm_parameters(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return Adam, as the authors use on CIFAR."""
        return self.make_adam()

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the mean entropy."""
        logits = self.trained_model(inputs, statistics="batch")
        return {"entropy": entropy(logits, eps=self.config.entropy_eps).mean()}
