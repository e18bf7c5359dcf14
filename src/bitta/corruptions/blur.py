"""Blurs: defocus, frosted glass, motion and zoom."""

import torch
import torch.nn.functional as F
from torch import Tensor

from bitta.corruptions.image_ops import (
    apply_to_both_axes,
    blur_along_lines,
    gaussian_blur,
    gaussian_weights,
    get_constant,
    quantise,
    uniform,
    zoom_matrix,
)

_DEFOCUS = {  # radius of the disk, sigma that smooths its edge
    32: ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
    64: ((0.5, 0.6), (1.0, 0.1), (1.5, 0.1), (2.5, 0.01), (3.0, 0.1)),
    224: ((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5)),
}
_GLASS = {  # sigma, largest shift, iterations
    32: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    64: ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    224: ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
}
_MOTION = {  # radius, sigma
    32: ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)),
    64: ((10, 1.0), (10, 1.5), (10, 2.0), (10, 2.5), (12, 3.0)),
    224: ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0)),
}
_SMALL_ZOOM = ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01))
_ZOOM = {  # number of zoom factors from 1, step between them
    32: _SMALL_ZOOM,
    64: _SMALL_ZOOM,
    224: ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
}


def defocus_blur(x: Tensor, severity: int, _rng: torch.Generator) -> Tensor:
    """Correlate with a disk that has a smoothed edge."""
    kernel = _disk(*get_constant(_DEFOCUS, x, severity)).to(x.device)
    reach = kernel.shape[0] // 2
    padded = F.pad(x, [reach] * 4, mode="reflect").flatten(0, 1).unsqueeze(1)
    return F.conv2d(padded, kernel[None, None]).view(x.shape)


def glass_blur(x: Tensor, severity: int, rng: torch.Generator) -> Tensor:
    """Blur, replace each pixel by one nearby, and blur again."""
    sigma, delta, iterations = get_constant(_GLASS, x, severity)
    pixels = quantise(gaussian_blur(x, sigma))
    for _ in range(iterations):
        positions = _replacement_positions(len(x), x.shape[-1], delta, rng)
        pixels = pixels.flatten(2).gather(2, positions.unsqueeze(1).expand(-1, 3, -1)).view(x.shape)
    return gaussian_blur(pixels, sigma)


def motion_blur(x: Tensor, severity: int, rng: torch.Generator) -> Tensor:
    """Blur along a random direction."""
    radius, sigma = get_constant(_MOTION, x, severity)
    angles = uniform((len(x),), -45, 45, rng)
    return blur_along_lines(x, radius=radius, sigma=sigma, angles=angles)


def zoom_blur(x: Tensor, severity: int, _rng: torch.Generator) -> Tensor:
    """Average the image with enlargements of its centre. The image itself counts twice."""
    count, step = get_constant(_ZOOM, x, severity)
    total = x.clone()
    for index in range(count):
        total += apply_to_both_axes(x, zoom_matrix(x.shape[-1], 1 + index * step))
    return total / (count + 1)


def _disk(radius: float, alias_sigma: float) -> Tensor:
    reach, rim = (8, 1) if radius <= 8 else (int(radius), 2)
    steps = torch.arange(-reach, reach + 1, dtype=torch.float32)
    disk = (steps[:, None] ** 2 + steps[None] ** 2 <= radius**2).float()
    window = gaussian_weights(alias_sigma, rim)
    smooth = (window[:, None] * window[None])[None, None]
    # Reflect without repeating the edge, so that a disk that fills the window keeps its sum.
    padded = F.pad((disk / disk.sum())[None, None], [rim] * 4, mode="reflect")
    kernel: Tensor = F.conv2d(padded, smooth)[0, 0]
    empty = int((kernel.amax(1) > 1e-9).nonzero()[0])
    return kernel[empty : len(kernel) - empty, empty : len(kernel) - empty].clone()


def _replacement_positions(n: int, side: int, delta: int, rng: torch.Generator) -> Tensor:
    """Return the position that each pixel is copied from, (n, side * side), in one iteration.

    Pixels are visited from the lower right. Each is replaced by a neighbour, which may have been
    replaced before. (The original code intends to swap the two, but copies in one direction.)
    """
    size = (2, n, side, side)
    shifts = torch.randint(-delta, delta, size, generator=rng, device=rng.device)
    visited = torch.zeros(side, side, dtype=torch.bool, device=rng.device)
    visited[delta + 1 : side - delta + 1, delta + 1 : side - delta + 1] = True
    down, right = (shifts * visited).flatten(2)
    here = torch.arange(side * side, device=rng.device).expand(n, -1)
    neighbour = here + down * side + right
    source: Tensor = neighbour
    # A source with a higher index was visited before. It holds the value of its own source.
    while (is_replaced := source > here).any():
        here = torch.where(is_replaced, source, here)
        source = neighbour.gather(1, here)
    return source
