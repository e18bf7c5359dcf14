"""Common corruptions of images, after Hendrycks & Dietterich, ICLR 2019.

The functions are vectorised and seeded. They work on batches of uint8 images of 32, 64 or 224
pixels, on any device.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bitta.config_base import require
from bitta.corruptions import blur, digital, noise, weather
from bitta.corruptions.image_ops import SIDES
from bitta.errors import InputError, unknown_name_error
from bitta.seeding import generator

Corruption = Callable[[Tensor, int, torch.Generator], Tensor]

CORRUPTIONS: Mapping[str, Corruption] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}


_CHUNK_PIXELS = 2**18
"""Number of pixels corrupted at a time. A chunk fits into the cache and needs little memory."""


def corrupt(images: Tensor, name: str, *, severity: int = 5, seed: int = 0) -> Tensor:
    """Corrupt uint8 images (n, 3, side, side). The same seed gives the same bytes."""
    if name not in CORRUPTIONS:
        raise unknown_name_error("corruption", name, CORRUPTIONS)
    require(1 <= severity <= 5, "severity", severity, "1 to 5")
    side = images.shape[-1] if images.dim() == 4 else 0
    if images.dtype != torch.uint8 or side not in SIDES or images.shape[1:] != (3, side, side):
        raise InputError(
            f"images are {images.dtype} of shape {tuple(images.shape)}; allowed: uint8 "
            f"(n, 3, side, side) with a side of {', '.join(map(str, SIDES))}."
        )
    out = torch.empty_like(images)
    size = _CHUNK_PIXELS // side**2
    for number, chunk in enumerate(images.split(size)):
        rng = generator(seed, "corruption", name, severity, number, device=images.device)
        pixels = CORRUPTIONS[name](chunk.float() / 255, severity, rng)
        # The original code truncates. Rounding would give a different data set.
        out[number * size : number * size + len(chunk)] = pixels.clamp(0, 1).mul(255)
    return out


__all__ = ["CORRUPTIONS", "corrupt"]
