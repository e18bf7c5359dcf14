"""The files that data sets come in."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bitta.errors import InputError

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_CIFAR_ROW = 1 + 3 * 32 * 32


def read_cifar(folder: str | Path, *, train: bool) -> tuple[Tensor, Tensor]:
    """CIFAR-10 from its binary batches: images (n, 3, 32, 32) uint8, labels (n,)."""
    names = [f"data_batch_{n}.bin" for n in range(1, 6)] if train else ["test_batch.bin"]
    rows = [np.frombuffer(_read(Path(folder) / name), np.uint8) for name in names]
    for name, batch in zip(names, rows, strict=True):
        if batch.size % _CIFAR_ROW:
            raise InputError(
                f"{name} in {str(folder)!r} holds {batch.size} bytes, not a multiple of "
                f"{_CIFAR_ROW}; fetch it again."
            )
    table = torch.from_numpy(np.concatenate(rows).reshape(-1, _CIFAR_ROW))
    return table[:, 1:].reshape(-1, 3, 32, 32).contiguous(), table[:, 0].long()


def read_mnist(folder: str | Path, *, train: bool) -> tuple[Tensor, Tensor]:
    """MNIST from its idx files, packed or not: images (n, 28, 28) uint8, labels (n,)."""
    stem = "train" if train else "t10k"
    images = _read_idx(Path(folder) / f"{stem}-images-idx3-ubyte")
    labels = _read_idx(Path(folder) / f"{stem}-labels-idx1-ubyte")
    return images, labels.long()


def _read_idx(path: Path) -> Tensor:
    packed = path.with_name(path.name + ".gz")
    content = (
        _read(path) if path.exists() or not packed.exists() else gzip.decompress(_read(packed))
    )
    n_dims = content[3] if len(content) > 3 else 0
    header = 4 + 4 * n_dims
    shape = np.frombuffer(content[4:header], ">i4") if len(content) >= header else np.array([-1])
    if n_dims == 0 or len(content) - header != shape.prod():
        raise InputError(
            f"{path.name} in {str(path.parent)!r} is cut or no idx file; fetch it again."
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be read in {str(path.parent)!r} ({error.strerror}); "
            "give the folder that holds the set's own files."
        ) from None
