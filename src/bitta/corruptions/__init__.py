"""Common corruptions of small images, after Hendrycks & Dietterich, ICLR 2019.

Vectorised functions on batches of uint8 images, seeded, on any device.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bitta.config import require
from bitta.corruptions import blur, digital, noise, weather
from bitta.errors import InputError, unknown
from bitta.seeding import generator

Corruption = Callable[[Tensor, int, torch.Generator], Tensor]

CORRUPTIONS: Mapping[str, Corruption] = {
    "gaussian_noise": noise.gaussian_noise,
    "defocus_blur": blur.defocus_blur,
    "fog": weather.fog,
    "contrast": digital.contrast,
    "jpeg_compression": digital.jpeg_compression,
}


def corrupt(images: Tensor, name: str, *, severity: int = 5, seed: int = 0) -> Tensor:
    """Corrupt uint8 images (n, 3, h, w); the same seed gives the same bytes."""
    if name not in CORRUPTIONS:
        raise unknown("corruption", name, CORRUPTIONS)
    require(1 <= severity <= 5, "severity", severity, "1 to 5")
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1:] != (3, 32, 32):
        raise InputError(
            f"images are {images.dtype} of shape {tuple(images.shape)}; "
            "uint8 (n, 3, 32, 32) is needed."
        )
    chance = generator(seed, "corruption", name, severity, device=images.device)
    pixels = CORRUPTIONS[name](images.float() / 255, severity, chance)
    # Upstream truncates; rounding would be another set.
    return pixels.clamp(0, 1).mul(255).to(torch.uint8)


__all__ = ["CORRUPTIONS", "corrupt"]
