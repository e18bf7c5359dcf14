"""What the families share: sizes, blurs and resampling as small matrices, pixels moved by index."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

SIDES = (32, 64, 224)
"""Image sizes with published constants: CIFAR, Tiny-ImageNet, ImageNet."""

T = TypeVar("T")


def constant(table: Mapping[int, Sequence[T]], x: Tensor, severity: int) -> T:
    """The constant for this image size and severity."""
    return table[x.shape[-1]][severity - 1]


def quantised(x: Tensor) -> Tensor:
    """Through 8 bits, truncated, as upstream stores intermediate pictures."""
    return x.clamp(0, 1).mul(255).floor().div(255)


def gaussian(sigma: float, reach: int) -> Tensor:
    """Normalised weights at -reach .. reach."""
    steps = torch.arange(-reach, reach + 1, dtype=torch.float32)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    return weights / weights.sum()


def gaussian_blur(x: Tensor, sigma: float) -> Tensor:
    """Separable blur cut at four sigma, edge values repeated outside."""
    return along_both_axes(x, smoothing_matrix(x.shape[-1], sigma, cut=4, mirror=False))


def smoothing_matrix(side: int, sigma: float, *, cut: float, mirror: bool) -> Tensor:
    """Gaussian blur along one axis, cut at some sigmas; outside, edge values are repeated, or the
    picture is mirrored at the edge pixel's outer rim.
    """
    reach = int(cut * sigma + 0.5)
    if reach == 0:
        return torch.eye(side)
    matrix = torch.zeros(side, side)
    rows = torch.arange(side)
    for step, weight in zip(range(-reach, reach + 1), gaussian(sigma, reach), strict=True):
        place = rows + step
        mirrored = torch.minimum(place % (2 * side), 2 * side - 1 - place % (2 * side))
        matrix[rows, mirrored if mirror else place.clamp(0, side - 1)] += weight
    return matrix


def zoom_matrix(side: int, factor: float) -> Tensor:
    """Enlarge the centre `factor` times along one axis, linearly, and trim to the side."""
    inner = math.ceil(side / factor)
    outer = round(inner * factor)
    start, trim = (side - inner) // 2, (outer - side) // 2
    place = torch.arange(trim, trim + side) * ((inner - 1) / max(outer - 1, 1))
    low = place.floor().long().clamp(max=inner - 1)
    high = (low + 1).clamp(max=inner - 1)
    share = place - low
    matrix = torch.zeros(side, side)
    rows = torch.arange(side)
    matrix.index_put_((rows, start + low), 1 - share, accumulate=True)
    matrix.index_put_((rows, start + high), share, accumulate=True)
    return matrix


def along_both_axes(x: Tensor, matrix: Tensor) -> Tensor:
    """Apply one matrix to rows and columns."""
    matrix = matrix.to(x.device)
    return matrix @ x @ matrix.T


def moved(x: Tensor, *, radius: int, sigma: float, angles: Tensor) -> Tensor:
    """One-sided blur along each image's own angle (degrees), coordinates clamped, 8 bits out.

    Tap i reads the pixel displaced by (ceil(i sin a - 1/2), ceil(i cos a - 1/2)).
    """
    falling = torch.exp(-(torch.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    weights = (falling / falling.sum()).tolist()
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


def uniform(shape: Sequence[int], low: float, high: float, chance: torch.Generator) -> Tensor:
    """Uniform numbers on the generator's device."""
    return torch.rand(tuple(shape), generator=chance, device=chance.device) * (high - low) + low
