"""Packs: small image sets, stored as one lossless picture and a JSON file with the labels."""

import io
import json
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bitta.statefile import write_atomically

_COLUMNS = 50
"""Images per row of the picture."""


@dataclass(frozen=True, eq=False)
class Pack:
    """Images (n, h, w) or (n, 3, h, w) as uint8, with their labels."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    source: str
    """Origin of the images."""
    terms: str
    """Licence or terms of use."""


def embedded_pack(name: str) -> Pack:
    """Return a pack from the assets of the `bitta` package."""
    return _read_pack(files("bitta") / "assets", name)


def write_pack(folder: Path, name: str, pack: Pack) -> None:
    """Write NAME.webp and NAME.json."""
    pixels = pack.images.numpy()
    if pixels.ndim == 4:
        pixels = pixels.transpose(0, 2, 3, 1)
    n_images, side = len(pixels), pixels.shape[1]
    assert n_images % _COLUMNS == 0, f"a pack has rows of {_COLUMNS} images"
    tiles = pixels.reshape(n_images // _COLUMNS, _COLUMNS, *pixels.shape[1:])
    mosaic = tiles.swapaxes(1, 2).reshape(-1, _COLUMNS * side, *pixels.shape[3:])
    buffer = io.BytesIO()
    Image.fromarray(mosaic).save(buffer, "WEBP", lossless=True, quality=100, method=6)
    write_atomically(folder / f"{name}.webp", buffer.getvalue())
    text = {
        "side": side,
        "grey": pixels.ndim == 3,
        "classes": list(pack.classes),
        "source": pack.source,
        "terms": pack.terms,
        "labels": "".join(str(int(label)) for label in pack.labels),
    }
    write_atomically(folder / f"{name}.json", (json.dumps(text, indent=1) + "\n").encode())


def _read_pack(folder: Traversable, name: str) -> Pack:
    text = json.loads((folder / f"{name}.json").read_text())
    with (folder / f"{name}.webp").open("rb") as file, Image.open(file) as picture:
        mosaic = np.asarray(picture.convert("L" if text["grey"] else "RGB"))
    side = text["side"]
    tiles = mosaic.reshape(-1, side, _COLUMNS, side, *mosaic.shape[2:]).swapaxes(1, 2)
    pixels = torch.from_numpy(
        np.ascontiguousarray(tiles.reshape(-1, side, side, *mosaic.shape[2:]))
    )
    return Pack(
        pixels if text["grey"] else pixels.permute(0, 3, 1, 2).contiguous(),
        torch.tensor([int(label) for label in text["labels"]]),
        tuple(text["classes"]),
        text["source"],
        text["terms"],
    )
