"""A user's own arrays: an .npz with `inputs`, `labels` and, if there are several, `domains`."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bitta.errors import InputError
from bitta.streams.domain import Domain

_COLOUR_CHANNELS = (1, 3, 4)


def read_arrays(path: str | Path) -> list[Domain]:
    """Domains in the order in which they first appear in the file."""
    arrays = _read(path)
    for name in ("inputs", "labels"):
        if name not in arrays:
            raise InputError(
                f"{str(path)!r} has no array {name!r}; it has {', '.join(sorted(arrays)) or 'no'}."
            )
    inputs, labels = _images(arrays["inputs"], path), arrays["labels"]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"labels in {str(path)!r} are {labels.dtype} of shape {labels.shape}; "
            "whole numbers (samples,) are needed."
        )
    truth = torch.from_numpy(labels.astype(np.int64))
    if len(truth) and truth.min() < 0:
        raise InputError(f"labels in {str(path)!r} go down to {truth.min()}; 0 is the first class.")
    names = arrays.get("domains", np.full(len(labels), "all"))
    if names.shape != labels.shape or len(inputs) != len(labels):
        raise InputError(
            f"{str(path)!r} has {len(inputs)} inputs, {len(labels)} labels"
            f"{f' and {names.size} domains' if 'domains' in arrays else ''}; "
            "one of each per sample is needed."
        )
    texts = names.astype(str)
    rows = {str(name): torch.from_numpy(texts == name) for name in dict.fromkeys(texts.tolist())}
    return [Domain(name, inputs[mask], truth[mask]) for name, mask in rows.items()]


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


def _images(array: np.ndarray, path: str | Path) -> Tensor:
    """Pictures in uint8 are (n, h, w, c), as image libraries give them, or (n, c, h, w)."""
    if array.dtype == np.uint8 and array.ndim == 4:
        if array.shape[-1] in _COLOUR_CHANNELS and array.shape[1] not in _COLOUR_CHANNELS:
            array = array.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(array))
    if np.issubdtype(array.dtype, np.floating) and array.ndim >= 2:
        if not np.isfinite(array).all():
            raise InputError(f"inputs in {str(path)!r} hold values that are not finite.")
        return torch.from_numpy(array.astype(np.float32))
    raise InputError(
        f"inputs in {str(path)!r} are {array.dtype} of shape {array.shape}; uint8 (samples, "
        "height, width, channels) or float (samples, ...) is needed."
    )
