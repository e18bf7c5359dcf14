"""CIFAR-10-C and CIFAR-100-C: an .npy per corruption, all five severities one after the other.

Hendrycks and Dietterich, ICLR 2019, https://openreview.net/forum?id=HJz6tiCqYm
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bitta.config import require
from bitta.errors import InputError
from bitta.streams.domain import Domain
from bitta.streams.folders import checked_folder, folders_down_to
from bitta.streams.images import Mapped, open_array

_N_SEVERITIES = 5
_N_PROBED = 8


def read_corrupted(
    folder: str | Path, names: Sequence[str], *, severity: int, classes: Sequence[str] = ()
) -> list[Domain]:
    """A domain per corruption, in the order asked for; pixels stay on disk.

    The files lie in the folder or in one right below it. A file may hold some severities only; the
    rows of the others are zero.
    """
    require(1 <= severity <= _N_SEVERITIES, "severity", severity, "1 to 5")
    root = _holding_labels(checked_folder(folder))
    return [_read(root, name, severity, tuple(classes)) for name in names]


def _holding_labels(root: Path) -> Path:
    places = [place for place in folders_down_to(root, 1) if (place / "labels.npy").is_file()]
    if not places or (len(places) > 1 and places[0] != root):
        raise InputError(
            f"{str(root)!r} holds {len(places) or 'no'} labels.npy; give the folder that holds "
            "it beside <corruption>.npy."
        )
    return places[0]


def _read(root: Path, name: str, severity: int, classes: tuple[str, ...]) -> Domain:
    path = root / f"{name}.npy"
    if not path.is_file():
        there = sorted(file.stem for file in root.glob("*.npy") if file.stem != "labels")
        raise InputError(
            f"there is no {path.name} in {str(root)!r}; there are {', '.join(there) or 'none'}."
        )
    array = open_array(path)
    if array.dtype != np.uint8 or array.ndim != 4 or len(array) % _N_SEVERITIES or not len(array):
        raise InputError(
            f"{str(path)!r} is {array.dtype} of shape {array.shape}; uint8 (5 x samples, height, "
            "width, 3), all samples of severity 1 first, is needed."
        )
    n_samples = len(array) // _N_SEVERITIES
    start = (severity - 1) * n_samples
    if not array[start : start + min(_N_PROBED, n_samples)].any():
        raise InputError(
            f"{str(path)!r} does not hold severity {severity}, its images are blank; it holds "
            f'{_made(array, n_samples)}. Run "bitta data make-corrupted" for severity {severity}.'
        )
    images = Mapped(path, start=start, stop=start + n_samples)
    return Domain(name, images, _labels(root, n_samples, start), classes)


def _labels(root: Path, n_samples: int, start: int) -> Tensor:
    labels = open_array(root / "labels.npy")
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"labels.npy in {str(root)!r} is {labels.dtype} of shape {labels.shape}; whole "
            "numbers (samples,) are needed."
        )
    if len(labels) not in (n_samples, _N_SEVERITIES * n_samples):
        raise InputError(
            f"labels.npy in {str(root)!r} holds {len(labels)} labels; {n_samples}, or that for "
            f"each of {_N_SEVERITIES} severities, is needed."
        )
    start = start if len(labels) > n_samples else 0
    return torch.from_numpy(labels[start : start + n_samples].astype(np.int64))


def _made(array: np.ndarray, n_samples: int) -> str:
    made = [
        str(place + 1)
        for place in range(_N_SEVERITIES)
        if array[place * n_samples : place * n_samples + min(_N_PROBED, n_samples)].any()
    ]
    return ", ".join(made) or "none"
