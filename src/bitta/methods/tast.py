"""TAST-BN: learn from the classes of the nearest samples that the model was certain about.

Jang, Chung and Chung, ICLR 2023, https://openreview.net/forum?id=EzLtB4M1SbM
Departures from the authors' code: each class has at least one sample in the support set; the
authors' limit of 150 samples leaves none per class if there are more than 150 classes. The settings
are fixed; the authors search a grid. Samples with a question do not join the support set.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config_base import require
from bitta.losses import entropy
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import Statistics, WrappedModel, norm_parameters
from bitta.seeding import RandomKey
from bitta.types import Feedback, Losses, State


@dataclass(frozen=True, slots=True, eq=False)
class SupportSet:
    """Immutable set of samples with their predicted labels."""

    inputs: Tensor  # (samples, ...)
    labels: Tensor  # (samples,) as predicted when the sample was added
    entropies: Tensor  # (samples,) of that prediction

    def __len__(self) -> int:
        return len(self.labels)

    def concatenate(self, other: Self) -> Self:
        """Return a set with the samples of both sets, this one first."""
        return type(self)(
            torch.cat([self.inputs, other.inputs]),
            torch.cat([self.labels, other.labels]),
            torch.cat([self.entropies, other.entropies]),
        )

    def most_certain(self, per_class: int) -> Self:
        """Return the `per_class` samples of each class with the lowest entropy, in their order."""
        order = self.entropies.argsort(stable=True)
        of_class = F.one_hot(self.labels[order])
        rank = (of_class.cumsum(0) * of_class).sum(-1)  # 1 for the most certain sample of a class
        kept = order[rank <= per_class].sort().values
        return type(self)(self.inputs[kept], self.labels[kept], self.entropies[kept])

    def state_dict(self) -> State:
        """Return all fields."""
        return {"inputs": self.inputs, "labels": self.labels, "entropies": self.entropies}

    @classmethod
    def from_state_dict(cls, state: State, *, device: torch.device) -> Self:
        """Restore a saved state."""
        return cls(*(state[name].to(device) for name in ("inputs", "labels", "entropies")))


@dataclass(frozen=True, kw_only=True)
class TastConfig(UnsupervisedConfig):
    """Settings of TAST-BN. The authors' γ is the setting `epochs`."""

    lr: float = 1e-3
    """Learning rate of Adam. The default is the authors' value."""
    filter_k: int = 20
    """Number of samples of each class in the support set, those of lowest entropy. The authors try
    1, 5, 20 and all."""
    max_support: int = 150
    """Maximum size of the support set, divided among the classes. Each class has at least one
    sample. The default is the authors' value."""
    neighbours: int = 4
    """Number of nearest support samples that a sample learns from. The authors try 1, 2, 4, 8."""
    tau: float = 10.0
    """Factor τ of the cosines in the softmax. The default is the authors' value."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {**PUBLISHED_BASELINE}}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("filter_k", "max_support", "neighbours"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.tau > 0, "tau", self.tau, "above 0")


class Tast(UnsupervisedAdapter[TastConfig]):
    """Classifies by the nearest support samples and trains the normalisation layers to agree."""

    Config = TastConfig
    paper: ClassVar[str] = "Jang et al., ICLR 2023"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    trains: ClassVar[str] = "norm layers"
    is_capturable: bool = False

    def __init__(self, wrapped: WrappedModel, config: TastConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.support: SupportSet | None = None

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return scale and shift of the normalisation layers."""
        return norm_parameters(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return self.make_adam()

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """Return the log of the neighbours' mean class probabilities.

        The inputs join the support set for this call only.
        """
        extended = self._extend_support(inputs)
        samples, centroids, support = self._compute_directions(inputs, extended)
        found = find_neighbours(samples, support, self.config.neighbours)
        # The mean of softmax(τ cos) over a sample's neighbours.
        probs = (self.config.tau * support @ centroids.T).softmax(-1)[found].mean(1)
        return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Add the samples to the support set once, then make the updates."""
        if len(unlabelled):
            self.support = self._extend_support(unlabelled)
        return super().adapt(unlabelled, feedback)

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the KL divergence of the prototype predictions from the neighbours' classes."""
        assert self.support is not None, "adapt adds the samples before it learns from them"
        samples, centroids, support = self._compute_directions(inputs, self.support)
        found = find_neighbours(samples, support, self.config.neighbours)
        classes = (support @ centroids.T).argmax(-1)
        target = F.one_hot(classes, len(centroids)).to(samples)[found].mean(1)
        log_probs = (self.config.tau * samples @ centroids.T).log_softmax(-1)
        # Also divided by the number of classes, as in the authors' code.
        loss = F.kl_div(log_probs, target, reduction="sum") / target.numel()
        return {"neighbours": loss}

    def reset(self) -> None:
        """Also empty the support set."""
        super().reset()
        self.support = None

    def state_dict(self) -> State:
        """Return the state, with the support set."""
        return super().state_dict() | {
            "support": None if self.support is None else self.support.state_dict()
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        saved = state["support"]
        device = self.wrapped.device
        self.support = saved and SupportSet.from_state_dict(saved, device=device)

    @torch.no_grad()
    def _extend_support(self, inputs: Tensor) -> SupportSet:
        """Return the support set with these samples added, labelled by the current model."""
        logits = self.wrapped(inputs, statistics="batch")
        new = SupportSet(inputs, logits.argmax(-1), entropy(logits))
        per_class = min(self.config.filter_k, max(1, self.config.max_support // logits.shape[1]))
        joined = new if self.support is None else self.support.concatenate(new)
        return joined.most_certain(per_class)

    def _compute_directions(
        self, inputs: Tensor, support: SupportSet
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return unit vectors of samples, class centroids and support set, in one forward pass."""
        both = torch.cat([inputs, support.inputs])
        features, logits = self.trained_model.features(both, statistics="batch")
        samples, supporting = features.float().tensor_split((len(inputs),))
        centroids = compute_centroids(supporting, support.labels, logits.shape[1])
        return F.normalize(samples), centroids, F.normalize(supporting)


def compute_centroids(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return the unit vector of the mean feature of each class; zero for an empty class."""
    return F.normalize(F.one_hot(labels, n_classes).to(features).T @ features)


def find_neighbours(samples: Tensor, support: Tensor, n: int) -> Tensor:
    """Return the rows of the support with the smallest angle to each sample, (samples, n)."""
    # The authors' exp(-(2 - 2 cos)) has the order of cos.
    return (samples @ support.T).topk(min(n, len(support))).indices
