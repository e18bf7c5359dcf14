"""ETA and EATA: entropy minimisation on reliable, non-redundant samples.

Niu et al., ICML 2022, https://proceedings.mlr.press/v162/niu22a.html

ETA is EATA without its penalty. Departures from the authors' code: the served label comes from a
separate forward pass before the update. It is the same label. If no sample is selected, the method
still learns from answers; the code published with BiTTA drops them.

Further departures of EATA: an update includes the penalty even if it learns from answers only. The
authors compute the Fisher information from source images (`source_statistics`), the code published
with BiTTA from the first images of the stream before it adapts. Here, without a file, it is
computed from the stream as the images arrive, at the source weights. There is no penalty until
enough images have arrived.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config_base import require
from bitta.errors import InputError
from bitta.losses import entropy
from bitta.memory import MixedBatch
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.methods.mecta import MectaConfig
from bitta.nn import SavedWeights, Statistics, WrappedModel, norm_parameters
from bitta.seeding import RandomKey
from bitta.source_statistics import FisherInformation, SourceStatistics
from bitta.types import Feedback, Losses, State, softmax


@dataclass(frozen=True, kw_only=True)
class EtaConfig(MectaConfig, UnsupervisedConfig):
    """Settings of ETA."""

    lr: float = 5e-3
    """Learning rate of SGD. The default is the value of the code published with BiTTA on CIFAR. The
    BiTTA paper has 1e-3, the authors 2.5e-4 on ImageNet."""
    momentum: float = 0.9
    """Momentum of SGD, without Nesterov."""
    weight_decay: float = 0.0
    """Weight decay of SGD. The code published with BiTTA has 5e-4 on CIFAR."""
    entropy_margin: float = 0.4
    """Limit E₀ of the entropy of reliable samples, in units of ln C."""
    similarity: float = 0.4
    """Limit ε of the cosine with the moving mean of probabilities. Samples at or above it are
    redundant. The authors use .05 on ImageNet, a public benchmark .4 on CIFAR-10, the BiTTA paper
    .5."""
    moving_average: float = 0.1
    """Weight of a batch in the moving mean of probabilities."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {**PUBLISHED_BASELINE, "weight_decay": 5e-4},
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


