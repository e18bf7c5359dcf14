"""ETA and EATA: entropy minimisation on reliable, non-redundant samples.

ETA (EATA without its penalty). Niu et al., ICML 2022,
https://proceedings.mlr.press/v162/niu22a.html.
Departures from the authors' code: the label served comes from a forward of its own, before the
update (the same label); where nothing is selected the answers are still learned from, which the
code published with BiTTA drops then.

EATA. Niu et al., ICML 2022, https://proceedings.mlr.press/v162/niu22a.html
Departures from the authors' code: those of ETA; the penalty acts in every step that is taken. The
authors take the Fisher information from source images (`source_statistics`), the code published
with BiTTA from the first images of the stream, before it adapts. Without a file we do that as they
arrive, at the source weights: there is no penalty until there are enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config import require
from bitta.errors import InputError
from bitta.losses import entropy
from bitta.memory import MixedBatch
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.methods.mecta import MectaAdapter, MectaConfig
from bitta.nn import Statistics, WrappedModel, norm_parameters
from bitta.seeding import RandomKey
from bitta.source_statistics import Fisher, SourceStatistics
from bitta.types import Feedback, Losses, State, softmax


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


class Eta(MectaAdapter[EtaConfig], UnsupervisedAdapter[EtaConfig]):
    """Entropy of selected samples, the surer the heavier."""

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
        """Scale and shift only."""
        return norm_parameters(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return self.make_sgd(momentum=self.config.momentum, weight_decay=self.config.weight_decay)

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        """Mean of exp(E₀ - H) H over the samples selected; nothing where there are none."""
        logits = self.trained_model(inputs, statistics="batch")
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
        self.mean_probs = None if mean is None else mean.to(self.wrapped.device)

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


@dataclass(frozen=True, kw_only=True)
class EataConfig(EtaConfig):
    """Settings of EATA."""

    fisher_weight: float = 1.0
    """Weight α of the penalty; 1 on CIFAR, 2000 on ImageNet and in the BiTTA paper."""
    fisher_samples: int = 2000
    """Images the Fisher information is taken from, where it comes from the stream."""
    source_statistics: str = ""
    """File written by "bitta statistics" that holds the Fisher information of source images; empty
    takes it from the first images of the stream."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": EtaConfig.presets["reference"],
        "paper": {**EtaConfig.presets["paper"], "fisher_weight": 2000.0},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.fisher_weight >= 0, "fisher_weight", self.fisher_weight, "0 or more")
        require(self.fisher_samples >= 1, "fisher_samples", self.fisher_samples, "1 or more")


class Eata(Eta):
    """ETA plus α Σ F (θ - θ⁰)², with F the diagonal Fisher information of the source model."""

    Config = EataConfig
    config: EataConfig

    def __init__(self, wrapped: WrappedModel, config: EataConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        ours = {id(parameter) for parameter in self.parameters}
        self._named = {
            n: p for n, p in self.trained_model.model.named_parameters() if id(p) in ours
        }
        self.fisher: dict[str, Tensor] = {}
        """F by parameter, once it is known."""
        self._collected: Fisher | None = None
        """What will become of it, from the source model, until enough images were seen."""
        self._read_from: SourceStatistics | None = None
        """A file it was read from, until that was seen to be of this source."""
        self._begin()

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Let images of the stream stand for the source's until there are enough; then as ETA."""
        if self._read_from is not None:
            # Now, not before: the weights of a loaded session come after it is made.
            self._read_from.require_source(self.source_weights, path=self.config.source_statistics)
            self._read_from = None
        if self._collected is not None and len(unlabelled):
            self._collected.add(unlabelled)
            if self._collected.complete:
                self.fisher = self._collected.mean()
                self._stop_collecting()
        return super().adapt(unlabelled, feedback)

    def objective(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """The penalty beside any other term; by itself it is no reason for a step."""
        terms = super().objective(mixed, random_key)
        if not terms or not self.fisher or not self.config.fisher_weight:
            return terms
        source = self.source_weights.near(self.wrapped.device)
        each = [
            (self.fisher[name] * (parameter - source[name]).square()).sum()
            for name, parameter in self._named.items()
        ]
        return terms | {"fisher": self.config.fisher_weight * torch.stack(each).sum()}

    def reset(self) -> None:
        """Forget what was taken from the stream, too."""
        super().reset()
        self._begin()

    def state_dict(self) -> State:
        """The Fisher information, complete or not, beside the rest."""
        collected = self._collected
        return super().state_dict() | {
            "fisher": dict(self.fisher),
            "collected": None if collected is None else collected.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        self._begin()
        self.fisher = {n: value.to(self.wrapped.device) for n, value in state["fisher"].items()}
        if state["collected"] is None:
            self._stop_collecting()
        elif self._collected is not None:
            self._collected.load_state_dict(state["collected"])

    def close(self) -> None:
        """Give the model back, and let the source's copy go."""
        self._stop_collecting()
        super().close()

    def _begin(self) -> None:
        """Read the Fisher information, or get ready to take it from the stream."""
        self._stop_collecting()
        self._read_from = None
        self.fisher = {}
        if not self.config.fisher_weight:
            return
        if self.config.source_statistics:
            self.fisher = self._read(self.config.source_statistics)
            return
        source = self.wrapped.clone_model()
        self.source_weights.restore(source.model)
        self._collected = Fisher(source, self.config.fisher_samples)

    def _read(self, path: str) -> dict[str, Tensor]:
        self._read_from = SourceStatistics.load(path)
        fisher = self._read_from.fisher
        for name, parameter in self._named.items():
            if name not in fisher or fisher[name].shape != parameter.shape:
                raise InputError(
                    f"{path!r} holds no Fisher information for {name!r} of shape "
                    f"{tuple(parameter.shape)}; write it with this model, by bitta statistics."
                )
        return {name: fisher[name].to(parameter) for name, parameter in self._named.items()}

    def _stop_collecting(self) -> None:
        if self._collected is not None:
            self._collected.wrapped.close()
            self._collected = None
