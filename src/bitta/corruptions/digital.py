"""Digital: what happens to pixels after the camera."""

import io
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from bitta.corruptions.image_ops import along_both_axes, constant, smoothing_matrix, uniform

_CONTRAST = {
    32: (0.75, 0.5, 0.4, 0.3, 0.15),
    64: (0.4, 0.3, 0.2, 0.1, 0.05),
    224: (0.4, 0.3, 0.2, 0.1, 0.05),
}
_ELASTIC = {  # displacement, its smoothness and the affine part, in pixels
    32: ((0.0, 0.0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6),
         (3.2, 0.96, 0.96)),
    64: ((0.0, 0.0, 5.12), (3.2, 19.2, 3.84), (6.4, 5.12, 3.84), (6.4, 1.92, 1.92),
         (10.24, 1.92, 1.28)),
    224: ((488.0, 170.8, 24.4), (488.0, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88),
          (29.28, 2.44, 4.88)),
}  # fmt: skip
_PIXELATE = {
    32: (0.95, 0.9, 0.85, 0.75, 0.65),
    64: (0.9, 0.8, 0.7, 0.6, 0.5),
    224: (0.6, 0.5, 0.4, 0.3, 0.25),
}
_JPEG_QUALITY = {
    32: (80, 65, 58, 50, 40),
    64: (65, 58, 50, 40, 25),
    224: (25, 18, 15, 10, 7),
}


def contrast(x: Tensor, severity: int, _chance: torch.Generator) -> Tensor:
    """Shrink each channel of each image towards its own mean."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * constant(_CONTRAST, x, severity) + mean


def elastic_transform(x: Tensor, severity: int, chance: torch.Generator) -> Tensor:
    """A small random affine map, then a smooth random displacement of every pixel."""
    displacement, sigma, affine = constant(_ELASTIC, x, severity)
    side = x.shape[-1]
    x = _sampled(x, _affine_places(len(x), side, affine, chance), align_corners=True)
    if displacement == 0:
        return x
    field = uniform((len(x), 2, side, side), -1, 1, chance)
    field = along_both_axes(field, smoothing_matrix(side, sigma, cut=3, mirror=True)) * displacement
    steps = torch.arange(side, dtype=torch.float32, device=x.device)
    still = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1)
    return _sampled(x, still + field.permute(0, 2, 3, 1), align_corners=False)


def pixelate(x: Tensor, severity: int, _chance: torch.Generator) -> Tensor:
    """Shrink by averaging boxes, and enlarge again."""
    side = x.shape[-1]
    small = int(side * constant(_PIXELATE, x, severity))

    def through(picture: Image.Image) -> Image.Image:
        shrunk = picture.resize((small, small), Image.Resampling.BOX)
        return shrunk.resize((side, side), Image.Resampling.BOX)

    return _each_picture(x, through)


def jpeg_compression(x: Tensor, severity: int, _chance: torch.Generator) -> Tensor:
    """Save as JPEG and read back."""
    quality = constant(_JPEG_QUALITY, x, severity)

    def through(picture: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer)

    return _each_picture(x, through)


def _each_picture(x: Tensor, through: Callable[[Image.Image], Image.Image]) -> Tensor:
    pixels = x.mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    out = np.stack([np.asarray(through(Image.fromarray(picture))) for picture in pixels])
    # Half a level up: the caller truncates, and these levels are whole already.
    return (torch.from_numpy(out).to(x.device).permute(0, 3, 1, 2).float() + 0.5) / 255


def _affine_places(n: int, side: int, reach: float, chance: torch.Generator) -> Tensor:
    """Where each pixel comes from, (n, side, side, 2) as (x, y): three points move at random."""
    centre, size = side // 2, side // 3
    corners = [[centre + size, centre + size], [centre + size, centre - size],
               [centre - size, centre - size]]  # fmt: skip
    before = torch.tensor(corners, dtype=torch.float32, device=chance.device)
    after = before + uniform((n, 3, 2), -reach, reach, chance)
    ones = torch.ones(n, 3, 1, device=chance.device)
    back = torch.linalg.solve(torch.cat([after, ones], 2), before.expand(n, 3, 2))  # (n, 3, 2)
    steps = torch.arange(side, dtype=torch.float32, device=chance.device)
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1)
    places: Tensor = grid.view(1, -1, 2) @ back[:, :2] + back[:, 2:]
    return places.view(n, side, side, 2)


def _sampled(x: Tensor, places: Tensor, *, align_corners: bool) -> Tensor:
    """Bilinear values at (x, y) places; mirrored about edge pixels, or about their outer rim."""
    side = x.shape[-1]
    scaled = places * 2 / (side - 1) - 1 if align_corners else (places * 2 + 1) / side - 1
    return F.grid_sample(
        x, scaled, mode="bilinear", padding_mode="reflection", align_corners=align_corners
    )
