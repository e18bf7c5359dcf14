"""BatchNorm of channels-last images on a CPU, with sums that keep their precision.

torch's own kernel for this layout adds up hundreds of thousands of numbers one after another. That
costs a variance up to 1e-4 and gradients up to a percent of their value, which is enough to make a
model learn visibly worse. Here every sum is torch's own `sum`, which adds in parts.
"""

from typing import Any

import torch
from torch import Tensor


def fits(x: Tensor) -> bool:
    """Whether x is what this is for."""
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return last and x.device.type == "cpu" and not x.is_contiguous()


def normalise_passes(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, passes: int, *, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """BatchNorm of each pass by its own statistics; also these, mean and variance (passes, C)."""
    plain = x.new_zeros(x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))
    weight = plain + 1 if weight is None else weight
    bias = plain if bias is None else bias
    out, mean, var = _Normalise.apply(x, weight, bias, passes, eps)  # type: ignore[no-untyped-call]
    return out, mean, var


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, passes: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised rows, laid out as they came, and the statistics of each pass."""
        out = torch.empty_like(x)
        means, variances = weight.new_empty(2, passes, len(weight))
        for place, (rows, target) in enumerate(
            zip(_rows(x, passes), _rows(out, passes), strict=True)
        ):
            mean = torch.sum(rows, 0, dtype=weight.dtype) / len(rows)
            torch.sub(rows, mean, out=target)
            var = torch.sum(target.square(), 0, dtype=weight.dtype) / len(rows)
            scale = weight * (var + eps).rsqrt()
            torch.addcmul(bias, target, scale, out=target)
            means[place], variances[place] = mean, var
        ctx.save_for_backward(x, weight, means, (variances + eps).rsqrt())
        ctx.mark_non_differentiable(means, variances)
        return out, means, variances

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Through mean and variance too."""
        x, weight, means, inverses = ctx.saved_tensors
        out = torch.empty_like(x)
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        by_weight, by_bias = torch.zeros_like(weight), torch.zeros_like(weight)
        parts = (_rows(tensor, len(means)) for tensor in (x, gradient, out))
        for rows, slopes, target, mean, inverse in zip(*parts, means, inverses, strict=True):
            n = len(rows)
            total = torch.sum(slopes, 0, dtype=weight.dtype)
            torch.sub(rows, mean, out=target)
            along = torch.sum(target * slopes, 0, dtype=weight.dtype) * inverse
            scale = weight * inverse
            # dx = scale (slope - total / n - normal along / n), normal = (x - mean) inverse
            torch.addcmul(-scale * total / n, target, -scale * inverse * along / n, out=target)
            target.addcmul_(slopes, scale.to(target.dtype))
            by_weight += along
            by_bias += total
        return out, by_weight, by_bias, None, None


def _rows(x: Tensor, passes: int) -> tuple[Tensor, ...]:
    """Each pass as (rows, channels): a view, channels being closest together in memory."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).chunk(passes)
