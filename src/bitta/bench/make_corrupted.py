"""Write a corrupted copy of a set in the published layout of CIFAR-10-C, and a contact sheet.

`<corruption>.npy` holds five severities one after another, (5 * n, side, side, 3), and `labels.npy`
holds the labels five times. Rows of severities that were not requested are zeros in a sparse file.
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
_SETTINGS_FILE = "bitta.json"


def make_corrupted(
    domain: Domain,
    folder: str | Path,
    *,
    severities: Sequence[int] = SEVERITIES,
    names: Sequence[str] = tuple(CORRUPTIONS),
    seed: int = 0,
    on_made: Callable[[str, float], None] = lambda *_: None,
) -> float:
    """Write the missing files. Return the seconds spent on corrupting, without writing.

    `on_made` gets the name and seconds of each corruption. A folder that was made with other
    settings is refused.
    """
    folder = Path(folder)
    check_writable(folder)
    images = domain.images[torch.arange(len(domain.labels))]
    _record_settings(
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
        seconds = _write_corruption(path, images, name, severities, seed)
        total += seconds
        on_made(name, seconds)
    labels = np.tile(domain.labels.numpy().astype(np.uint8), len(SEVERITIES))
    _save_array(folder / "labels.npy", labels)
    return total


def contact_sheet(images: Tensor, path: str | Path, *, seed: int = 0) -> None:
    """Draw a PNG with a row per corruption: the clean images first, then each severity."""
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
    for index, name in enumerate(CORRUPTIONS):
        draw.text((8, top + (index + 0.45) * side * scale), name, fill="black")
    for index, title in enumerate(("clean", *(f"severity {s}" for s in SEVERITIES))):
        across = index * (n * side + gap.shape[2]) * scale
        draw.text((left + across + 6, 6), title, fill="black")
    sheet.save(path, "PNG")


def name_of_corrupted_set(folder: Path) -> str:
    """Return the name of the set that was corrupted; empty if bitta did not make the folder."""
    return str(_read_settings(folder).get("set", ""))


def _read_settings(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / _SETTINGS_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _record_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings, or check that the folder was made with the same ones."""
    path = folder / _SETTINGS_FILE
    if path.exists():
        found = _read_settings(folder)
        if found != settings:
            raise InputError(
                f"{str(folder)!r} holds a copy made with {_describe(found) or 'unknown settings'}, "
                f"not with {_describe(settings)}; give another --out."
            )
    elif any(folder.glob("*.npy")):
        raise InputError(
            f"{str(folder)!r} holds arrays that bitta did not make; give another --out."
        )
    write_atomically(path, (json.dumps(settings) + "\n").encode())


def _describe(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _write_corruption(
    path: Path, images: Tensor, name: str, severities: Sequence[int], seed: int
) -> float:
    n, _, side, _ = images.shape
    draft = path.with_name(f".{path.name}.draft")
    file = np.lib.format.open_memmap(
        draft, mode="w+", dtype=np.uint8, shape=(len(SEVERITIES) * n, side, side, 3)
    )
    seconds = 0.0
    for severity in severities:
        started = perf_counter()
        corrupted = corrupt(images, name, severity=severity, seed=seed).permute(0, 2, 3, 1)
        seconds += perf_counter() - started
        file[(severity - 1) * n : severity * n] = corrupted.numpy()
    file.flush()
    os.replace(draft, path)
    return seconds


def _save_array(path: Path, array: np.ndarray) -> None:
    draft = path.with_name(f".{path.name}.draft.npy")
    np.save(draft, array)
    os.replace(draft, path)
