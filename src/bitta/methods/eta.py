"""ETA: lower the entropy of predictions that are reliable and not redundant.

Niu et al., ICML 2022, https://proceedings.mlr.press/v162/niu22a.html (EATA without its penalty).
Departures from the authors' code: the label served comes from a forward of its own, before the
update (the same label); where nothing is selected the answers are still learned from, which the
code published with BiTTA drops then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config import require
from bitta.losses import entropy
from bitta.mecta import MectaAdapter, MectaConfig
from bitta.nn import Network, Statistics, scale_and_shift
from bitta.seeding import Chance
from bitta.types import State, softmax
from bitta.unsupervised import HANDICAP, UnsupervisedAdapter, UnsupervisedConfig


@dataclass(frozen=True, kw_only=True)
class EtaConfig(MectaConfig, UnsupervisedConfig):
    """Settings of ETA."""

    lr: float = 5e-3
    """Step size of SGD, as the code published with BiTTA has it on CIFAR; the BiTTA paper has 1e-3,
    the authors 2.5e-4 on ImageNet."""
    momentum: float = 0.9
    """Momentum of SGD, without Nesterov."""
    weight_decay: float = 0.0
    """Weight decay of SGD; the code published with BiTTA has 5e-4 on CIFAR."""
    entropy_margin: float = 0.4
    """E₀ in units of ln C: samples whose entropy is below it are reliable."""
    similarity: float = 0.4
    """ε: samples whose cosine with the moving mean of probabilities is not below it are redundant;
    .4 on CIFAR, .05 on ImageNet, .5 in the BiTTA paper."""
    moving_average: float = 0.1
    """Weight of a batch in that moving mean."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {**HANDICAP, "weight_decay": 5e-4},
        "paper": {"lr": 1e-3, "similarity": 0.5},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        for name in ("weight_decay", "similarity"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        require(self.entropy_margin > 0, "entropy_margin", self.entropy_margin, "above 0")
        average = self.moving_average
        require(0 <= average <= 1, "moving_average", average, "0 to 1")


class Eta(MectaAdapter[EtaConfig], UnsupervisedAdapter[EtaConfig]):
    """Entropy of selected samples, the surer the heavier."""

    Config = EtaConfig
    paper: ClassVar[str] = "Niu et al., ICML 2022"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    trains: ClassVar[str] = "norm layers"
    captured: bool = False

    def __init__(self, network: Network, config: EtaConfig, *, seed: int = 0) -> None:
        super().__init__(network, config, seed=seed)
        self.mean_probs: Tensor | None = None  # (classes,)
        """m, the moving mean of the probabilities of selected samples."""

    def trained(self, model: nn.Module) -> list[nn.Parameter]:
        """Scale and shift only."""
        return scale_and_shift(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return self.sgd(momentum=self.config.momentum, weight_decay=self.config.weight_decay)

    def unsupervised(self, inputs: Tensor, chance: Chance) -> dict[str, Tensor]:  # noqa: ARG002
        """Mean of exp(E₀ - H) H over the samples selected; nothing where there are none."""
        logits = self.learner(inputs, statistics="batch")
        margin = self.config.entropy_margin * log(logits.shape[-1])
        each = entropy(logits)
        selected = self._selected(softmax(logits.detach()), each.detach() < margin)
        if not selected.any():
            return {}
        weights = (margin - each.detach()).exp()
        return {"entropy": (weights * each)[selected].mean()}

    def reset(self) -> None:
        """Forget the mean of probabilities, too."""
        super().reset()
        self.mean_probs = None

    def state_dict(self) -> State:
        """The mean of probabilities beside the rest."""
        return super().state_dict() | {"mean_probs": self.mean_probs}

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        mean = state["mean_probs"]
        self.mean_probs = None if mean is None else mean.to(self.network.device)

    def _selected(self, probs: Tensor, reliable: Tensor) -> Tensor:
        """Reliable rows unlike the moving mean, which then follows them, (batch,)."""
        if self.mean_probs is None:
            if reliable.any():
                self.mean_probs = probs[reliable].mean(0)
            return reliable
        cosine = F.cosine_similarity(self.mean_probs.unsqueeze(0), probs)
        selected = reliable & (cosine.abs() < self.config.similarity)
        if selected.any():
            new = probs[selected].mean(0)
            self.mean_probs = self.mean_probs.lerp(new, self.config.moving_average)
        return selected
