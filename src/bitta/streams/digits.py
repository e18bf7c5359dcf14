"""MNIST, data sets in its format, and coloured digits.

Coloured digits follow Arjovsky et al., 2019, with the values of the code published with BiTTA. The
clean label is 1 if the digit is 5 or more. The noisy label flips it with probability 0.25. A digit
is red if the noisy label is 0, and green if it is 1. The colour flips with a probability that
depends on the domain. Models are trained on noisy labels and evaluated on clean ones.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bitta.errors import InputError
from bitta.seeding import generator
from bitta.streams.folders import list_folders


def read_mnist(folder: str | Path, *, train: bool) -> tuple[Tensor, Tensor]:
    """Return images (n, 28, 28) uint8 and labels (n,) from idx or idx.gz files.

    The files may be in the folder or at most two levels deeper.
    """
    stem = "train" if train else "t10k"
    images = _read_idx(Path(folder), f"{stem}-images-idx3-ubyte")
    labels = _read_idx(Path(folder), f"{stem}-labels-idx1-ubyte").long()
    if labels.shape != images.shape[:1]:
        raise InputError(
            f"MNIST in {str(folder)!r} has {len(images)} images and {len(labels)} labels; "
            "each image needs one label. Download both files again."
        )
    return images, labels


def _read_idx(folder: Path, name: str) -> Tensor:
    path = _find_file(folder, name)
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}); download it again.") from None
    n_dims = content[3] if len(content) > 3 else 0
    header = 4 + 4 * n_dims
    shape = np.frombuffer(content[4:header], ">i4") if len(content) >= header else np.array([-1])
    if n_dims == 0 or len(content) - header != shape.prod():
        raise InputError(
            f"{path.name} in {str(folder)!r} is truncated or not an idx file; download it again."
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy())


def _find_file(folder: Path, name: str) -> Path:
    for subfolder in list_folders(folder, 2) if folder.is_dir() else []:
        for path in (subfolder / name, subfolder / f"{name}.gz"):
            if path.is_file():
                return path
    raise InputError(
        f"there is no {name}, nor {name}.gz, in {str(folder)!r} or at most two levels deeper; "
        "give the folder that holds the files of the data set."
    )


COLOUR_FLIPS = {"source_1": 0.2, "source_2": 0.1, "target": 0.9}
"""Probability of the wrong colour, by domain."""
_LABEL_NOISE = 0.25


def coloured_digits(
    digits: Tensor, numerals: Tensor, *, colour_flip: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return images (n, 3, h, w), clean labels and noisy labels of grey digits (n, h, w).

    `numerals` are the numbers 0 to 9 that the digits show, (n,).
    """
    rng = generator(seed, "colour", str(colour_flip))
    clean = (numerals >= 5).long()
    noisy = clean ^ (torch.rand(len(clean), generator=rng) < _LABEL_NOISE).long()
    colour = noisy ^ (torch.rand(len(clean), generator=rng) < colour_flip).long()
    images = torch.zeros(len(digits), 3, *digits.shape[1:], dtype=torch.uint8)
    images[torch.arange(len(digits)), colour] = digits
    return images, clean, noisy
