"""Noise that is independent for each channel value."""

import torch
from torch import Tensor

from bitta.corruptions.image_ops import get_constant

_GAUSSIAN_SIGMA = {
    32: (0.04, 0.06, 0.08, 0.09, 0.10),
    64: (0.04, 0.08, 0.12, 0.15, 0.18),
    224: (0.08, 0.12, 0.18, 0.26, 0.38),
}
_PHOTONS = {
    32: (500, 250, 100, 75, 50),
    64: (250, 100, 50, 30, 15),
    224: (60, 25, 12, 5, 3),
}
_IMPULSES = {
    32: (0.01, 0.02, 0.03, 0.05, 0.07),
    64: (0.01, 0.02, 0.05, 0.08, 0.14),
    224: (0.03, 0.06, 0.09, 0.17, 0.27),
}


def gaussian_noise(x: Tensor, severity: int, rng: torch.Generator) -> Tensor:
    """Add Gaussian noise."""
    noise = torch.randn(x.shape, generator=rng, device=x.device)
    return x + noise * get_constant(_GAUSSIAN_SIGMA, x, severity)


def shot_noise(x: Tensor, severity: int, rng: torch.Generator) -> Tensor:
    """Add the Poisson noise of a limited number of photons."""
    photons = get_constant(_PHOTONS, x, severity)
    return torch.poisson(x * photons, generator=rng) / photons


def impulse_noise(x: Tensor, severity: int, rng: torch.Generator) -> Tensor:
    """Set random channel values to 0 or 1, with equal probability."""
    amount = get_constant(_IMPULSES, x, severity)
    drawn = torch.rand(x.shape, generator=rng, device=x.device)
    return torch.where(drawn < amount / 2, 0.0, torch.where(drawn < amount, 1.0, x))
