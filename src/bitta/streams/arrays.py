"""Data sets as arrays: .npz, .npy, CIFAR-10-C and CIFAR-100-C.

x.npz          inputs, labels and, if there are several, domains
folder/        <domain>.npy each, and labels.npy for all or <domain>-labels.npy for one

Hendrycks and Dietterich, ICLR 2019, https://openreview.net/forum?id=HJz6tiCqYm
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bitta.config import require
from bitta.errors import InputError
from bitta.streams.folders import checked_folder, folders_down_to
from bitta.streams.images import Domain, Mapped, as_images, open_array

_LABELS = "labels"


def read_arrays(path: str | Path) -> list[Domain]:
    """Domains in the order in which they first appear in the .npz, or of the names of files.

    An .npz is read whole; the inputs of a folder stay on disk until they are needed.
    """
    if Path(path).is_dir():
        return _from_folder(Path(path))
    arrays = _read(path)
    for name in ("inputs", "labels"):
        if name not in arrays:
            raise InputError(
                f"{str(path)!r} has no array {name!r}; it has {', '.join(sorted(arrays)) or 'no'}."
            )
    inputs, truth = as_images(arrays["inputs"], path), _labels(arrays["labels"], path)
    names = arrays.get("domains", np.full(len(truth), "all"))
    if names.shape != truth.shape or len(inputs) != len(truth):
        raise InputError(
            f"{str(path)!r} has {len(inputs)} inputs, {len(truth)} labels"
            f"{f' and {names.size} domains' if 'domains' in arrays else ''}; "
            "one of each per sample is needed."
        )
    texts = names.astype(str)
    rows = {str(name): torch.from_numpy(texts == name) for name in dict.fromkeys(texts.tolist())}
    return [Domain(name, inputs[mask], truth[mask]) for name, mask in rows.items()]


def _from_folder(folder: Path) -> list[Domain]:
    stems = sorted(path.stem for path in folder.glob("*.npy"))
    names = [stem for stem in stems if stem != _LABELS and not stem.endswith(f"-{_LABELS}")]
    if not names:
        raise InputError(
            f"{str(folder)!r} holds no <domain>.npy; write inputs with numpy.save, and labels to "
            "labels.npy or <domain>-labels.npy beside them."
        )
    return [_from_files(folder, name) for name in names]


def _from_files(folder: Path, name: str) -> Domain:
    own, common = folder / f"{name}-{_LABELS}.npy", folder / f"{_LABELS}.npy"
    path = own if own.is_file() else common
    if not path.is_file():
        raise InputError(
            f"{name}.npy in {str(folder)!r} has no labels; write {own.name}, or {common.name} "
            "for all domains."
        )
    images, labels = Mapped(folder / f"{name}.npy"), _labels(open_array(path), path)
    if len(images) != len(labels):
        raise InputError(
            f"{name}.npy in {str(folder)!r} has {len(images)} inputs, {path.name} has "
            f"{len(labels)} labels; one of each per sample is needed."
        )
    return Domain(name, images, labels)


def _labels(labels: np.ndarray, path: str | Path) -> Tensor:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"labels in {str(path)!r} are {labels.dtype} of shape {labels.shape}; "
            "whole numbers (samples,) are needed."
        )
    truth = torch.from_numpy(labels.astype(np.int64))
    if len(truth) and truth.min() < 0:
        raise InputError(f"labels in {str(path)!r} go down to {truth.min()}; 0 is the first class.")
    return truth


def _read(path: str | Path) -> dict[str, np.ndarray]:
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise InputError(f"{str(path)!r} is a single array; an .npz with names is needed.")
        with file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r}.") from None
    except InputError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        raise InputError(
            f"{str(path)!r} is not an .npz file of plain arrays; write it with numpy.savez."
        ) from None


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
    return [_read_corrupted_array(root, name, severity, tuple(classes)) for name in names]


def _holding_labels(root: Path) -> Path:
    places = [place for place in folders_down_to(root, 1) if (place / "labels.npy").is_file()]
    if not places or (len(places) > 1 and places[0] != root):
        raise InputError(
            f"{str(root)!r} holds {len(places) or 'no'} labels.npy; give the folder that holds "
            "it beside <corruption>.npy."
        )
    return places[0]


def _read_corrupted_array(root: Path, name: str, severity: int, classes: tuple[str, ...]) -> Domain:
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
    return Domain(name, images, _corrupted_labels(root, n_samples, start), classes)


def _corrupted_labels(root: Path, n_samples: int, start: int) -> Tensor:
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
