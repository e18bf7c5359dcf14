"""CIFAR-10 and CIFAR-100 in all published formats.

Krizhevsky, 2009, https://www.cs.toronto.edu/~kriz/cifar.html. The formats are binary batches,
pickles, and the .tar.gz of either, which is read without unpacking. CIFAR-100 also comes as
lossless mosaics.
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
from bitta.streams.folders import list_folders
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

_ImagesAndLabels: TypeAlias = tuple[np.ndarray, np.ndarray]  # (n, 3, 32, 32) uint8, (n,)


def read_cifar10(folder: str | Path, *, train: bool) -> Domain:
    """Read CIFAR-10 from a folder (searched two levels deep) or from its .tar.gz."""
    return _read_split(_CIFAR10, Path(folder), train=train)


def read_cifar100(folder: str | Path, *, train: bool) -> Domain:
    """Read CIFAR-100 with its fine labels, from the same places as `read_cifar10`."""
    return _read_split(_CIFAR100, Path(folder), train=train)


@dataclass(frozen=True)
class _FileFormat:
    """Names of the files of each split, and the function that parses their bytes."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    parse: Callable[[Mapping[str, bytes]], list[_ImagesAndLabels]]

    def file_names(self, *, train: bool) -> tuple[str, ...]:
        return self.train if train else self.test


@dataclass(frozen=True)
class _CifarSet:
    name: str
    classes: tuple[str, ...]
    archives: str
    """Pattern of the names of archives."""
    formats: tuple[_FileFormat, ...]


def _read_split(data_set: _CifarSet, folder: Path, *, train: bool) -> Domain:
    file_format, contents = _read_files(data_set, folder, train=train)
    try:
        parts = file_format.parse(
            {name: contents[name] for name in file_format.file_names(train=train)}
        )
    except InputError as error:
        raise InputError(
            f"{data_set.name} in {str(folder)!r}: {error} Download it again."
        ) from None
    images = torch.from_numpy(np.concatenate([images for images, _ in parts]))
    labels = torch.from_numpy(np.concatenate([labels for _, labels in parts]).astype(np.int64))
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(data_set.classes):
        raise InputError(
            f"labels in {str(folder)!r} go from {labels.min()} to {labels.max()}, but "
            f"{data_set.name} has 0 to {len(data_set.classes) - 1}; give the right data set."
        )
    return Domain(data_set.name, images, labels, data_set.classes)


def _read_files(
    data_set: _CifarSet, path: Path, *, train: bool
) -> tuple[_FileFormat, Mapping[str, bytes]]:
    """Return the first format that has all files of a split, and their bytes."""
    if path.is_file():
        return _read_archive(data_set, path, train=train)
    incomplete = []
    folders = list_folders(path, 2) if path.is_dir() else []
    for folder in folders:
        for file_format in data_set.formats:
            paths = [folder / name for name in file_format.file_names(train=train)]
            missing = [file for file in paths if not file.is_file()]
            if not missing:
                return file_format, {file.name: _read_bytes(file) for file in paths}
            if any((folder / name).is_file() for name in file_format.train + file_format.test):
                incomplete.append(f"there is no file {missing[0].name} in {str(folder)!r}")
    archives = [file for folder in folders for file in sorted(folder.glob(data_set.archives))]
    if archives:
        return _read_archive(data_set, archives[0], train=train)
    formats = ", or ".join(
        " ".join(file_format.file_names(train=train)) for file_format in data_set.formats
    )
    problem = incomplete[0] if incomplete else f"there is no {data_set.name} in {str(path)!r}"
    raise InputError(
        f"{problem}; give a folder that holds {formats}, or {data_set.archives}, at most two "
        "levels deep."
    )


def _read_archive(
    data_set: _CifarSet, path: Path, *, train: bool
) -> tuple[_FileFormat, Mapping[str, bytes]]:
    wanted = {
        name for file_format in data_set.formats for name in file_format.file_names(train=train)
    }
    contents = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                stream = archive.extractfile(member) if name in wanted and member.isfile() else None
                if stream:
                    contents[name] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{str(path)!r} is truncated or not a tar ({error}); download it again."
        ) from None
    for file_format in data_set.formats:
        if all(name in contents for name in file_format.file_names(train=train)):
            return file_format, contents
    split = "train" if train else "test"
    raise InputError(f"{str(path)!r} holds no {split} split of {data_set.name}; download it again.")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read ({error.strerror}); check its permissions."
        ) from None


def _parse_binary(contents: Mapping[str, bytes], label_bytes: int) -> list[_ImagesAndLabels]:
    """Parse rows of label bytes, with the fine label last, and pixels."""
    row_bytes = label_bytes + _PIXELS
    parts = []
    for name, content in contents.items():
        if len(content) % row_bytes:
            raise InputError(f"{name} holds {len(content)} bytes, not a multiple of {row_bytes}.")
        table = np.frombuffer(content, np.uint8).reshape(-1, row_bytes)
        parts.append((table[:, label_bytes:].reshape(-1, 3, 32, 32), table[:, label_bytes - 1]))
    return parts


