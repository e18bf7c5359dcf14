"""TAST-BN: learn from the classes of the nearest samples that the model was sure about.

Jang, Chung and Chung, ICLR 2023, https://openreview.net/forum?id=EzLtB4M1SbM
Departures from the authors' code: a class has at least one place in the support set, of which their
cap of 150 samples leaves none beyond 150 classes; settings are fixed, where they search a grid;
samples somebody was asked about do not join the support set.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config import require
from bitta.losses import entropy
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import Statistics, WrappedModel, norm_parameters
from bitta.seeding import RandomKey
from bitta.types import Feedback, Losses, State


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """A value: a larger support is another one."""

    inputs: Tensor  # (samples, ...)
    labels: Tensor  # (samples,) as predicted when they came in
    entropies: Tensor  # (samples,) of that prediction

    def __len__(self) -> int:
        return len(self.labels)

    def joined(self, other: Self) -> Self:
        """Both, these first."""
        return type(self)(
            torch.cat([self.inputs, other.inputs]),
            torch.cat([self.labels, other.labels]),
            torch.cat([self.entropies, other.entropies]),
        )

    def surest(self, per_class: int) -> Self:
        """The `per_class` of each class with the lowest entropy, in the order they came in."""
        order = self.entropies.argsort(stable=True)
        of_class = F.one_hot(self.labels[order])
        rank = (of_class.cumsum(0) * of_class).sum(-1)  # 1 for the surest of its class
        kept = order[rank <= per_class].sort().values
        return type(self)(self.inputs[kept], self.labels[kept], self.entropies[kept])

    def state_dict(self) -> State:
        """All of it."""
        return {"inputs": self.inputs, "labels": self.labels, "entropies": self.entropies}

    @classmethod
    def of(cls, state: State, *, device: torch.device) -> Self:
        """From a saved state."""
        return cls(*(state[name].to(device) for name in ("inputs", "labels", "entropies")))


@dataclass(frozen=True, kw_only=True)
class TastConfig(UnsupervisedConfig):
    """Settings of TAST-BN; the authors' γ are the epochs."""

    lr: float = 1e-3
    """Step size of Adam; the authors' setting."""
    filter_k: int = 20
    """Samples of each class in the support set, those of lowest entropy; the authors try 1, 5, 20
    and all."""
    max_support: int = 150
    """Bound on all of them, shared by the classes; each has one at least. The authors' value."""
    neighbours: int = 4
    """Support samples whose classes a sample is taught; the authors try 1, 2, 4 and 8."""
    tau: float = 10.0
    """Factor before cosines; the authors' value."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {**PUBLISHED_BASELINE}}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("filter_k", "max_support", "neighbours"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.tau > 0, "tau", self.tau, "above 0")


class Tast(UnsupervisedAdapter[TastConfig]):
    """Classify by the nearest of the surest samples, and teach the normalisation layers that."""

    Config = TastConfig
    paper: ClassVar[str] = "Jang et al., ICLR 2023"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    trains: ClassVar[str] = "norm layers"
    is_capturable: bool = False

    def __init__(self, wrapped: WrappedModel, config: TastConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.support: Support | None = None

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Scale and shift only."""
        return norm_parameters(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Adam."""
        return self.make_adam()

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """Logarithm of what the neighbours say, in the support set as it will be with these."""
        samples, centroids, support = self._seen(inputs, self._extended(inputs))
        found = neighbours_of(samples, support, self.config.neighbours)
        # The mean of softmax(τ cos) over a sample's neighbours.
        probs = (self.config.tau * support @ centroids.T).softmax(-1)[found].mean(1)
        return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Take the samples into the support set once, then take the steps."""
        if len(unlabelled):
            self.support = self._extended(unlabelled)
        return super().adapt(unlabelled, feedback)

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        """KL divergence of each sample's prototype prediction from its neighbours' classes."""
        assert self.support is not None, "adapt takes the samples in before it learns from them"
        samples, centroids, support = self._seen(inputs, self.support)
        found = neighbours_of(samples, support, self.config.neighbours)
        classes = (support @ centroids.T).argmax(-1)
        target = F.one_hot(classes, len(centroids)).to(samples)[found].mean(1)
        log_probs = (self.config.tau * samples @ centroids.T).log_softmax(-1)
        # Divided by classes, too, as the authors' reduction does.
        loss = F.kl_div(log_probs, target, reduction="sum") / target.numel()
        return {"neighbours": loss}

    def reset(self) -> None:
        """An empty support set, too."""
        super().reset()
        self.support = None

    def state_dict(self) -> State:
        """The support set beside the rest."""
        return super().state_dict() | {
            "support": None if self.support is None else self.support.state_dict()
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        saved = state["support"]
        self.support = saved and Support.of(saved, device=self.wrapped.device)

    @torch.no_grad()
    def _extended(self, inputs: Tensor) -> Support:
        """The support set with these samples, labelled by the model as it is now."""
        logits = self.wrapped(inputs, statistics="batch")
        new = Support(inputs, logits.argmax(-1), entropy(logits))
        per_class = min(self.config.filter_k, max(1, self.config.max_support // logits.shape[1]))
        whole = new if self.support is None else self.support.joined(new)
        return whole.surest(per_class)

    def _seen(self, inputs: Tensor, support: Support) -> tuple[Tensor, Tensor, Tensor]:
        """Directions of samples, class centroids and support set, from one forward of all."""
        both = torch.cat([inputs, support.inputs])
        features, logits = self.trained_model.features(both, statistics="batch")
        samples, supporting = features.float().tensor_split((len(inputs),))
        centroids = centroids_of(supporting, support.labels, logits.shape[1])
        return F.normalize(samples), centroids, F.normalize(supporting)


def centroids_of(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Direction of the mean feature of each class; zero for a class without any."""
    return F.normalize(F.one_hot(labels, n_classes).to(features).T @ features)


def neighbours_of(samples: Tensor, support: Tensor, n: int) -> Tensor:
    """Rows of the support nearest to each sample by the angle, (samples, n)."""
    # exp(-(2 - 2 cos)), the authors' nearness, has the order of cos.
    return (samples @ support.T).topk(min(n, len(support))).indices
