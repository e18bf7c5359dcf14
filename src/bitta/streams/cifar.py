"""CIFAR-10 and CIFAR-100 in the forms they come in.

Krizhevsky, 2009, https://www.cs.toronto.edu/~kriz/cifar.html: binary batches, pickles, or the
.tar.gz of either, which is read without being unpacked; CIFAR-100 also as lossless mosaics.
"""

import io
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from bitta.errors import InputError
from bitta.streams.folders import folders_down_to
from bitta.streams.images import Domain

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR100_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle",
    "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch",
    "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox",
    "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom",
    "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake",
    "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone",
    "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip
_PIXELS = 3 * 32 * 32

_Part: TypeAlias = tuple[np.ndarray, np.ndarray]  # (n, 3, 32, 32) uint8, (n,)


def read_cifar10(folder: str | Path, *, train: bool) -> Domain:
    """CIFAR-10, from a folder that holds it at most two levels down, or from its .tar.gz."""
    return _read(_CIFAR10, Path(folder), train=train)


def read_cifar100(folder: str | Path, *, train: bool) -> Domain:
    """CIFAR-100 with its fine labels, found as `read_cifar10` finds the other."""
    return _read(_CIFAR100, Path(folder), train=train)


@dataclass(frozen=True)
class _Form:
    """Files of one form, and how the images and labels of a split come out of their bytes."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    parse: Callable[[Mapping[str, bytes]], list[_Part]]

    def names(self, *, train: bool) -> tuple[str, ...]:
        return self.train if train else self.test


@dataclass(frozen=True)
class _Set:
    name: str
    classes: tuple[str, ...]
    archives: str
    forms: tuple[_Form, ...]


def _read(kind: _Set, folder: Path, *, train: bool) -> Domain:
    form, contents = _find(kind, folder, train=train)
    try:
        parts = form.parse({name: contents[name] for name in form.names(train=train)})
    except InputError as error:
        raise InputError(f"{kind.name} in {str(folder)!r}: {error} Fetch it again.") from None
    images = torch.from_numpy(np.concatenate([images for images, _ in parts]))
    labels = torch.from_numpy(np.concatenate([labels for _, labels in parts]).astype(np.int64))
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(kind.classes):
        raise InputError(
            f"labels in {str(folder)!r} go from {labels.min()} to {labels.max()}; {kind.name} "
            f"has 0 to {len(kind.classes) - 1}. Is it the right set?"
        )
    return Domain(kind.name, images, labels, kind.classes)


def _find(kind: _Set, folder: Path, *, train: bool) -> tuple[_Form, Mapping[str, bytes]]:
    """The nearest form that has all files of the split, with their bytes."""
    if folder.is_file():
        return _from_archive(kind, folder, train=train)
    incomplete = []
    places = folders_down_to(folder, 2) if folder.is_dir() else []
    for place in places:
        for form in kind.forms:
            paths = [place / name for name in form.names(train=train)]
            missing = [path for path in paths if not path.is_file()]
            if not missing:
                return form, {path.name: _bytes(path) for path in paths}
            if any((place / name).is_file() for name in form.train + form.test):
                incomplete.append(f"{missing[0].name} cannot be read in {str(place)!r}")
    archives = [path for place in places for path in sorted(place.glob(kind.archives))]
    if archives:
        return _from_archive(kind, archives[0], train=train)
    forms = ", or ".join(" ".join(form.names(train=train)) for form in kind.forms)
    problem = incomplete[0] if incomplete else f"there is no {kind.name} in {str(folder)!r}"
    raise InputError(
        f"{problem}; give a folder that holds {forms}, or {kind.archives}, at most two levels down."
    )


def _from_archive(kind: _Set, path: Path, *, train: bool) -> tuple[_Form, Mapping[str, bytes]]:
    wanted = {name for form in kind.forms for name in form.names(train=train)}
    contents = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                stream = archive.extractfile(member) if name in wanted and member.isfile() else None
                if stream:
                    contents[name] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{str(path)!r} is cut or no tar ({error}); fetch it again.") from None
    for form in kind.forms:
        if all(name in contents for name in form.names(train=train)):
            return form, contents
    split = "train" if train else "test"
    raise InputError(f"{str(path)!r} holds no {split} split of {kind.name}; fetch it again.")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read ({error.strerror}).") from None


def _binary(contents: Mapping[str, bytes], label_bytes: int) -> list[_Part]:
    """Rows of label bytes, the fine label last, then pixels."""
    row = label_bytes + _PIXELS
    parts = []
    for name, content in contents.items():
        if len(content) % row:
            raise InputError(f"{name} holds {len(content)} bytes, not a multiple of {row}.")
        table = np.frombuffer(content, np.uint8).reshape(-1, row)
        parts.append((table[:, label_bytes:].reshape(-1, 3, 32, 32), table[:, label_bytes - 1]))
    return parts


def _pickled(contents: Mapping[str, bytes], label_key: str) -> list[_Part]:
    parts = []
    for name, content in contents.items():
        batch = _unpickle(content, name)
        pixels, labels = (np.asarray(batch.get(key)) for key in ("data", label_key))
        if pixels.dtype != np.uint8 or pixels.shape != (labels.size, _PIXELS):
            raise InputError(
                f"{name} holds {pixels.dtype} data of shape {pixels.shape} and {label_key} of "
                f"shape {labels.shape}; uint8 (n, {_PIXELS}) and (n,) are needed."
            )
        parts.append((pixels.reshape(-1, 3, 32, 32), labels.reshape(-1)))
    return parts


def _mosaics(contents: Mapping[str, bytes]) -> list[_Part]:
    """Lossless pictures of 32-pixel tiles, row by row; labels.npz has an array per split."""
    pixels = [_tiles(content, name) for name, content in contents.items() if name != "labels.npz"]
    split = "test" if "test.webp" in contents else "train"
    try:
        with np.load(io.BytesIO(contents["labels.npz"]), allow_pickle=False) as arrays:
            labels = arrays[split]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"labels.npz has no {split!r} that can be read ({error}).") from None
    images = np.concatenate(pixels)
    if labels.shape != (len(images),):
        raise InputError(f"{len(images)} images have labels of shape {labels.shape}.")
    return [(images, labels)]


def _tiles(content: bytes, name: str) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(content)) as picture:
            mosaic = np.asarray(picture.convert("RGB"))
    except (OSError, ValueError) as error:
        raise InputError(f"{name} is cut or no picture ({error}).") from None
    rows, columns = mosaic.shape[0] // 32, mosaic.shape[1] // 32
    if mosaic.shape[:2] != (rows * 32, columns * 32):
        raise InputError(f"{name} is {mosaic.shape[1]} x {mosaic.shape[0]}, not of 32-pixel tiles.")
    tiles = mosaic.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(-1, 3, 32, 32)


def _unpickle(content: bytes, name: str) -> dict[str, Any]:
    """A dict of plain values and arrays; a pickle that asks for anything else is refused."""
    try:
        batch = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except InputError as error:
        raise InputError(f"{name} {error}") from None
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError) as error:
        raise InputError(f"{name} is cut or no pickle ({error}).") from None
    except (AttributeError, OverflowError, MemoryError) as error:
        raise InputError(f"{name} is cut or no pickle ({error}).") from None
    if not isinstance(batch, dict):
        raise InputError(f"{name} holds a {type(batch).__name__}, not the dict of a batch.")
    return {key.decode() if isinstance(key, bytes) else str(key): batch[key] for key in batch}


class _PlainUnpickler(pickle.Unpickler):
    """Knows what arrays of numbers are made with, and nothing that could act."""

    def find_class(self, module: str, name: str) -> Any:
        # numpy.core became numpy._core in numpy 2; official files name the former.
        place = (module.replace("numpy._core", "numpy.core"), name)
        if place not in _HARMLESS:
            raise InputError(f"asks for {module}.{name}, which no batch needs; it was not run.")
        return _HARMLESS[place]


def _number_type(spec: str | bytes, *_: object) -> np.dtype[Any]:
    kind = np.dtype(spec.decode() if isinstance(spec, bytes) else spec)
    if kind.kind not in "uifb":
        raise InputError(f"holds an array of {kind}, not of numbers; it was not read.")
    return kind


def _latin1(text: str, _: object = None) -> bytes:
    """What Python 3 writes for bytes in the pickles of Python 2."""
    return text.encode("latin1")


_HARMLESS = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy.core.numeric", "_frombuffer"): np.empty(1).__reduce_ex__(5)[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _number_type,
    ("_codecs", "encode"): _latin1,
}
_CIFAR10 = _Set(
    "cifar10",
    CIFAR10_CLASSES,
    "cifar-10-*.tar.gz",
    (
        _Form(
            tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
            ("test_batch.bin",),
            partial(_binary, label_bytes=1),
        ),
        _Form(
            tuple(f"data_batch_{n}" for n in range(1, 6)),
            ("test_batch",),
            partial(_pickled, label_key="labels"),
        ),
    ),
)
_CIFAR100 = _Set(
    "cifar100",
    CIFAR100_CLASSES,
    "cifar-100-*.tar.gz",
    (
        _Form(("train.bin",), ("test.bin",), partial(_binary, label_bytes=2)),
        _Form(("train",), ("test",), partial(_pickled, label_key="fine_labels")),
        _Form(
            (*(f"train_{n}.webp" for n in range(1, 6)), "labels.npz"),
            ("test.webp", "labels.npz"),
            _mosaics,
        ),
    ),
)
