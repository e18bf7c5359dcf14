"""OWTTT: keep features where the source had them, near the prototypes of their classes.

Li et al., ICCV 2023, "On the Robustness of Open-World Test-Time Training".
Departures from the authors' code, which expects classes that the source does not know: there are
none here, so the pool of such samples and its classes are left out, the cross-entropy on known
classes keeps its half weight and is always there, and Otsu's threshold only says which samples are
too far from every prototype to learn from. A batch is served before it is learned from. Both terms
make one step. The default step size is a tenth of theirs, which is for batches of 256.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config import require
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import Statistics, WrappedModel
from bitta.seeding import RandomKey
from bitta.source_statistics import SourceStatistics
from bitta.types import Feedback, Losses, State

_THRESHOLDS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """Mean and covariance of features, in double precision."""

    mean: Tensor  # (features,)
    covariance: Tensor  # (features, features)
    n: int = 0
    """How many features they are of."""

    def to(self, device: torch.device) -> "Gaussian":
        """On a device."""
        mean, covariance = self.mean.to(device).double(), self.covariance.to(device).double()
        return Gaussian(mean, covariance, self.n)

    def none(self) -> "Gaussian":
        """Of nothing yet, in as many dimensions."""
        return Gaussian(torch.zeros_like(self.mean), torch.zeros_like(self.covariance))

    def detach(self) -> "Gaussian":
        """Free of autograd."""
        return Gaussian(self.mean.detach(), self.covariance.detach(), self.n)

    def moved(self, features: Tensor, *, horizon: int) -> "Gaussian":
        """With new features, (batch, features); exact for the first `horizon`, then moving."""
        n_new, total = len(features), self.n + len(features)
        # Not below the batch: a larger rate would make the covariance negative.
        rate = 1 / max(n_new, min(total, horizon))
        away = features - self.mean
        step = rate * away.sum(0)
        grown = rate * (away.T @ away - n_new * self.covariance)
        covariance = self.covariance + grown - torch.outer(step, step)
        return Gaussian(self.mean + step, covariance, total)

    def state_dict(self) -> State:
        """All of it."""
        return {"mean": self.mean, "covariance": self.covariance, "n": self.n}


def symmetric_divergence(one: Gaussian, other: Gaussian) -> Tensor:
    """KL(1 || 2) + KL(2 || 1), each covariance widened by a thirtieth of the first's maximum.

    The logarithms of both determinants cancel in the sum:
    ½ [tr(Σ2⁻¹ Σ1) + tr(Σ1⁻¹ Σ2) + (μ1 - μ2)ᵀ (Σ1⁻¹ + Σ2⁻¹) (μ1 - μ2)] - d.
    """
    n_features = len(one.mean)
    ridge = (one.covariance.amax() / 30).clamp_min(1e-12)
    widening = ridge * torch.eye(n_features, dtype=ridge.dtype, device=ridge.device)
    first, second = one.covariance + widening, other.covariance + widening
    inverses = [torch.cholesky_inverse(torch.linalg.cholesky(c)) for c in (first, second)]
    apart = one.mean - other.mean
    traces = (inverses[1] * first).sum() + (inverses[0] * second).sum()
    return (traces + apart @ (inverses[0] + inverses[1]) @ apart) / 2 - n_features


def otsu_threshold(scores: Tensor) -> Tensor:
    """Of 0, .01 ... .99 the first that parts the scores into the two tightest groups.

    Infinite where none parts them: then all are alike.
    """
    values = scores.double()
    candidates = torch.arange(_THRESHOLDS, dtype=values.dtype, device=values.device) / _THRESHOLDS
    above = (values > candidates.unsqueeze(1)).double()  # (thresholds, scores)
    within = _spread(values, above) + _spread(values, 1 - above)
    parts = (above.sum(1) > 0) & (above.sum(1) < len(values))
    best = within.masked_fill(~parts, torch.inf).argmin()
    return torch.where(parts.any(), candidates[best], torch.inf)


def _spread(values: Tensor, member: Tensor) -> Tensor:
    """Weighted variance of each group: its sum of squares around its mean, over all values."""
    means = (member @ values) / member.sum(1).clamp_min(1)
    return (member * (values - means.unsqueeze(1)).square()).mean(1)


_KL_SCALE = 0.05  # before both divergences in the authors' code


@dataclass(frozen=True, kw_only=True)
class OwtttConfig(UnsupervisedConfig):
    """Settings of OWTTT."""

    source_statistics: str = ""
    """File written by "bitta statistics" with this very model; OWTTT does not work without."""
    lr: float = 1e-3
    """Step size of SGD; the authors: .01 on CIFAR-10, .001 on CIFAR-100 and ImageNet."""
    momentum: float = 0.9
    """Momentum of SGD; the authors' value."""
    delta: float = 0.1
    """Temperature: what cosines are divided by; the authors' value."""
    queue: int = 512
    """How many of the last scores the threshold is found from; the authors' value."""
    ce_scale: float = 0.2
    """Twice the weight of cross-entropy; the authors: .2 on CIFAR, .05 on ImageNet."""
    da_scale: float = 1.0
    """Weight of distribution alignment; the authors: 1 on CIFAR, .1 on ImageNet."""
    horizon: int = 1280
    """Samples that mean and covariance of the stream reach back to; the authors' value."""
    bn_momentum: float = 0.1
    """How fast the running statistics follow each step; the authors' value."""
    judged_among: Literal["all", "judged", "alike"] = "judged"
    """Which samples go through the model along with answered ones; of no effect here, since running
    statistics normalise them."""

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
    """Classify by source prototypes; align the stream's features with the source's."""

    Config = OwtttConfig
    paper: ClassVar[str] = "Li et al., ICCV 2023"
    needs: ClassVar[str] = "source statistics"
    trains: ClassVar[str] = "all but the head"
    training_statistics: Statistics = "running"
    is_capturable: bool = False

    def __init__(self, wrapped: WrappedModel, config: OwtttConfig, *, seed: int = 0) -> None:
        self._path = config.source_statistics
        self._source = SourceStatistics.needed(self._path, wrapped.model, by="OWTTT")
        self._prototypes = F.normalize(self._source.prototypes).to(wrapped.device)
        self._reference = Gaussian(self._source.mean, self._source.covariance).to(wrapped.device)
        self._fits = False
        self._queue: Tensor
        """The last scores: how far samples were from every prototype."""
        self._stream: Gaussian
        """Of the features seen so far; `_next` with those of the batch at hand."""
        self._next: Gaussian
        self._forget()
        super().__init__(wrapped, config, seed=seed)

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Everything but the last linear layer, which is not asked for its opinion."""
        shape = self._source.prototypes.shape
        layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        head = [layer for layer in layers if layer.weight.shape == shape][-1]
        left_out = {id(parameter) for parameter in head.parameters()}
        return [parameter for parameter in model.parameters() if id(parameter) not in left_out]

    def make_optimiser(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return self.make_sgd(momentum=self.config.momentum)

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """Cosines to the prototypes, over δ."""
        self._require_fit()
        return self.training_logits(inputs)

    def training_logits(self, inputs: Tensor) -> Tensor:
        """The same of any rows; answers are learned from through what is served."""
        if not len(inputs):
            return inputs.new_zeros((0, len(self._prototypes)))
        features, _ = self.trained_model.features(inputs, statistics="running")
        return F.normalize(features.float()) @ self._prototypes.T / self.config.delta

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Leave out what is far from every prototype, learn from the rest."""
        self._require_fit()
        if len(unlabelled):
            scores = self._scores(self.logits(unlabelled))
            self._queue = torch.cat([self._queue, scores])[-self.config.queue :]
            unlabelled = unlabelled[scores <= otsu_threshold(self._queue)]
        self._next = self._stream
        losses = super().adapt(unlabelled, feedback)
        self._stream = self._next
        return losses

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        """Distribution alignment, and cross-entropy on the surer half."""
        terms = {}
        if self.config.da_scale:
            features, _ = self.trained_model.features(
                inputs, statistics="batch", momentum=self.config.bn_momentum
            )
            moving = self._stream.moved(features.double(), horizon=self.config.horizon)
            self._next = moving.detach()
            loss = symmetric_divergence(self._reference, moving)
            terms["alignment"] = _KL_SCALE * self.config.da_scale * loss.float()
        if self.config.ce_scale:
            logits = self.training_logits(inputs)
            surest = self._scores(logits).argsort(stable=True)[: (len(logits) + 1) // 2]
            loss = F.cross_entropy(logits[surest], logits[surest].argmax(-1))
            terms["prototypes"] = self.config.ce_scale / 2 * loss
        return terms

    def reset(self) -> None:
        """Forget the stream's scores and features, too."""
        super().reset()
        self._forget()

    def state_dict(self) -> State:
        """Scores and features of the stream beside the rest."""
        return super().state_dict() | {
            "queue": self._queue,
            "stream": self._stream.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state; its source is what the statistics must be of."""
        super().load_state_dict(state)
        device = self.wrapped.device
        self._queue = state["queue"].to(device)
        self._stream = Gaussian(**state["stream"]).to(device)
        self._fits = False

    def _scores(self, logits: Tensor) -> Tensor:
        """1 - the largest cosine: how far from every prototype."""
        return 1 - self.config.delta * logits.detach().amax(-1)

    def _require_fit(self) -> None:
        """At first use: the weights of a loaded session are not there before."""
        if not self._fits:
            self._source.require_source(self.source_weights, path=self._path)
            self._fits = True

    def _forget(self) -> None:
        self._queue = self._prototypes.new_zeros(0)
        self._stream = self._next = self._reference.none()
