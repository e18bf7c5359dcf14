"""SAR: sharpness-aware entropy minimisation on reliable samples, with recovery.

Niu et al., ICLR 2023, https://openreview.net/forum?id=g2YraF75Tj
Departures from the authors' code: the label served comes from a forward of its own, before the
update (the same label); which layers are the top is found by structure instead of by names. From
the code published with BiTTA: recovery watches the entropy alone, for the answers' loss has a floor
there above which the sum stays, so that one correct answer disables recovery.
Kept from both: a batch without reliable samples still takes a step on zero gradients, and recovery
restores the weights but neither the momentum nor the moving average.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, log
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bitta.config import require
from bitta.losses import entropy
from bitta.memory import MixedBatch
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import Statistics, WrappedModel, norm_parameters_below_top, sam_ascent
from bitta.seeding import RandomKey
from bitta.types import Feedback, Losses, State


@dataclass(frozen=True, kw_only=True)
class SarConfig(UnsupervisedConfig):
    """Settings of SAR."""

    lr: float = 2.5e-4
    """Step size of SGD; the authors' for ResNet-50, who have 1e-3 for a ViT at batch size 64."""
    momentum: float = 0.9
    """Momentum of SGD, without Nesterov."""
    rho: float = 0.05
    """Radius ρ within which the loss is made flat; the BiTTA paper has .5, its code .05."""
    entropy_margin: float = 0.4
    """E₀ in units of ln C: samples whose entropy is below it are reliable."""
    recover_below: float = 0.2
    """Value of the moving average below which the weights go back to the source; 0 for never."""
    recovery_watches: Literal["entropy", "loss"] = "entropy"
    """What is averaged: the entropy, or the loss with that of answers, as the code published with
    BiTTA does."""
    entropy_eps: float = 0.0
    """Added inside the entropy's logarithm; the code published with BiTTA has 1e-6."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {**PUBLISHED_BASELINE, "entropy_eps": 1e-6, "recovery_watches": "loss"},
        "paper": {"rho": 0.5},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require(self.entropy_margin > 0, "entropy_margin", self.entropy_margin, "above 0")
        for name in ("rho", "recover_below", "entropy_eps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")


class Sar(UnsupervisedAdapter[SarConfig]):
    """Reliable samples, a flat minimum, and a way back from collapse."""

    Config = SarConfig
    paper: ClassVar[str] = "Niu et al., ICLR 2023"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    trains: ClassVar[str] = "norm layers below the top"
    is_capturable: bool = False

    def __init__(self, wrapped: WrappedModel, config: SarConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.average: float | None = None
        """Moving average of the second pass's loss."""
        self._reliable: Tensor | None = None

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Scale and shift, but not in the last stage."""
        return norm_parameters_below_top(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return self.make_sgd(momentum=self.config.momentum)

    def compute_gradients(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Of the second pass, made where the first one's gradient leads uphill."""
        self._reliable = None
        super().compute_gradients(mixed, random_key)
        with sam_ascent(self.parameters, rho=self.config.rho):
            terms = super().compute_gradients(mixed, random_key)
        self._watch(terms)
        return terms

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        """Mean entropy of reliable samples; in the second pass, of those that still are."""
        logits = self.trained_model(inputs, statistics="batch")
        each = entropy(logits, eps=self.config.entropy_eps)
        reliable = each < self.config.entropy_margin * log(logits.shape[-1])
        if self._reliable is not None:
            reliable = reliable & self._reliable
        self._reliable = reliable
        # 0 where there are none: momentum goes on without them.
        return {"entropy": torch.where(reliable, each, 0).sum() / reliable.sum().clamp_min(1)}

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Learn; if what is left of the entropy says that the model has collapsed, recover."""
        losses = super().adapt(unlabelled, feedback)
        limit = self.config.recover_below
        if limit and self.average is not None and self.average < limit:
            self.source_weights.restore(self.model)
        return losses

    def reset(self) -> None:
        """Forget the moving average, too."""
        super().reset()
        self.average = None

    def state_dict(self) -> State:
        """The moving average beside the rest."""
        return super().state_dict() | {"average": self.average}

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        self.average = state["average"]

    def _watch(self, terms: Mapping[str, Tensor]) -> None:
        """ema ← .9 ema + .1 L, as far as there is a loss."""
        if self._reliable is None or not self._reliable.any():
            return
        watched = ["entropy"] if self.config.recovery_watches == "entropy" else list(terms)
        loss = sum(terms[name].item() for name in watched)
        if isfinite(loss):
            self.average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
