"""Shared operations of the corruptions: blurs and resampling as small matrices."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

SIDES = (32, 64, 224)
"""Image sides with published constants: CIFAR, Tiny-ImageNet, ImageNet."""

T = TypeVar("T")


def get_constant(table: Mapping[int, Sequence[T]], x: Tensor, severity: int) -> T:
    """Return the constant for the image size and the severity."""
    return table[x.shape[-1]][severity - 1]


def quantise(x: Tensor) -> Tensor:
    """Truncate to 8 bits, as the original code stores intermediate images."""
    return x.clamp(0, 1).mul(255).floor().div(255)


def gaussian_weights(sigma: float, reach: int) -> Tensor:
    """Return normalised Gaussian weights at -reach .. reach."""
    steps = torch.arange(-reach, reach + 1, dtype=torch.float32)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    return weights / weights.sum()


def gaussian_blur(x: Tensor, sigma: float) -> Tensor:
    """Apply a separable blur, cut off at four sigma, with repeated edge values."""
    return apply_to_both_axes(x, smoothing_matrix(x.shape[-1], sigma, cut=4, mirror=False))


def smoothing_matrix(side: int, sigma: float, *, cut: float, mirror: bool) -> Tensor:
    """Return the matrix of a Gaussian blur along one axis, cut off at `cut` sigma.

    Edge values are repeated outside. With `mirror`, the image is mirrored at its outer border
    instead.
    """
    reach = int(cut * sigma + 0.5)
    if reach == 0:
        return torch.eye(side)
    matrix = torch.zeros(side, side)
    rows = torch.arange(side)
    for step, weight in zip(range(-reach, reach + 1), gaussian_weights(sigma, reach), strict=True):
        position = rows + step
        mirrored = torch.minimum(position % (2 * side), 2 * side - 1 - position % (2 * side))
        matrix[rows, mirrored if mirror else position.clamp(0, side - 1)] += weight
    return matrix


def zoom_matrix(side: int, factor: float) -> Tensor:
    """Return the matrix that enlarges the centre linearly by `factor` along one axis."""
    inner = math.ceil(side / factor)
    outer = round(inner * factor)
    start, trim = (side - inner) // 2, (outer - side) // 2
    position = torch.arange(trim, trim + side) * ((inner - 1) / max(outer - 1, 1))
    low = position.floor().long().clamp(max=inner - 1)
    high = (low + 1).clamp(max=inner - 1)
    share = position - low
    matrix = torch.zeros(side, side)
    rows = torch.arange(side)
    matrix.index_put_((rows, start + low), 1 - share, accumulate=True)
    matrix.index_put_((rows, start + high), share, accumulate=True)
    return matrix


def apply_to_both_axes(x: Tensor, matrix: Tensor) -> Tensor:
    """Apply a matrix to rows and columns."""
    matrix = matrix.to(x.device)
    return matrix @ x @ matrix.T


def blur_along_lines(x: Tensor, *, radius: int, sigma: float, angles: Tensor) -> Tensor:
    """Blur each image to one side, at its own angle in degrees, and round to 8 bits.

    Coordinates are clamped. Tap i reads the pixel displaced by
    (ceil(i sin a - 1/2), ceil(i cos a - 1/2)).
    """
    gaussian = torch.exp(-(torch.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    weights = (gaussian / gaussian.sum()).tolist()
    radians = torch.deg2rad(angles.double())
    side = x.shape[-1]
    steps = torch.arange(side, device=x.device)
    samples = torch.arange(len(x), device=x.device).view(-1, 1, 1, 1)
    channels = torch.arange(x.shape[1], device=x.device).view(1, -1, 1, 1)
    blurred = torch.zeros_like(x)
    for tap, weight in enumerate(weights):
        down = torch.ceil(tap * radians.sin() - 0.5).long().view(-1, 1)
        right = torch.ceil(tap * radians.cos() - 0.5).long().view(-1, 1)
        rows = (steps + down).clamp(0, side - 1)[:, None, :, None]
        columns = (steps + right).clamp(0, side - 1)[:, None, None, :]
        blurred += weight * x[samples, channels, rows, columns]
    return blurred.mul(255).round().div(255)


def uniform(shape: Sequence[int], low: float, high: float, rng: torch.Generator) -> Tensor:
    """Return uniform random numbers on the device of the generator."""
    return torch.rand(tuple(shape), generator=rng, device=rng.device) * (high - low) + low
