"""Random views of images for CoTTA and RoTTA, computed for a whole batch at once.

Wang et al., CVPR 2022: changes of colour, a small rotation, shift and scaling, a light blur, a
mirror image of half of the images, and a little noise. Each image has its own random parameters.
The order of the changes of colour is drawn once for each view of a batch.
"""

from collections.abc import Callable
from math import radians
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from bitta.errors import InputError
from bitta.seeding import RandomKey

ColourChange: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Function of images and one factor per image, (n, 1, 1, 1)."""

_BLUR_RADIUS = 2
"""Pixels on either side of the centre of the blur."""


def augment_images(
    images: Tensor, random_key: RandomKey, *place: str | int, views: int = 1
) -> Tensor:
    """Return random views of images, (views x n, channels, height, width), view after view.

    The key of the random numbers is `random_key` followed by `place`. Values are clipped to 0 to 1.
    """
    if images.dim() != 4 or not images.is_floating_point():
        raise InputError(
            f"a {images.dtype} tensor of shape {tuple(images.shape)} cannot be augmented; float "
            "images (n, channels, height, width) are needed. Use a method without augmentation."
        )
    rng = random_key.at(*place, device=images.device)
    pixels = images.to(torch.promote_types(images.dtype, torch.float32)).clamp(0, 1)
    pixels = pixels.repeat(views, 1, 1, 1)
    orders = _draw_orders(pixels, random_key.at(*place, "order"), views)
    pixels = _change_colours(pixels, rng, orders)
    pixels = _blur(_transform(pixels, rng), rng)
    pixels = _mirror_half(pixels, rng)
    noise = torch.randn(pixels.shape, generator=rng, device=rng.device)
    return pixels.add(noise, alpha=0.005).clamp(0, 1).to(images.dtype)


def _draw_orders(x: Tensor, rng: torch.Generator, n_views: int) -> list[list[int]]:
    """Draw the order of the colour changes of each view, on the CPU."""
    n_changes = len(_COLOUR_CHANGES) if x.shape[1] == 3 else 3
    return [torch.randperm(n_changes, generator=rng).tolist() for _ in range(n_views)]


def _change_colours(x: Tensor, rng: torch.Generator, orders: list[list[int]]) -> Tensor:
    """Change brightness, contrast and gamma; in colour images also saturation and hue.

    Views that have the same change at the same position in their order are changed together.
    """
    changes = _COLOUR_CHANGES[: len(orders[0])]
    factors = [_draw_uniform(x, low, high, rng).chunk(len(orders)) for _, low, high in changes]
    views = list(x.chunk(len(orders)))
    for change_of_view in zip(*orders, strict=True):
        for number, (change, *_) in enumerate(changes):
            rows = [row for row, wanted in enumerate(change_of_view) if wanted == number]
            if rows:
                given = torch.cat([views[row] for row in rows])
                changed = change(given, torch.cat([factors[number][row] for row in rows]))
                for row, view in zip(rows, changed.clamp(0, 1).chunk(len(rows)), strict=True):
                    views[row] = view
    return torch.cat(views)


def _transform(x: Tensor, rng: torch.Generator) -> Tensor:
    """Rotate, scale and shift images about their centre, with a border for the blur.

    Edge values are repeated outside. The result is the same as padding the images by half a side,
    transforming them, and cropping them again.
    """
    height, width = x.shape[-2:]
    angle = _draw_uniform(x, radians(-15), radians(15), rng)[..., 0]
    scale = _draw_uniform(x, 0.9, 1.1, rng)[..., 0]
    # The shift is up to a sixteenth of the padded image, which is twice as large.
    right, down = (_draw_uniform(x, -side / 8, side / 8, rng)[..., 0] for side in (width, height))
    xs = (_centred_positions(width + 2 * _BLUR_RADIUS, x) - right) / scale  # (n, 1, width)
    ys = (
        _centred_positions(height + 2 * _BLUR_RADIUS, x)[:, None] - down
    ) / scale  # (n, height, 1)
    cos, sin = angle.cos(), angle.sin()
    grid = torch.stack(
        [(cos * xs + sin * ys) * (2 / width), (cos * ys - sin * xs) * (2 / height)], dim=-1
    )
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _blur(x: Tensor, rng: torch.Generator) -> Tensor:
    """Blur by weighted means of five pixels along each axis. This removes the border."""
    sigma = _draw_uniform(x, 0.001, 0.5, rng).flatten(1)  # (n, 1)
    weights = torch.softmax(
        -0.5 * (_centred_positions(2 * _BLUR_RADIUS + 1, x) / sigma).square(), dim=-1
    )
    for axis in (2, 3):
        size = x.shape[axis] - 2 * _BLUR_RADIUS
        parts = [x.narrow(axis, place, size) for place in range(2 * _BLUR_RADIUS + 1)]
        x = torch.zeros_like(parts[0])
        for part, weight in zip(parts, weights.T, strict=True):
            x.addcmul_(part, weight[:, None, None, None])
    return x


def _mirror_half(x: Tensor, rng: torch.Generator) -> Tensor:
    """Mirror each image with a probability of one half."""
    return torch.where(_draw_uniform(x, 0, 1, rng) < 0.5, x.flip(-1), x)


def _change_brightness(x: Tensor, factor: Tensor) -> Tensor:
    return x * factor


def _change_contrast(x: Tensor, factor: Tensor) -> Tensor:
    mean = _grey(x).mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


def _change_gamma(x: Tensor, factor: Tensor) -> Tensor:
    return x**factor


def _change_saturation(x: Tensor, factor: Tensor) -> Tensor:
    grey = _grey(x)
    return grey + factor * (x - grey)


def _change_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Move the hue by a share of the colour circle. Value and chroma stay the same."""
    red, green, blue = x.split(1, dim=1)
    value = x.amax(1, keepdim=True)
    chroma = value - x.amin(1, keepdim=True)
    divisor = chroma.clamp_min(torch.finfo(x.dtype).tiny)
    of_green = torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    hue = torch.where(value == red, (green - blue) / divisor, of_green) + 6 * shift
    # Each channel is value - chroma * trapezium(hue), with the hue in sixths of the circle.
    distance = (hue + torch.tensor([5.0, 3.0, 1.0], device=x.device).view(3, 1, 1)) % 6
    return value - chroma * torch.minimum(distance, 4 - distance).clamp(0, 1)


def _grey(x: Tensor) -> Tensor:
    """Return the images without colours, (n, 1, height, width)."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * x.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)


def _centred_positions(n: int, like: Tensor) -> Tensor:
    """Return the positions of n pixels in a row, relative to its middle."""
    return torch.arange(n, device=like.device, dtype=like.dtype) - (n - 1) / 2


def _draw_uniform(x: Tensor, low: float, high: float, rng: torch.Generator) -> Tensor:
    """Draw a uniform random number for each image, (n, 1, 1, 1)."""
    drawn = torch.rand((len(x), 1, 1, 1), generator=rng, device=rng.device)
    return (low + (high - low) * drawn).to(x)


_COLOUR_CHANGES: tuple[tuple[ColourChange, float, float], ...] = (
    (_change_brightness, 0.6, 1.4),
    (_change_contrast, 0.7, 1.3),
    (_change_gamma, 0.7, 1.3),
    (_change_saturation, 0.5, 1.5),
    (_change_hue, -0.06, 0.06),
)
