"""Tent: lower prediction entropy by tuning normalisation layers.

Wang et al., ICLR 2021, https://openreview.net/forum?id=uXl3bZLkr3c
Departures from the authors' code: the label served comes from a forward of its own, before the
update (the same label, one forward more).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bitta.losses import entropy
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.methods.mecta import MectaAdapter, MectaConfig
from bitta.nn import Statistics, norm_parameters
from bitta.seeding import RandomKey


@dataclass(frozen=True, kw_only=True)
class TentConfig(MectaConfig, UnsupervisedConfig):
    """Settings of Tent."""

    lr: float = 1e-3
    """Step size of Adam; the authors' setting for CIFAR-10-C."""
    entropy_eps: float = 0.0
    """Added inside the entropy's logarithm; the code published with BiTTA has 1e-6."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {**PUBLISHED_BASELINE, "entropy_eps": 1e-6}
    }


class Tent(MectaAdapter[TentConfig], UnsupervisedAdapter[TentConfig]):
    """Tune scale and shift of every normalisation layer to lower entropy."""

    Config = TentConfig
    paper: ClassVar[str] = "Wang et al., ICLR 2021"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    trains: ClassVar[str] = "norm layers"

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Scale and shift only."""
        return norm_parameters(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Adam, as the authors use on CIFAR."""
        return self.make_adam()

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        """Mean entropy."""
        logits = self.trained_model(inputs, statistics="batch")
        return {"entropy": entropy(logits, eps=self.config.entropy_eps).mean()}
