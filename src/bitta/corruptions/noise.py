"""Noise: independent per channel value."""

import torch
from torch import Tensor

_GAUSSIAN_SIGMA = (0.04, 0.06, 0.08, 0.09, 0.10)


def gaussian_noise(x: Tensor, severity: int, chance: torch.Generator) -> Tensor:
    """Add normal noise."""
    noise = torch.randn(x.shape, generator=chance, device=x.device)
    return x + noise * _GAUSSIAN_SIGMA[severity - 1]
