"""Digital: what happens to pixels after the camera."""

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

_CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
_JPEG_QUALITY = (80, 65, 58, 50, 40)


def contrast(x: Tensor, severity: int, _chance: torch.Generator) -> Tensor:
    """Shrink each channel of each image towards its own mean."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * _CONTRAST[severity - 1] + mean


def jpeg_compression(x: Tensor, severity: int, _chance: torch.Generator) -> Tensor:
    """Save as JPEG and read back."""
    pixels = x.mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    saved = np.stack([_through_jpeg(picture, _JPEG_QUALITY[severity - 1]) for picture in pixels])
    # Half a level up: the caller truncates, and a JPEG's levels are whole already.
    return (torch.from_numpy(saved).to(x.device).permute(0, 3, 1, 2).float() + 0.5) / 255


def _through_jpeg(picture: np.ndarray, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))
