"""Weather corruptions: snow, frost, fog and brightness."""

from importlib.resources import files

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bitta.corruptions.image_ops import (
    apply_to_both_axes,
    blur_along_lines,
    get_constant,
    quantise,
    uniform,
    zoom_matrix,
)

_FILES = ("frost1", "frost2", "frost2", "frost4", "frost5")
"""The original code draws from five files. The second and third are the same picture."""


def frost_textures(side: int) -> list[Tensor]:
    """Return the five textures for images of `side` pixels, uint8 (3, height, width)."""
    folder = files("bitta") / "assets" / "frost"
    pictures = {}
    for name in dict.fromkeys(_FILES):
        with (folder / f"{name}-{side}.webp").open("rb") as file, Image.open(file) as picture:
            pixels = np.array(picture.convert("RGB"))
        pictures[name] = torch.from_numpy(pixels).permute(2, 0, 1)
    return [pictures[name] for name in _FILES]


_SNOW = {  # mean and std of the flakes, zoom, threshold, radius and sigma of the motion, mix
    32: (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95), (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9), (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    ),
    64: (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.8), (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.7), (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.6),
    ),
    224: (
        (0.1, 0.3, 3.0, 0.5, 10, 4.0, 0.8), (0.2, 0.3, 2.0, 0.5, 12, 4.0, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8.0, 0.7), (0.55, 0.3, 4.5, 0.85, 12, 8.0, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12.0, 0.55),
    ),
}  # fmt: skip
_FROST = {  # weight of the image, weight of the texture
    32: ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    64: ((1.0, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
    224: ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
}
_FOG = {  # amount, decay of the plasma noise
    32: ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),
    64: ((0.4, 3.0), (0.7, 3.0), (1.0, 2.5), (1.5, 2.0), (2.0, 1.75)),
    224: ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
}
_PLASMA_SIDE = {32: 32, 64: 64, 224: 256}
_BRIGHTNESS = {
    32: (0.05, 0.1, 0.15, 0.2, 0.3),
    64: (0.1, 0.2, 0.3, 0.4, 0.5),
    224: (0.1, 0.2, 0.3, 0.4, 0.5),
}
_LUMA = (0.299, 0.587, 0.114)


def snow(x: Tensor, severity: int, rng: torch.Generator) -> Tensor:
    """Whiten the image and add falling flakes, and the same flakes rotated by 180 degrees."""
    mean, deviation, zoom, threshold, radius, sigma, mix = get_constant(_SNOW, x, severity)
    side = x.shape[-1]
    flakes = torch.randn(len(x), 1, side, side, generator=rng, device=x.device)
    flakes = apply_to_both_axes(flakes * deviation + mean, zoom_matrix(side, zoom))
    flakes = quantise(torch.where(flakes < threshold, 0.0, flakes))
    angles = uniform((len(x),), -135, -45, rng)
    flakes = blur_along_lines(flakes, radius=radius, sigma=sigma, angles=angles)
    grey = (x * torch.tensor(_LUMA, device=x.device).view(1, 3, 1, 1)).sum(1, keepdim=True)
    white = mix * x + (1 - mix) * torch.maximum(x, grey * 1.5 + 0.5)
    return white + flakes + flakes.flip(2, 3)


def frost(x: Tensor, severity: int, rng: torch.Generator) -> Tensor:
    """Mix with a random crop of one of the frost textures."""
    image_weight, texture_weight = get_constant(_FROST, x, severity)
    side = x.shape[-1]
    textures = frost_textures(side)
    drawn = torch.randint(len(textures), (len(x),), generator=rng, device=x.device)
    corners = uniform((2, len(x), 1), 0, 1, rng)
    steps = torch.arange(side, device=x.device)
    ice = torch.empty_like(x)
    for index, texture in enumerate(textures):
        rows = (drawn == index).nonzero().flatten()
        _, height, width = texture.shape
        down = (corners[0, rows] * (height - side)).long() + steps
        right = (corners[1, rows] * (width - side)).long() + steps
        crops = texture.to(x.device)[:, down[:, :, None], right[:, None, :]]
        ice[rows] = crops.transpose(0, 1).float() / 255
    return image_weight * x + texture_weight * ice


def fog(x: Tensor, severity: int, rng: torch.Generator) -> Tensor:
    """Add plasma noise and scale the image back to its maximum value."""
    amount, decay = get_constant(_FOG, x, severity)
    side = x.shape[-1]
    brightest = x.amax((1, 2, 3), keepdim=True)
    cloud = _plasma(len(x), _PLASMA_SIDE[side], decay, rng, x.device)[:, :side, :side]
    return (x + amount * cloud.unsqueeze(1)) * brightest / (brightest + amount)


def brightness(x: Tensor, severity: int, _rng: torch.Generator) -> Tensor:
    """Add a constant to the value in HSV, the largest channel, by scaling each pixel."""
    value = x.amax(1, keepdim=True)
    raised = (value + get_constant(_BRIGHTNESS, x, severity)).clamp(max=1)
    return torch.where(value > 0, x * raised / value.clamp_min(1e-6), raised)


def _plasma(
    n_maps: int, side: int, decay: float, rng: torch.Generator, device: torch.device
) -> Tensor:
    """Return diamond-square noise on a torus, (n_maps, side, side) in [0, 1].

    `side` is a power of two.
    """
    plane = torch.zeros(n_maps, side, side, device=device)
    amplitude, step = 100.0, side
    while step >= 2:
        half = step // 2
        corners = plane[:, ::step, ::step]
        right, below = corners.roll(-1, 2), corners.roll(-1, 1)

        def add_noise(mean: Tensor, scale: float = amplitude**2) -> Tensor:
            return mean + uniform(mean.shape, -1, 1, rng) * scale

        centres = add_noise((corners + right + below + right.roll(-1, 1)) / 4)
        plane[:, half::step, half::step] = centres
        plane[:, ::step, half::step] = add_noise(
            (corners + right + centres + centres.roll(1, 1)) / 4
        )
        plane[:, half::step, ::step] = add_noise(
            (corners + below + centres + centres.roll(1, 2)) / 4
        )
        amplitude, step = amplitude / decay, half
    plane -= plane.amin((1, 2), keepdim=True)
    return plane / plane.amax((1, 2), keepdim=True)
