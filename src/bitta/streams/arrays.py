"""Data sets in arrays: .npz, .npy, CIFAR-10-C and CIFAR-100-C.

x.npz          arrays inputs and labels, and domains if there are several
folder/        <domain>.npy for each domain, with labels.npy for all or <domain>-labels.npy for one

Hendrycks and Dietterich, ICLR 2019, https://openreview.net/forum?id=HJz6tiCqYm
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bitta.config_base import require
from bitta.errors import InputError
from bitta.streams.folders import check_folder, list_folders
from bitta.streams.images import Domain, MappedImages, as_images, open_array

_LABELS = "labels"


def read_arrays(path: str | Path) -> list[Domain]:
    """Return the domains of an .npz or of a folder.

    Domains are in the order of their first samples in an .npz, and of their file names in a folder.
    An .npz is read completely. The inputs of a folder stay on disk until they are needed.
    """
    if Path(path).is_dir():
        return _read_folder(Path(path))
    arrays = _read_npz(path)
    for name in ("inputs", "labels"):
        if name not in arrays:
            raise InputError(
                f"{str(path)!r} has no array {name!r}; it has "
                f"{', '.join(sorted(arrays)) or 'no arrays'}. Write inputs and labels with "
                "numpy.savez."
            )
    inputs, truth = as_images(arrays["inputs"], path), _parse_labels(arrays["labels"], path)
    names = arrays.get("domains", np.full(len(truth), "all"))
    if names.shape != truth.shape or len(inputs) != len(truth):
        raise InputError(
            f"{str(path)!r} has {len(inputs)} inputs, {len(truth)} labels"
            f"{f' and {names.size} domains' if 'domains' in arrays else ''}; "
            "each sample needs one of each."
        )
    texts = names.astype(str)
    rows = {str(name): torch.from_numpy(texts == name) for name in dict.fromkeys(texts.tolist())}
    return [Domain(name, inputs[mask], truth[mask]) for name, mask in rows.items()]


def _read_folder(folder: Path) -> list[Domain]:
    stems = sorted(path.stem for path in folder.glob("*.npy"))
    names = [stem for stem in stems if stem != _LABELS and not stem.endswith(f"-{_LABELS}")]
    if not names:
        raise InputError(
            f"{str(folder)!r} holds no <domain>.npy; write inputs with numpy.save, and labels to "
            "labels.npy or <domain>-labels.npy beside them."
        )
    return [_read_files(folder, name) for name in names]


def _read_files(folder: Path, name: str) -> Domain:
    own, shared = folder / f"{name}-{_LABELS}.npy", folder / f"{_LABELS}.npy"
    path = own if own.is_file() else shared
    if not path.is_file():
        raise InputError(
            f"{name}.npy in {str(folder)!r} has no labels; write {own.name}, or {shared.name} "
            "for all domains."
        )
    images, labels = MappedImages(folder / f"{name}.npy"), _parse_labels(open_array(path), path)
    if len(images) != len(labels):
        raise InputError(
            f"{name}.npy in {str(folder)!r} has {len(images)} inputs, {path.name} has "
            f"{len(labels)} labels; each sample needs one of each."
        )
    return Domain(name, images, labels)


def _parse_labels(labels: np.ndarray, path: str | Path) -> Tensor:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"labels in {str(path)!r} are {labels.dtype} of shape {labels.shape}; "
            "allowed: whole numbers of shape (samples,)."
        )
    truth = torch.from_numpy(labels.astype(np.int64))
    if len(truth) and truth.min() < 0:
        raise InputError(f"labels in {str(path)!r} go down to {truth.min()}; allowed: 0 or more.")
    return truth


def _read_npz(path: str | Path) -> dict[str, np.ndarray]:
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise InputError(f"{str(path)!r} is a single array; give an .npz with named arrays.")
        with file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r}; give an existing file.") from None
    except InputError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        raise InputError(
            f"{str(path)!r} is not an .npz file of number arrays; write it with numpy.savez."
        ) from None


_N_SEVERITIES = 5
_N_PROBED = 8
"""Number of images that are checked to find out if a severity exists."""


def read_corrupted(
    folder: str | Path, names: Sequence[str], *, severity: int, classes: Sequence[str] = ()
) -> list[Domain]:
    """Return one domain per corruption, in the given order. The pixels stay on disk.

    The files are in the folder or in a folder directly below it. A file may hold only some
    severities. The rows of the other severities are zero.
    """
    require(1 <= severity <= _N_SEVERITIES, "severity", severity, "1 to 5")
    root = _find_labels_folder(check_folder(folder))
    return [_read_corrupted_array(root, name, severity, tuple(classes)) for name in names]


def _find_labels_folder(root: Path) -> Path:
    folders = [folder for folder in list_folders(root, 1) if (folder / "labels.npy").is_file()]
    if not folders or (len(folders) > 1 and folders[0] != root):
        raise InputError(
            f"{str(root)!r} holds {len(folders) or 'no'} labels.npy; give the folder that holds "
            "labels.npy and <corruption>.npy."
        )
    return folders[0]


def _read_corrupted_array(root: Path, name: str, severity: int, classes: tuple[str, ...]) -> Domain:
    path = root / f"{name}.npy"
    if not path.is_file():
        existing = sorted(file.stem for file in root.glob("*.npy") if file.stem != "labels")
        raise InputError(
            f"there is no {path.name} in {str(root)!r}; allowed: {', '.join(existing) or 'none'}."
        )
    array = open_array(path)
    if array.dtype != np.uint8 or array.ndim != 4 or len(array) % _N_SEVERITIES or not len(array):
        raise InputError(
            f"{str(path)!r} is {array.dtype} of shape {array.shape}; allowed: uint8 (5 x samples, "
            "height, width, 3), with all samples of severity 1 first."
        )
    n_samples = len(array) // _N_SEVERITIES
    start = (severity - 1) * n_samples
    if not array[start : start + min(_N_PROBED, n_samples)].any():
        raise InputError(
            f"{str(path)!r} does not hold severity {severity}, because its images are blank; it "
            f'holds {_list_severities(array, n_samples)}. Run "bitta data make-corrupted" for '
            f"severity {severity}."
        )
    images = MappedImages(path, start=start, stop=start + n_samples)
    return Domain(name, images, _corrupted_labels(root, n_samples, start), classes)


def _corrupted_labels(root: Path, n_samples: int, start: int) -> Tensor:
    labels = open_array(root / "labels.npy")
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"labels.npy in {str(root)!r} is {labels.dtype} of shape {labels.shape}; "
            "allowed: whole numbers of shape (samples,)."
        )
    if len(labels) not in (n_samples, _N_SEVERITIES * n_samples):
        raise InputError(
            f"labels.npy in {str(root)!r} holds {len(labels)} labels; allowed: {n_samples}, or "
            f"{_N_SEVERITIES * n_samples} for {_N_SEVERITIES} severities."
        )
    start = start if len(labels) > n_samples else 0
    return torch.from_numpy(labels[start : start + n_samples].astype(np.int64))


def _list_severities(array: np.ndarray, n_samples: int) -> str:
    severities = [
        str(index + 1)
        for index in range(_N_SEVERITIES)
        if array[index * n_samples : index * n_samples + min(_N_PROBED, n_samples)].any()
    ]
    return ", ".join(severities) or "none"
