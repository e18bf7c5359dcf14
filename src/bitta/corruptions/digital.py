"""Digital corruptions: contrast, elastic transform, pixelation and JPEG compression."""

import io
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from bitta.corruptions.image_ops import apply_to_both_axes, get_constant, smoothing_matrix, uniform

_CONTRAST = {
    32: (0.75, 0.5, 0.4, 0.3, 0.15),
    64: (0.4, 0.3, 0.2, 0.1, 0.05),
    224: (0.4, 0.3, 0.2, 0.1, 0.05),
}
_ELASTIC = {  # displacement, its sigma and the affine shift, in pixels
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


def contrast(x: Tensor, severity: int, _rng: torch.Generator) -> Tensor:
    """Shrink each channel of each image towards its own mean."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * get_constant(_CONTRAST, x, severity) + mean


def elastic_transform(x: Tensor, severity: int, rng: torch.Generator) -> Tensor:
    """Apply a small random affine map, then a smooth random displacement of all pixels."""
    displacement, sigma, affine = get_constant(_ELASTIC, x, severity)
    side = x.shape[-1]
    x = _sample(x, _affine_positions(len(x), side, affine, rng), align_corners=True)
    if displacement == 0:
        return x
    field = uniform((len(x), 2, side, side), -1, 1, rng)
    field = (
        apply_to_both_axes(field, smoothing_matrix(side, sigma, cut=3, mirror=True)) * displacement
    )
    steps = torch.arange(side, dtype=torch.float32, device=x.device)
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1)
    return _sample(x, grid + field.permute(0, 2, 3, 1), align_corners=False)


def pixelate(x: Tensor, severity: int, _rng: torch.Generator) -> Tensor:
    """Shrink with a box filter and enlarge again."""
    side = x.shape[-1]
    small = int(side * get_constant(_PIXELATE, x, severity))

    def convert(picture: Image.Image) -> Image.Image:
        shrunk = picture.resize((small, small), Image.Resampling.BOX)
        return shrunk.resize((side, side), Image.Resampling.BOX)

    return _convert_pictures(x, convert)


def jpeg_compression(x: Tensor, severity: int, _rng: torch.Generator) -> Tensor:
    """Save as JPEG and read back."""
    quality = get_constant(_JPEG_QUALITY, x, severity)

    def convert(picture: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer)

    return _convert_pictures(x, convert)


def _convert_pictures(x: Tensor, convert: Callable[[Image.Image], Image.Image]) -> Tensor:
    pixels = x.mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    out = np.stack([np.asarray(convert(Image.fromarray(picture))) for picture in pixels])
    # The levels are whole numbers. Add half a level, because the caller truncates.
    return (torch.from_numpy(out).to(x.device).permute(0, 3, 1, 2).float() + 0.5) / 255


def _affine_positions(n: int, side: int, reach: float, rng: torch.Generator) -> Tensor:
    """Return the (x, y) that each pixel is read from, (n, side, side, 2).

    Random shifts of three points by up to `reach` pixels define the affine map.
    """
    centre, size = side // 2, side // 3
    corners = [[centre + size, centre + size], [centre + size, centre - size],
               [centre - size, centre - size]]  # fmt: skip
    before = torch.tensor(corners, dtype=torch.float32, device=rng.device)
    after = before + uniform((n, 3, 2), -reach, reach, rng)
    ones = torch.ones(n, 3, 1, device=rng.device)
    back = torch.linalg.solve(torch.cat([after, ones], 2), before.expand(n, 3, 2))  # (n, 3, 2)
    steps = torch.arange(side, dtype=torch.float32, device=rng.device)
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1)
    positions: Tensor = grid.view(1, -1, 2) @ back[:, :2] + back[:, 2:]
    return positions.view(n, side, side, 2)


def _sample(x: Tensor, positions: Tensor, *, align_corners: bool) -> Tensor:
    """Interpolate at (x, y) positions. Positions outside the image are reflected.

    With `align_corners` the reflection is at the centre of the edge pixels, else at their border.
    """
    side = x.shape[-1]
    scaled = positions * 2 / (side - 1) - 1 if align_corners else (positions * 2 + 1) / side - 1
    return F.grid_sample(
        x, scaled, mode="bilinear", padding_mode="reflection", align_corners=align_corners
    )