class Eta(UnsupervisedAdapter[EtaConfig]):
    """Minimises the entropy of selected samples, with a higher weight for lower entropy."""

    Config = EtaConfig
    paper: ClassVar[str] = "Niu et al., ICML 2022"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    trains: ClassVar[str] = "norm layers"
    is_capturable: bool = False

    def __init__(self, wrapped: WrappedModel, config: EtaConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.mean_probs: Tensor | None = None  # (classes,)
        """m, the moving mean of the probabilities of selected samples."""

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return scale and shift of the normalisation layers."""
        return norm_parameters(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return self.make_sgd(momentum=self.config.momentum, weight_decay=self.config.weight_decay)

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the mean of exp(E₀ - H) H over the selected samples; no term if there are none."""
        logits = self.trained_model(inputs, statistics="batch")
        margin = self.config.entropy_margin * log(logits.shape[-1])
        entropies = entropy(logits)
        is_reliable = entropies.detach() < margin
        is_selected = self._select_non_redundant(softmax(logits.detach()), is_reliable)
        if not is_selected.any():
            return {}
        weights = (margin - entropies.detach()).exp()
        return {"entropy": (weights * entropies)[is_selected].mean()}

    def reset(self) -> None:
        """Also drop the moving mean of probabilities."""
        super().reset()
        self.mean_probs = None

    def state_dict(self) -> State:
        """Return the state, with the moving mean of probabilities."""
        return super().state_dict() | {"mean_probs": self.mean_probs}

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        mean = state["mean_probs"]
        self.mean_probs = None if mean is None else mean.to(self.wrapped.device)

    def _select_non_redundant(self, probs: Tensor, is_reliable: Tensor) -> Tensor:
        """Select reliable rows that differ from the moving mean, (batch,), then move the mean."""
        if self.mean_probs is None:
            if is_reliable.any():
                self.mean_probs = probs[is_reliable].mean(0)
            return is_reliable
        cosine = F.cosine_similarity(self.mean_probs.unsqueeze(0), probs)
        is_selected = is_reliable & (cosine.abs() < self.config.similarity)
        if is_selected.any():
            new_mean = probs[is_selected].mean(0)
            self.mean_probs = self.mean_probs.lerp(new_mean, self.config.moving_average)
        return is_selected


@dataclass(frozen=True, kw_only=True)
class EataConfig(EtaConfig):
    """Settings of EATA."""

    fisher_weight: float = 1.0
    """Weight α of the penalty. The default is the value of the code published with BiTTA on CIFAR,
    and of a public benchmark on CIFAR-10. The BiTTA paper has 2000, like the authors on
    ImageNet."""
    fisher_samples: int = 2000
    """Number of images for the Fisher information, if it is computed from the stream."""
    source_statistics: str = ""
    """File written by "bitta statistics" with the Fisher information of source images. If empty, it
    is computed from the first images of the stream."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": EtaConfig.presets["reference"],
        "paper": {**EtaConfig.presets["paper"], "fisher_weight": 2000.0},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.fisher_weight >= 0, "fisher_weight", self.fisher_weight, "0 or more")
        require(self.fisher_samples >= 1, "fisher_samples", self.fisher_samples, "1 or more")


class FisherPenalty:
    """Penalty α Σ F (θ - θ⁰)², with F the diagonal Fisher information of the source model.

    F is read from a file, or computed from the first images of the stream at the source weights.
    """

    def __init__(
        self,
        wrapped: WrappedModel,
        parameters: list[nn.Parameter],
        config: EataConfig,
        *,
        source: SavedWeights,
    ) -> None:
        trained = {id(parameter) for parameter in parameters}
        named = wrapped.model.named_parameters()
        self._parameters = {name: p for name, p in named if id(p) in trained}
        self._wrapped, self._config = wrapped, config
        self.fisher: dict[str, Tensor] = {}
        """F by name of the parameter; empty until it has been computed."""
        self.partial: FisherInformation | None = None
        """Fisher information that is still being computed from the stream."""
        self._unchecked: SourceStatistics | None = None
        """Statistics from a file, until they have been compared with the source model."""
        self.restart(source)

    def restart(self, source: SavedWeights) -> None:
        """Read F from a file, or start to compute it from the stream, for these source weights."""
        self.close()
        self._source = source
        self._unchecked = None
        self.fisher = {}
        if not self._config.fisher_weight:
            return
        if self._config.source_statistics:
            self.fisher = self._read_file(self._config.source_statistics)
            return
        model = self._wrapped.clone_model()
        source.restore(model.model)
        self.partial = FisherInformation(model, self._config.fisher_samples)

    def add_images(self, inputs: Tensor) -> None:
        """Add images to F until it is complete."""
        if self._unchecked is not None:
            # Checked here, because a loaded session gets its weights after the constructor.
            self._unchecked.require_source(self._source, path=self._config.source_statistics)
            self._unchecked = None
        if self.partial is not None and len(inputs):
            self.partial.add(inputs)
            if self.partial.is_complete:
                self.fisher = self.partial.mean()
                self.close()

    def terms(self) -> dict[str, Tensor]:
        """Return the weighted penalty; no term while F is unknown."""
        if not self.fisher or not self._config.fisher_weight:
            return {}
        source = self._source.on_device(self._wrapped.device)
        penalties = [
            (self.fisher[name] * (parameter - source[name]).square()).sum()
            for name, parameter in self._parameters.items()
        ]
        return {"fisher": self._config.fisher_weight * torch.stack(penalties).sum()}

    def state_dict(self) -> State:
        """Return F, complete or not."""
        return {
            "fisher": dict(self.fisher),
            "partial_fisher": None if self.partial is None else self.partial.state_dict(),
        }

    def load_state_dict(self, state: State, *, source: SavedWeights) -> None:
        """Continue from a saved state, with its source weights."""
        self.restart(source)
        device = self._wrapped.device
        self.fisher = {name: value.to(device) for name, value in state["fisher"].items()}
        if state["partial_fisher"] is None:
            self.close()
        elif self.partial is not None:
            self.partial.load_state_dict(state["partial_fisher"])

    def close(self) -> None:
        """Delete the copy of the source model, which is needed only while F is computed."""
        if self.partial is not None:
            self.partial.wrapped.close()
            self.partial = None

    def _read_file(self, path: str) -> dict[str, Tensor]:
        self._unchecked = SourceStatistics.load(path)
        fisher = self._unchecked.fisher
        for name, parameter in self._parameters.items():
            if name not in fisher or fisher[name].shape != parameter.shape:
                raise InputError(
                    f"{path!r} holds no Fisher information for {name!r} of shape "
                    f'{tuple(parameter.shape)}; write it for this model with "bitta statistics".'
                )
        return {name: fisher[name].to(parameter) for name, parameter in self._parameters.items()}


class Eata(Eta):
    """ETA plus a penalty on the distance from the source weights."""

    Config = EataConfig
    config: EataConfig

    def __init__(self, wrapped: WrappedModel, config: EataConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.penalty = FisherPenalty(wrapped, self.parameters, config, source=self.source_weights)

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Add the images to the Fisher information until it is complete, then adapt as ETA does."""
        self.penalty.add_images(unlabelled)
        return super().adapt(unlabelled, feedback)

    def objective(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Add the penalty if there is any other term. The penalty alone causes no update."""
        terms = super().objective(mixed, random_key)
        return terms | self.penalty.terms() if terms else terms

    def reset(self) -> None:
        """Also drop the Fisher information computed from the stream."""
        super().reset()
        self.penalty.restart(self.source_weights)

    def state_dict(self) -> State:
        """Return the state, with the Fisher information, complete or not."""
        return super().state_dict() | self.penalty.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self.penalty.load_state_dict(state, source=self.source_weights)

    def close(self) -> None:
        """Restore the model and delete the copy of the source model."""
        self.penalty.close()
        super().close()
