"""MNIST, sets in its format, and coloured digits.

After Arjovsky et al., 2019, with the values of the code published with BiTTA: the label is whether
the digit is 5 or more; a noisy label flips it with probability .25; ink is red if the noisy label
is 0, green if it is 1; that colour flips with the chance of the domain. Models train on noisy
labels; accuracy is measured on clean ones.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bitta.errors import InputError
from bitta.seeding import generator
from bitta.streams.folders import folders_down_to


def read_mnist(folder: str | Path, *, train: bool) -> tuple[Tensor, Tensor]:
    """Images (n, 28, 28) uint8 and labels (n,) from idx files, packed or not.

    They may lie in the folder or at most two levels below it.
    """
    stem = "train" if train else "t10k"
    images = _read_idx(Path(folder), f"{stem}-images-idx3-ubyte")
    labels = _read_idx(Path(folder), f"{stem}-labels-idx1-ubyte").long()
    if labels.shape != images.shape[:1]:
        raise InputError(
            f"MNIST in {str(folder)!r} has {len(images)} images and {len(labels)} labels; "
            "one label per image is needed. Fetch both files again."
        )
    return images, labels


def _read_idx(folder: Path, name: str) -> Tensor:
    path = _find(folder, name)
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}); fetch it again.") from None
    n_dims = content[3] if len(content) > 3 else 0
    header = 4 + 4 * n_dims
    shape = np.frombuffer(content[4:header], ">i4") if len(content) >= header else np.array([-1])
    if n_dims == 0 or len(content) - header != shape.prod():
        raise InputError(f"{path.name} in {str(folder)!r} is cut or no idx file; fetch it again.")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy())


def _find(folder: Path, name: str) -> Path:
    for place in folders_down_to(folder, 2) if folder.is_dir() else []:
        for path in (place / name, place / f"{name}.gz"):
            if path.is_file():
                return path
    raise InputError(
        f"there is no {name}, nor {name}.gz, in {str(folder)!r} or at most two levels below; "
        "give the folder that holds the set's own files."
    )


CHANCES = {"source_1": 0.2, "source_2": 0.1, "target": 0.9}
_LABEL_NOISE = 0.25


def coloured_digits(
    digits: Tensor, numerals: Tensor, *, colour_flip: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Images (n, 3, h, w), clean labels and noisy labels from grey digits (n, h, w)."""
    chance = generator(seed, "colour", str(colour_flip))
    clean = (numerals >= 5).long()
    noisy = clean ^ (torch.rand(len(clean), generator=chance) < _LABEL_NOISE).long()
    colour = noisy ^ (torch.rand(len(clean), generator=chance) < colour_flip).long()
    images = torch.zeros(len(digits), 3, *digits.shape[1:], dtype=torch.uint8)
    images[torch.arange(len(digits)), colour] = digits
    return images, clean, noisy
