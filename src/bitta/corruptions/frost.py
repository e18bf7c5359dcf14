"""The frost textures that ship with bitta, already at the scale each image size needs."""

from importlib.resources import files

import numpy as np
import torch
from PIL import Image
from torch import Tensor

_FILES = ("frost1", "frost2", "frost2", "frost4", "frost5")
"""Upstream draws from five files; its second and third are the same picture."""


def frost_textures(side: int) -> list[Tensor]:
    """Five textures for images of `side` pixels, uint8 (3, height, width)."""
    folder = files("bitta") / "assets" / "frost"
    pictures = {}
    for name in dict.fromkeys(_FILES):
        with (folder / f"{name}-{side}.webp").open("rb") as file, Image.open(file) as picture:
            pixels = np.array(picture.convert("RGB"))
        pictures[name] = torch.from_numpy(pixels).permute(2, 0, 1)
    return [pictures[name] for name in _FILES]