def _parse_pickles(contents: Mapping[str, bytes], label_key: str) -> list[_ImagesAndLabels]:
    parts = []
    for name, content in contents.items():
        batch = _unpickle(content, name)
        pixels, labels = (np.asarray(batch.get(key)) for key in ("data", label_key))
        if pixels.dtype != np.uint8 or pixels.shape != (labels.size, _PIXELS):
            raise InputError(
                f"{name} holds {pixels.dtype} data of shape {pixels.shape} and {label_key} of "
                f"shape {labels.shape}; allowed: uint8 (n, {_PIXELS}) and (n,)."
            )
        parts.append((pixels.reshape(-1, 3, 32, 32), labels.reshape(-1)))
    return parts


def _parse_mosaics(contents: Mapping[str, bytes]) -> list[_ImagesAndLabels]:
    """Parse pictures made of 32-pixel tiles. labels.npz holds an array per split."""
    pixels = [
        _split_mosaic(content, name) for name, content in contents.items() if name != "labels.npz"
    ]
    split = "test" if "test.webp" in contents else "train"
    try:
        with np.load(io.BytesIO(contents["labels.npz"]), allow_pickle=False) as arrays:
            labels = arrays[split]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"labels.npz has no readable array {split!r} ({error}).") from None
    images = np.concatenate(pixels)
    if labels.shape != (len(images),):
        raise InputError(f"there are {len(images)} images, but labels of shape {labels.shape}.")
    return [(images, labels)]


def _split_mosaic(content: bytes, name: str) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(content)) as picture:
            mosaic = np.asarray(picture.convert("RGB"))
    except (OSError, ValueError) as error:
        raise InputError(f"{name} is truncated or not a picture ({error}).") from None
    rows, columns = mosaic.shape[0] // 32, mosaic.shape[1] // 32
    if mosaic.shape[:2] != (rows * 32, columns * 32):
        raise InputError(f"{name} is {mosaic.shape[1]} x {mosaic.shape[0]}, not a multiple of 32.")
    tiles = mosaic.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(-1, 3, 32, 32)


_UNPICKLING_ERRORS = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError),
    *(AttributeError, OverflowError, MemoryError),
)
"""Errors that damaged content can raise."""


def _unpickle(content: bytes, name: str) -> dict[str, Any]:
    """Return a dict of plain values and arrays. Refuse a pickle that needs anything else."""
    try:
        batch = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except InputError as error:
        raise InputError(f"{name} {error}") from None
    except _UNPICKLING_ERRORS as error:
        raise InputError(f"{name} is truncated or not a pickle ({error}).") from None
    if not isinstance(batch, dict):
        raise InputError(f"{name} holds a {type(batch).__name__}, not a dict.")
    return {key.decode() if isinstance(key, bytes) else str(key): batch[key] for key in batch}


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler that can only make arrays of numbers. It runs no other code."""

    def find_class(self, module: str, name: str) -> Any:
        # numpy.core became numpy._core in numpy 2. The official files name numpy.core.
        qualified_name = (module.replace("numpy._core", "numpy.core"), name)
        if qualified_name not in _ALLOWED_CLASSES:
            raise InputError(f"needs {module}.{name}, which is not allowed and was not run.")
        return _ALLOWED_CLASSES[qualified_name]


def _parse_dtype(spec: str | bytes, *_: object) -> np.dtype[Any]:
    dtype = np.dtype(spec.decode() if isinstance(spec, bytes) else spec)
    if dtype.kind not in "uifb":
        raise InputError(f"holds an array of {dtype}, not of numbers; it was not read.")
    return dtype


def _encode_latin1(text: str, _: object = None) -> bytes:
    """Return bytes that Python 3 has stored as text in a pickle of protocol 2."""
    return text.encode("latin1")


_ALLOWED_CLASSES = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy.core.numeric", "_frombuffer"): np.empty(1).__reduce_ex__(5)[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _parse_dtype,
    ("_codecs", "encode"): _encode_latin1,
}
_CIFAR10 = _CifarSet(
    "cifar10",
    CIFAR10_CLASSES,
    "cifar-10-*.tar.gz",
    (
        _FileFormat(
            tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
            ("test_batch.bin",),
            partial(_parse_binary, label_bytes=1),
        ),
        _FileFormat(
            tuple(f"data_batch_{n}" for n in range(1, 6)),
            ("test_batch",),
            partial(_parse_pickles, label_key="labels"),
        ),
    ),
)
_CIFAR100 = _CifarSet(
    "cifar100",
    CIFAR100_CLASSES,
    "cifar-100-*.tar.gz",
    (
        _FileFormat(("train.bin",), ("test.bin",), partial(_parse_binary, label_bytes=2)),
        _FileFormat(("train",), ("test",), partial(_parse_pickles, label_key="fine_labels")),
        _FileFormat(
            (*(f"train_{n}.webp" for n in range(1, 6)), "labels.npz"),
            ("test.webp", "labels.npz"),
            _parse_mosaics,
        ),
    ),
)
