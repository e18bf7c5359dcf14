"""SAR: sharpness-aware entropy minimisation on reliable samples, with recovery.

Niu et al., ICLR 2023, https://openreview.net/forum?id=g2YraF75Tj
Departures from the authors' code: the served label comes from a separate forward pass before the
update. It is the same label. The top layers are found by structure instead of by name. Departure
from the code published with BiTTA: recovery depends on the entropy only. In that code it also
depends on the loss on answers, which cannot fall below the threshold, so one correct answer
disables recovery. As in both versions, a batch without reliable samples still makes an update with
zero gradients, and recovery restores the weights but neither the momentum nor the moving average.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, log
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bitta.config_base import require
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
    """Learning rate of SGD. The default is the authors' value for ResNet-50. They use 1e-3 for a
    ViT with batches of 64."""
    momentum: float = 0.9
    """Momentum of SGD, without Nesterov."""
    rho: float = 0.05
    """Radius ρ of the neighbourhood in which SAM flattens the loss. The BiTTA paper has .5, its
    code .05."""
    entropy_margin: float = 0.4
    """Limit E₀ of the entropy of reliable samples, in units of ln C."""
    recover_below: float = 0.2
    """Limit of the moving average below which the source weights are restored; 0 for never."""
    recovery_watches: Literal["entropy", "loss"] = "entropy"
    """Quantity that the moving average follows: the entropy, or the whole loss including that on
    answers, as in the code published with BiTTA."""
    entropy_eps: float = 0.0
    """Constant inside the logarithm of the entropy. The code published with BiTTA has 1e-6."""

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
    """Minimises the entropy of reliable samples at a flat minimum and recovers from collapse."""

    Config = SarConfig
    paper: ClassVar[str] = "Niu et al., ICLR 2023"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    trains: ClassVar[str] = "norm layers below the top"
    is_capturable: bool = False

    def __init__(self, wrapped: WrappedModel, config: SarConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.average: float | None = None
        """Moving average, over updates, of the entropy or the whole loss of the second pass."""
        self._is_reliable: Tensor | None = None  # (batch,) in the first pass of an update

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return scale and shift of the normalisation layers, without the last stage."""
        return norm_parameters_below_top(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return self.make_sgd(momentum=self.config.momentum)

    def compute_gradients(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Compute the gradient g at θ, then the gradient of the update at θ + ρ g / ‖g‖."""
        self._is_reliable = None
        super().compute_gradients(mixed, random_key)
        with sam_ascent(self.parameters, rho=self.config.rho):
            terms = super().compute_gradients(mixed, random_key)
        self._update_average(terms)
        return terms

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the mean entropy of the samples that are reliable in all passes so far."""
        logits = self.trained_model(inputs, statistics="batch")
        entropies = entropy(logits, eps=self.config.entropy_eps)
        is_reliable = entropies < self.config.entropy_margin * log(logits.shape[-1])
        if self._is_reliable is not None:
            is_reliable = is_reliable & self._is_reliable
        self._is_reliable = is_reliable
        # Without reliable samples the loss is 0. The optimiser then moves by its momentum alone.
        total = torch.where(is_reliable, entropies, 0).sum()
        return {"entropy": total / is_reliable.sum().clamp_min(1)}

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Learn, then restore the source weights if the moving average shows a collapse."""
        losses = super().adapt(unlabelled, feedback)
        limit = self.config.recover_below
        if limit and self.average is not None and self.average < limit:
            self.source_weights.restore(self.model)
        return losses

    def reset(self) -> None:
        """Also drop the moving average."""
        super().reset()
        self.average = None

    def state_dict(self) -> State:
        """Return the state, with the moving average."""
        return super().state_dict() | {"average": self.average}

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self.average = state["average"]

    def _update_average(self, terms: Mapping[str, Tensor]) -> None:
        """Set average ← .9 average + .1 loss, if there were reliable samples."""
        if self._is_reliable is None or not self._is_reliable.any():
            return
        watched = ["entropy"] if self.config.recovery_watches == "entropy" else list(terms)
        loss = sum(terms[name].item() for name in watched)
        if isfinite(loss):
            self.average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
