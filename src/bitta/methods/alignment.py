"""What OWTTT compares: two Gaussians of features, and near with far."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bitta.types import State

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
    room = (one.covariance.amax() / 30).clamp_min(1e-12)
    widening = room * torch.eye(n_features, dtype=room.dtype, device=room.device)
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
