"""A user's own arrays, in one .npz or in a folder of .npy files.

x.npz          inputs, labels and, if there are several, domains
folder/        <domain>.npy each, and labels.npy for all or <domain>-labels.npy for one
"""

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bitta.errors import InputError
from bitta.streams.domain import Domain
from bitta.streams.images import Mapped, as_images, open_array

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
