"""OWTTT: classify by source prototypes, and align the features of the stream with the source.

Li et al., ICCV 2023, "On the Robustness of Open-World Test-Time Training".
The authors' code expects samples of classes that the source does not know, and keeps a pool of
them. Departures from it: all classes are known, and there is no pool. The cross-entropy on known
classes keeps its half weight and is always used. Otsu's threshold only excludes samples that are
too far from every prototype. A batch is served before it is learned from. Both terms of the loss
are used in the same update. The default learning rate is a tenth of the authors', who use batches
of 256.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config_base import require
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import Statistics, WrappedModel
from bitta.seeding import RandomKey
from bitta.source_statistics import SourceStatistics
from bitta.types import Feedback, Losses, State

_N_THRESHOLDS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """Mean and covariance of features, in double precision."""

    mean: Tensor  # (features,)
    covariance: Tensor  # (features, features)
    n: int = 0
    """Number of samples that they were computed from."""

    def to(self, device: torch.device) -> "Gaussian":
        """Return a copy on a device."""
        mean, covariance = self.mean.to(device).double(), self.covariance.to(device).double()
        return Gaussian(mean, covariance, self.n)

    def empty_like(self) -> "Gaussian":
        """Return a Gaussian of no samples, with the same dimensions."""
        return Gaussian(torch.zeros_like(self.mean), torch.zeros_like(self.covariance))

    def detach(self) -> "Gaussian":
        """Return a copy without gradient."""
        return Gaussian(self.mean.detach(), self.covariance.detach(), self.n)

    def update_with(self, features: Tensor, *, horizon: int) -> "Gaussian":
        """Return the Gaussian with the features of a batch added, (batch, features).

        After `horizon` samples, mean and covariance are moving averages.
        """
        n_new, total = len(features), self.n + len(features)
        # Divide by at least the batch size: a higher rate could make a variance negative.
        rate = 1 / max(n_new, min(total, horizon))
        centred = features - self.mean
        shift = rate * centred.sum(0)
        growth = rate * (centred.T @ centred - n_new * self.covariance)
        covariance = self.covariance + growth - torch.outer(shift, shift)
        return Gaussian(self.mean + shift, covariance, total)

    def state_dict(self) -> State:
        """Return all fields."""
        return {"mean": self.mean, "covariance": self.covariance, "n": self.n}


def symmetric_divergence(one: Gaussian, other: Gaussian) -> Tensor:
    """Return KL(1 || 2) + KL(2 || 1).

    For stability, a 30th of the maximum of Σ1 is added to both diagonals. The log-determinants
    cancel in the sum:
    ½ [tr(Σ2⁻¹ Σ1) + tr(Σ1⁻¹ Σ2) + (μ1 - μ2)ᵀ (Σ1⁻¹ + Σ2⁻¹) (μ1 - μ2)] - d.
    """
    n_features = len(one.mean)
    ridge = (one.covariance.amax() / 30).clamp_min(1e-12)
    added = ridge * torch.eye(n_features, dtype=ridge.dtype, device=ridge.device)
    first, second = one.covariance + added, other.covariance + added
    inverses = [torch.cholesky_inverse(torch.linalg.cholesky(c)) for c in (first, second)]
    gap = one.mean - other.mean
    traces = (inverses[1] * first).sum() + (inverses[0] * second).sum()
    return (traces + gap @ (inverses[0] + inverses[1]) @ gap) / 2 - n_features


def otsu_threshold(scores: Tensor) -> Tensor:
    """Return the threshold that minimises the variance within the two groups that it separates.

    It is one of 0, .01, ..., .99. It is infinite if none of these separates the scores.
    """
    values = scores.double()
    candidates = (
        torch.arange(_N_THRESHOLDS, dtype=values.dtype, device=values.device) / _N_THRESHOLDS
    )
    above = (values > candidates.unsqueeze(1)).double()  # (thresholds, scores)
    spread = _group_spread(values, above) + _group_spread(values, 1 - above)
    splits = (above.sum(1) > 0) & (above.sum(1) < len(values))
    best = spread.masked_fill(~splits, torch.inf).argmin()
    return torch.where(splits.any(), candidates[best], torch.inf)


def _group_spread(values: Tensor, member: Tensor) -> Tensor:
    """Return the sum of squares of each group around its mean, divided by the number of values."""
    means = (member @ values) / member.sum(1).clamp_min(1)
    return (member * (values - means.unsqueeze(1)).square()).mean(1)


_KL_SCALE = 0.05  # Factor of both divergences in the authors' code.


@dataclass(frozen=True, kw_only=True)
class OwtttConfig(UnsupervisedConfig):
    """Settings of OWTTT."""

    source_statistics: str = ""
    """File written by "bitta statistics" for this model. It is required."""
    lr: float = 1e-3
    """Learning rate of SGD. The authors use .01 on CIFAR-10, .001 on CIFAR-100 and ImageNet."""
    momentum: float = 0.9
    """Momentum of SGD. The default is the authors' value."""
    delta: float = 0.1
    """Temperature that divides the cosines. The default is the authors' value."""
    queue: int = 512
    """Number of latest scores that determine the threshold. The default is the authors' value."""
    ce_scale: float = 0.2
    """Twice the weight of the cross-entropy. The authors use .2 on CIFAR, .05 on ImageNet."""
    da_scale: float = 1.0
    """Weight of distribution alignment. The authors use 1 on CIFAR, .1 on ImageNet."""
    horizon: int = 1280
    """Number of latest samples that determine mean and covariance of the stream. The default is the
    authors' value."""
    bn_momentum: float = 0.1
    """Rate at which the running statistics follow an update. The default is the authors' value."""
    judged_among: Literal["all", "judged", "alike"] = "judged"
    """Samples that go through the model together with an answered sample. The setting has no effect
    here, because running statistics normalise the samples."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "authors": {"lr": 0.01},
        "reference": {**PUBLISHED_BASELINE},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require(0 <= self.bn_momentum <= 1, "bn_momentum", self.bn_momentum, "0 to 1")
        require(self.delta > 0, "delta", self.delta, "above 0")
        for name in ("ce_scale", "da_scale"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("queue", "horizon"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")


class Owttt(UnsupervisedAdapter[OwtttConfig]):
    """Classifies by source prototypes and aligns the features of the stream with the source."""

    Config = OwtttConfig
    paper: ClassVar[str] = "Li et al., ICCV 2023"
    needs: ClassVar[str] = "source statistics"
    trains: ClassVar[str] = "all but the head"
    training_statistics: Statistics = "running"
    is_capturable: bool = False

    def __init__(self, wrapped: WrappedModel, config: OwtttConfig, *, seed: int = 0) -> None:
        self._statistics_path = config.source_statistics
        self._source_statistics = SourceStatistics.load_for(
            self._statistics_path, wrapped.model, method="OWTTT"
        )
        self._prototypes = F.normalize(self._source_statistics.prototypes).to(wrapped.device)
        mean, covariance = self._source_statistics.mean, self._source_statistics.covariance
        self._reference = Gaussian(mean, covariance).to(wrapped.device)
        self._is_checked = False
        self._queue: Tensor
        """Latest scores: the distances of samples from their nearest prototype."""
        self._stream: Gaussian
        """Mean and covariance of the features so far."""
        self._next_stream: Gaussian
        """`_stream` including the batch of the current update."""
        self._clear_stream()
        super().__init__(wrapped, config, seed=seed)

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return all parameters but those of the last linear layer, which is not used."""
        shape = self._source_statistics.prototypes.shape
        layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        head = [layer for layer in layers if layer.weight.shape == shape][-1]
        excluded = {id(parameter) for parameter in head.parameters()}
        return [parameter for parameter in model.parameters() if id(parameter) not in excluded]

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return self.make_sgd(momentum=self.config.momentum)

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """Return the cosines to the prototypes, divided by δ."""
        self._check_source()
        return self.training_logits(inputs)

    def training_logits(self, inputs: Tensor) -> Tensor:
        """Return the cosine logits of any number of rows. The loss on answers also uses them."""
        if not len(inputs):
            return inputs.new_zeros((0, len(self._prototypes)))
        features, _ = self.trained_model.features(inputs, statistics="running")
        return F.normalize(features.float()) @ self._prototypes.T / self.config.delta

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Learn from the samples that are near a prototype."""
        self._check_source()
        if len(unlabelled):
            scores = self._scores(self.logits(unlabelled))
            self._queue = torch.cat([self._queue, scores])[-self.config.queue :]
            unlabelled = unlabelled[scores <= otsu_threshold(self._queue)]
        self._next_stream = self._stream
        losses = super().adapt(unlabelled, feedback)
        self._stream = self._next_stream
        return losses

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        """Return distribution alignment, and cross-entropy on the more certain half of the rows."""
        terms = {}
        if self.config.da_scale:
            features, _ = self.trained_model.features(
                inputs, statistics="batch", momentum=self.config.bn_momentum
            )
            moving = self._stream.update_with(features.double(), horizon=self.config.horizon)
            self._next_stream = moving.detach()
            loss = symmetric_divergence(self._reference, moving)
            terms["alignment"] = _KL_SCALE * self.config.da_scale * loss.float()
        if self.config.ce_scale:
            logits = self.training_logits(inputs)
            half = self._scores(logits).argsort(stable=True)[: (len(logits) + 1) // 2]
            loss = F.cross_entropy(logits[half], logits[half].argmax(-1))
            terms["prototypes"] = self.config.ce_scale / 2 * loss
        return terms

    def reset(self) -> None:
        """Also drop the scores, mean and covariance of the stream."""
        super().reset()
        self._clear_stream()

    def state_dict(self) -> State:
        """Return the state, with the scores, mean and covariance of the stream."""
        return super().state_dict() | {
            "queue": self._queue,
            "stream": self._stream.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state. The statistics must belong to its source model."""
        super().load_state_dict(state)
        device = self.wrapped.device
        self._queue = state["queue"].to(device)
        self._stream = Gaussian(**state["stream"]).to(device)
        self._is_checked = False

    def _scores(self, logits: Tensor) -> Tensor:
        """Return 1 - the highest cosine of each row."""
        return 1 - self.config.delta * logits.detach().amax(-1)

    def _check_source(self) -> None:
        """Compare statistics and source model at the first use.

        A loaded session gets its weights only after the constructor.
        """
        if not self._is_checked:
            self._source_statistics.require_source(self.source_weights, path=self._statistics_path)
            self._is_checked = True

    def _clear_stream(self) -> None:
        self._queue = self._prototypes.new_zeros(0)
        self._stream = self._next_stream = self._reference.empty_like()
