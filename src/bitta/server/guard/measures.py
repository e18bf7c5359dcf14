"""Two of the quantities the detector looks at, from tensors."""

from collections.abc import Iterable
from math import sqrt

import torch
from torch import Tensor


def variety(inputs: Tensor) -> float:
    """Standard deviation of each pixel over the samples, averaged over pixels."""
    return float(inputs.float().std(0, correction=0).mean())


@torch.no_grad()
def distance(weights: Iterable[Tensor], source: Iterable[Tensor]) -> float:
    """‖w - w₀‖ / ‖w₀‖ over all tensors together."""
    moved = still = 0.0
    for now, before in zip(weights, source, strict=True):
        moved += float((now - before).double().square().sum())
        still += float(before.double().square().sum())
    return sqrt(moved) / max(sqrt(still), 1e-12)
