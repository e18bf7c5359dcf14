"""Robust batch normalisation: by statistics that follow the batches slowly (RoTTA, 2023)."""

import torch
from torch import Tensor

from bitta.nn.norm import Call


class RobustNorm:
    """A `Normaliser`: the running statistics move by `rate`, then normalise the batch.

    Gradients flow through the batch's share of them.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, call: Call, passes: int) -> Tensor:  # noqa: ARG002
        """What the layer gives; all rows count as one batch."""
        x, running_mean, running_var, weight, bias, *_, eps = call
        assert running_mean is not None
        assert running_var is not None
        mean, var = running_mean, running_var
        if x.numel() > x.shape[1]:  # one value per channel has no variance
            rows = [axis for axis in range(x.dim()) if axis != 1]
            batch_var, batch_mean = torch.var_mean(x.to(mean.dtype), rows, correction=0)
            mean = mean.lerp(batch_mean, self.rate)
            var = var.lerp(batch_var, self.rate)
            running_mean.copy_(mean.detach())
            running_var.copy_(var.detach())
        scale = torch.rsqrt(var + eps) * (1 if weight is None else weight)
        shift = (0 if bias is None else bias) - mean * scale
        channels = (-1, *[1] * (x.dim() - 2))
        return (x * scale.view(channels) + shift.view(channels)).to(x.dtype)
