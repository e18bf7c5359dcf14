"""The random view of an image that CoTTA and RoTTA learn from, for a whole batch at once.

Wang et al., CVPR 2022: other colours, a small turn, shift and scaling, a light blur, perhaps a
mirror image, and a little noise. Each image draws its own parameters; the order of the changes of
colour is drawn once for each view of a batch.
"""

from collections.abc import Callable
from math import radians
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from bitta.errors import InputError
from bitta.seeding import RandomKey

Change: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Changes images by a factor each, (n, 1, 1, 1)."""

_REACH = 2
"""Pixels that the blur, five wide, looks at on either side."""


def augmented(images: Tensor, chance: RandomKey, *place: str | int, views: int = 1) -> Tensor:
    """So many views of all images, one after another, drawn at a place of `chance`.

    (n, channels, height, width) become (views x n, ...); values beyond 0 to 1 are clipped.
    """
    if images.dim() != 4 or not images.is_floating_point():
        raise InputError(
            f"a {images.dtype} tensor of shape {tuple(images.shape)} cannot be augmented; float "
            "images (n, channels, height, width) are needed. Use a method that does not augment."
        )
    generator = chance.at(*place, device=images.device)
    pixels = images.to(torch.promote_types(images.dtype, torch.float32)).clamp(0, 1)
    pixels = pixels.repeat(views, 1, 1, 1)
    pixels = _recoloured(pixels, generator, _orders(pixels, chance.at(*place, "order"), views))
    pixels = _blurred(_moved(pixels, generator), generator)
    pixels = _mirrored(pixels, generator)
    noise = torch.randn(pixels.shape, generator=generator, device=generator.device)
    return pixels.add(noise, alpha=0.005).clamp(0, 1).to(images.dtype)


def _orders(x: Tensor, generator: torch.Generator, views: int) -> list[list[int]]:
    """In which order each view is recoloured; drawn on the host, which has to know."""
    n_changes = len(_CHANGES) if x.shape[1] == 3 else 3
    return [torch.randperm(n_changes, generator=generator).tolist() for _ in range(views)]


def _recoloured(x: Tensor, generator: torch.Generator, orders: list[list[int]]) -> Tensor:
    """Brightness, contrast and gamma; of colour images saturation and hue, too.

    At each place of the orders all views that are due the same change get it together.
    """
    changes = _CHANGES[: len(orders[0])]
    factors = [_drawn(x, low, high, generator).chunk(len(orders)) for _, low, high in changes]
    views = list(x.chunk(len(orders)))
    for due in zip(*orders, strict=True):
        for number, (change, *_) in enumerate(changes):
            rows = [row for row, wanted in enumerate(due) if wanted == number]
            if rows:
                given = torch.cat([views[row] for row in rows])
                changed = change(given, torch.cat([factors[number][row] for row in rows]))
                for row, view in zip(rows, changed.clamp(0, 1).chunk(len(rows)), strict=True):
                    views[row] = view
    return torch.cat(views)


def _moved(x: Tensor, generator: torch.Generator) -> Tensor:
    """Turned, scaled and shifted about the centre, and as much more around as the blur looks at.

    Edge values are repeated outside. Padding by half a side and cropping again would give the same.
    """
    height, width = x.shape[-2:]
    angle = _drawn(x, radians(-15), radians(15), generator)[..., 0]
    scale = _drawn(x, 0.9, 1.1, generator)[..., 0]
    # A sixteenth of the padded image, which is twice as large.
    right, down = (_drawn(x, -side / 8, side / 8, generator)[..., 0] for side in (width, height))
    xs = (_centred(width + 2 * _REACH, x) - right) / scale  # (n, 1, width)
    ys = (_centred(height + 2 * _REACH, x)[:, None] - down) / scale  # (n, height, 1)
    cos, sin = angle.cos(), angle.sin()
    grid = torch.stack(
        [(cos * xs + sin * ys) * (2 / width), (cos * ys - sin * xs) * (2 / height)], dim=-1
    )
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _blurred(x: Tensor, generator: torch.Generator) -> Tensor:
    """Weighted means of five pixels, down and across, as far as all five are there."""
    sigma = _drawn(x, 0.001, 0.5, generator).flatten(1)  # (n, 1)
    weights = torch.softmax(-0.5 * (_centred(2 * _REACH + 1, x) / sigma).square(), dim=-1)
    for axis in (2, 3):
        size = x.shape[axis] - 2 * _REACH
        parts = [x.narrow(axis, place, size) for place in range(2 * _REACH + 1)]
        x = torch.zeros_like(parts[0])
        for part, weight in zip(parts, weights.T, strict=True):
            x.addcmul_(part, weight[:, None, None, None])
    return x


def _mirrored(x: Tensor, generator: torch.Generator) -> Tensor:
    """Half of them."""
    return torch.where(_drawn(x, 0, 1, generator) < 0.5, x.flip(-1), x)


def _brightened(x: Tensor, factor: Tensor) -> Tensor:
    return x * factor


def _contrasted(x: Tensor, factor: Tensor) -> Tensor:
    mean = _grey(x).mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


def _gamma_corrected(x: Tensor, factor: Tensor) -> Tensor:
    return x**factor


def _saturated(x: Tensor, factor: Tensor) -> Tensor:
    grey = _grey(x)
    return grey + factor * (x - grey)


def _hue_shifted(x: Tensor, turn: Tensor) -> Tensor:
    """Hue moved by a share of the colour circle, value and chroma kept."""
    red, green, blue = x.split(1, dim=1)
    value = x.amax(1, keepdim=True)
    chroma = value - x.amin(1, keepdim=True)
    divisor = chroma.clamp_min(torch.finfo(x.dtype).tiny)
    of_green = torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    hue = torch.where(value == red, (green - blue) / divisor, of_green) + 6 * turn
    # Each channel is the value less the chroma times a trapezium of the hue, counted in sixths.
    away = (hue + torch.tensor([5.0, 3.0, 1.0], device=x.device).view(3, 1, 1)) % 6
    return value - chroma * torch.minimum(away, 4 - away).clamp(0, 1)


def _grey(x: Tensor) -> Tensor:
    """What a picture without colours would show, (n, 1, height, width)."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * x.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)


def _centred(n: int, like: Tensor) -> Tensor:
    """Places of n pixels in a row, counted from its middle."""
    return torch.arange(n, device=like.device, dtype=like.dtype) - (n - 1) / 2


def _drawn(x: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    """A uniform number for each image, (n, 1, 1, 1)."""
    drawn = torch.rand((len(x), 1, 1, 1), generator=generator, device=generator.device)
    return (low + (high - low) * drawn).to(x)


_CHANGES: tuple[tuple[Change, float, float], ...] = (
    (_brightened, 0.6, 1.4),
    (_contrasted, 0.7, 1.3),
    (_gamma_corrected, 0.7, 1.3),
    (_saturated, 0.5, 1.5),
    (_hue_shifted, -0.06, 0.06),
)
