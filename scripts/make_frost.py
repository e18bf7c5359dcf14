"""Make the frost textures that ship with bitta from the files of the wheel `imagecorruptions`.

python scripts/make_frost.py FOLDER_WITH_FROST_FILES
"""

import io
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from bitta.statefile import write_atomically

ASSETS = Path(__file__).parents[1] / "src" / "bitta" / "assets" / "frost"
SOURCES = ("frost1.png", "frost2.png", "frost4.jpg", "frost5.jpg")  # frost3 is a copy of frost2
SCALES = {32: 0.2, 64: 0.3, 224: 1.0}


def main() -> None:
    """Write a file per texture and image size: small ones lossless, the full size at quality 90."""
    for source in SOURCES:
        with Image.open(Path(sys.argv[1]) / source) as picture:
            pixels = torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)
        for side, scale in SCALES.items():
            scaled = resize(pixels, scale).permute(1, 2, 0).contiguous().numpy()
            buffer = io.BytesIO()
            quality = 90 if scale == 1 else 100
            Image.fromarray(scaled).save(
                buffer, "WEBP", lossless=scale < 1, quality=quality, method=6
            )
            write_atomically(ASSETS / f"{Path(source).stem}-{side}.webp", buffer.getvalue())


def resize(pixels: torch.Tensor, scale: float) -> torch.Tensor:
    """Resize bilinearly without antialiasing, which would smooth the ice away."""
    if scale == 1:
        return pixels
    size = [round(length * scale) for length in pixels.shape[1:]]
    batch = pixels[None].float()
    small = F.interpolate(batch, size=size, mode="bilinear", align_corners=False, antialias=False)
    return small[0].round().clamp(0, 255).to(torch.uint8)


if __name__ == "__main__":
    main()
