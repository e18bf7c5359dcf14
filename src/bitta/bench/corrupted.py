"""A corrupted copy of a set in the layout that other people's code reads, and a picture of it.

`<corruption>.npy` holds five severities one after another, (5 * n, side, side, 3), and `labels.npy`
five times the labels. Rows of severities that were not asked for are holes: zeros that take no
room on disk.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from bitta.corruptions import CORRUPTIONS, corrupt
from bitta.errors import InputError
from bitta.statefile import check_writable, write_atomically
from bitta.streams import Domain
from bitta.version import __version__

SEVERITIES = (1, 2, 3, 4, 5)
_SETTINGS = "bitta.json"


def make_corrupted(
    domain: Domain,
    folder: str | Path,
    *,
    severities: Sequence[int] = SEVERITIES,
    names: Sequence[str] = tuple(CORRUPTIONS),
    seed: int = 0,
    on_made: Callable[[str, float], None] = lambda *_: None,
) -> float:
    """Write what is not there yet; gives the seconds spent corrupting, file writing apart.

    `on_made` gets each corruption's name and seconds. A folder made with other settings is refused.
    """
    folder = Path(folder)
    check_writable(folder)
    images = domain.images[torch.arange(len(domain.labels))]
    _claim(
        folder,
        {
            "set": domain.name,
            "images": domain.fingerprint[:16],
            "seed": seed,
            "severities": list(severities),
            "bitta": __version__,
        },
    )
    total = 0.0
    for name in names:
        path = folder / f"{name}.npy"
        if path.exists():
            on_made(name, 0.0)
            continue
        seconds = _write(path, images, name, severities, seed)
        total += seconds
        on_made(name, seconds)
    labels = np.tile(domain.labels.numpy().astype(np.uint8), len(SEVERITIES))
    _save(folder / "labels.npy", labels)
    return total


def contact_sheet(images: Tensor, path: str | Path, *, seed: int = 0) -> None:
    """A row per corruption, the clean images first and then each severity, as one PNG."""
    n, side = len(images), images.shape[-1]
    scale = max(1, 96 // side)
    gap = torch.full((3, side, max(1, side // 16)), 255, dtype=torch.uint8)
    rows = []
    for name in CORRUPTIONS:
        columns = [images, *(corrupt(images, name, severity=s, seed=seed) for s in SEVERITIES)]
        rows.append(torch.cat([part for column in columns for part in (*column, gap)], dim=2))
    mosaic = torch.cat(rows, dim=1).permute(1, 2, 0).contiguous().numpy()
    mosaic = mosaic.repeat(scale, 0).repeat(scale, 1)
    left, top = 150, 24
    sheet = Image.new("RGB", (mosaic.shape[1] + left, mosaic.shape[0] + top), "white")
    sheet.paste(Image.fromarray(mosaic), (left, top))
    draw = ImageDraw.Draw(sheet)
    for place, name in enumerate(CORRUPTIONS):
        draw.text((8, top + (place + 0.45) * side * scale), name, fill="black")
    for place, title in enumerate(("clean", *(f"severity {s}" for s in SEVERITIES))):
        across = place * (n * side + gap.shape[2]) * scale
        draw.text((left + across + 6, 6), title, fill="black")
    sheet.save(path, "PNG")


def made_from(folder: Path) -> str:
    """The name of the set that a copy was made from; empty if it was made elsewhere."""
    return str(_settings(folder).get("set", ""))


def _settings(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / _SETTINGS).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """One folder, one set of settings: files of two must not mix."""
    path = folder / _SETTINGS
    if path.exists():
        made = _settings(folder)
        if made != settings:
            raise InputError(
                f"{str(folder)!r} holds a copy made with {_described(made) or 'nobody knows what'}"
                f", not with {_described(settings)}; give another --out."
            )
    elif any(folder.glob("*.npy")):
        raise InputError(
            f"{str(folder)!r} holds arrays that were not made here; give another --out."
        )
    write_atomically(path, (json.dumps(settings) + "\n").encode())


def _described(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _write(path: Path, images: Tensor, name: str, severities: Sequence[int], seed: int) -> float:
    n, _, side, _ = images.shape
    draft = path.with_name(f".{path.name}.draft")
    file = np.lib.format.open_memmap(
        draft, mode="w+", dtype=np.uint8, shape=(len(SEVERITIES) * n, side, side, 3)
    )
    seconds = 0.0
    for severity in severities:
        started = perf_counter()
        made = corrupt(images, name, severity=severity, seed=seed).permute(0, 2, 3, 1)
        seconds += perf_counter() - started
        file[(severity - 1) * n : severity * n] = made.numpy()
    file.flush()
    os.replace(draft, path)
    return seconds


def _save(path: Path, array: np.ndarray) -> None:
    draft = path.with_name(f".{path.name}.draft.npy")
    np.save(draft, array)
    os.replace(draft, path)
