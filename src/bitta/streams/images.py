"""Images of a domain, in memory or on disk."""

import io
import os
import struct
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bitta.config_base import require
from bitta.errors import InputError


class Images(Protocol):
    """Base class of images that are read or generated on access.

    A `Domain` holds one of these, or a tensor.
    """

    def __len__(self) -> int:
        """Return the number of images."""

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return these rows, uint8 (0 to 255) or float, (rows, channels, height, width)."""

    @property
    def fingerprint(self) -> str:
        """Hash that identifies these images, computed without decoding all of them."""

    def prepare(self) -> None:
        """Generate the images now, if they are not stored. Most classes have nothing to do."""
        return

    def release(self) -> None:
        """Free the memory of generated images. A later access generates them again."""
        return


@dataclass(frozen=True, eq=False)
class Domain:
    """Labelled images that were taken under one condition."""

    name: str
    images: Tensor | Images
    labels: Tensor
    classes: tuple[str, ...] = ()
    """Names of the classes in the order of the labels. Empty if unknown."""
    rows: Tensor | None = None
    """Number of each image in its data set. None if the domain is the whole set in its order."""

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise InputError(
                f"domain {self.name!r} has {len(self.images)} images and {len(self.labels)} "
                "labels; one label per image is needed."
            )

    @property
    def fingerprint(self) -> str:
        """Hash of name, labels, classes and images."""
        images = self.images
        image_hash = hash_parts(images) if isinstance(images, Tensor) else images.fingerprint
        return hash_parts(self.name, self.labels, *self.classes, image_hash)

    def prepare(self) -> None:
        """Generate the images now, if they are not stored."""
        if not isinstance(self.images, Tensor):
            self.images.prepare()

    def release(self) -> None:
        """Free the memory of generated images. A later access generates them again."""
        if not isinstance(self.images, Tensor):
            self.images.release()


def hash_parts(*parts: str | bytes | Tensor) -> str:
    """Return one hash of texts, bytes and tensors."""
    digest = sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
            digest.update(part.contiguous().numpy().tobytes())
        else:
            digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()


_N_THREADS = min(8, os.cpu_count() or 1)
_COLOUR_CHANNELS = (1, 3, 4)
_N_FINGERPRINTED = 64
_DECODING_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)


@dataclass(frozen=True)
class Geometry:
    """Resizing of a picture, followed by a crop of its centre."""

    resize: int = 0
    """Length of the shorter side after bilinear resizing. 0 keeps the size."""
    crop: int = 0
    """Side of the square that is kept. 0 keeps the whole picture."""

    def __post_init__(self) -> None:
        require(self.resize >= 0, "resize", self.resize, "0 or more")
        require(self.crop >= 0, "crop", self.crop, "0 or more")

    def __call__(self, picture: Image.Image) -> Image.Image:
        """Return the picture at its new size. The caller checks that the crop fits."""
        if self.resize:
            shorter = min(picture.size)
            width, height = (self.resize * side // shorter for side in picture.size)
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        if not self.crop:
            return picture
        # Halves round to even, as in torchvision. Published numbers depend on these crops.
        left, top = (round((side - self.crop) / 2) for side in picture.size)
        return picture.crop((left, top, left + self.crop, top + self.crop))


ORIGINAL_SIZE = Geometry()
RESIZE_256_CROP_224 = Geometry(resize=256, crop=224)
"""Usual preprocessing of models that were trained on ImageNet."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """Location of one picture: a file, or a member of an uncompressed tar."""

    path: str
    member: str = ""
    offset: int = 0
    size: int = -1

    def __str__(self) -> str:
        return f"{self.member!r} in {self.path!r}" if self.member else repr(self.path)

    def read(self) -> bytes:
        """Return the encoded bytes of the picture."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


class DecodedImages(Images):
    """Pictures in files, decoded to RGB when they are needed.

    >>> photos = DecodedImages([ImageFile("a.jpg"), ImageFile("b.jpg")], RESIZE_256_CROP_224)
    >>> len(photos)
    2
    """

    def __init__(self, files: Sequence[ImageFile], geometry: Geometry = ORIGINAL_SIZE) -> None:
        self.files = files
        self.geometry = geometry

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return uint8 (rows, 3, height, width), in the order of `rows`."""
        files = [self.files[row] for row in rows.tolist()]
        if not files:
            return torch.empty(0, 3, self.geometry.crop, self.geometry.crop, dtype=torch.uint8)
        with ThreadPoolExecutor(min(_N_THREADS, len(files))) as pool:
            pictures = list(pool.map(self._decode, files))
        for file, pixels in zip(files, pictures, strict=True):
            if pixels.shape != pictures[0].shape:
                raise InputError(
                    f"{file} is {_format_size(pixels)} and {files[0]} is "
                    f"{_format_size(pictures[0])}; the pictures of a batch need the same size: "
                    "set resize and crop."
                )
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()

    @property
    def fingerprint(self) -> str:
        """Hash of all names, of the geometry, and of the bytes of a few pictures."""
        names = (file.member or os.path.basename(file.path) for file in self.files)
        try:
            few = [self.files[row].read() for row in _sample_rows(len(self.files))]
        except OSError as error:
            raise InputError(
                f"{error.filename!r} cannot be read ({error.strerror}); if the folder was moved, "
                "give its new path."
            ) from None
        return hash_parts(str(self.geometry), *names, *few)

    def _decode(self, file: ImageFile) -> np.ndarray:
        try:
            with Image.open(io.BytesIO(file.read())) as opened:
                picture = convert_to_rgb(opened)
        except FileNotFoundError:
            raise InputError(
                f"there is no picture {file}; if the folder was moved, give its new path."
            ) from None
        except (*_DECODING_ERRORS, Image.DecompressionBombError) as error:
            raise InputError(
                f"{file} is truncated or not a picture ({type(error).__name__}); replace it and "
                "continue with --resume."
            ) from None
        smallest = self.geometry.resize or min(picture.size)
        if smallest < self.geometry.crop:
            raise InputError(
                f"{file} is {picture.width} x {picture.height} and crop is {self.geometry.crop}; "
                f"set resize to {self.geometry.crop} or more, or a smaller crop."
            )
        return np.asarray(self.geometry(picture))


class MappedImages(Images):
    """Rows `start` to `stop` of an .npy file, read when they are needed.

    Pictures are uint8 (n, h, w, c) or (n, c, h, w). Other inputs are float. Each access maps the
    file and unmaps it again, so that its pages do not fill the memory.
    """

    def __init__(self, path: str | Path, *, start: int = 0, stop: int | None = None) -> None:
        array = open_array(path)
        self.path = path
        self.rows = range(len(array))[start:stop]
        as_images(array[:1], path)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return (rows, channels, height, width), or float (rows, ...)."""
        positions = [self.rows[row] for row in rows.tolist()]
        return as_images(open_array(self.path)[positions], self.path)

    @property
    def fingerprint(self) -> str:
        """Hash of the file name, of the row numbers, and of a few rows."""
        array = open_array(self.path)
        few = array[[self.rows[row] for row in _sample_rows(len(self.rows))]]
        return hash_parts(Path(self.path).name, str(array.shape), str(self.rows), few.tobytes())


class SelectedImages(Images):
    """Selection of images, in a given order."""

    def __init__(self, images: Tensor | Images, rows: Tensor) -> None:
        self.images = images
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the images at these positions of the selection."""
        return self.images[self.rows[rows]]

    @property
    def fingerprint(self) -> str:
        """Hash of all images, and of the selected rows."""
        images = self.images
        return hash_parts(self.rows, images if isinstance(images, Tensor) else images.fingerprint)

    def prepare(self) -> None:
        """Generate the images now, if they are not stored."""
        if not isinstance(self.images, Tensor):
            self.images.prepare()

    def release(self) -> None:
        """Free the memory of generated images. A later access generates them again."""
        if not isinstance(self.images, Tensor):
            self.images.release()


def _sample_rows(n_rows: int) -> range:
    """Return a few rows, evenly spaced."""
    return range(0, n_rows, max(1, n_rows // _N_FINGERPRINTED))


def open_array(path: str | Path) -> np.ndarray:
    """Map an .npy file into memory."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r}; give an existing file.") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{str(path)!r} is truncated or not an .npy file of numbers ({error}); "
            "write it with numpy.save."
        ) from None
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise InputError(f"{str(path)!r} does not hold one array; write it with numpy.save.")
    return array


def as_images(array: np.ndarray, path: str | Path) -> Tensor:
    """Return a tensor of images. Pictures in uint8 are (n, h, w, c) or (n, c, h, w)."""
    if array.dtype == np.uint8 and array.ndim == 4:
        if array.shape[-1] in _COLOUR_CHANNELS and array.shape[1] not in _COLOUR_CHANNELS:
            array = array.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.array(array, order="C"))
    if np.issubdtype(array.dtype, np.floating) and array.ndim >= 2:
        if not np.isfinite(array).all():
            raise InputError(
                f"inputs in {str(path)!r} hold values that are not finite; replace or remove them."
            )
        return torch.from_numpy(array.astype(np.float32))
    raise InputError(
        f"inputs in {str(path)!r} are {array.dtype} of shape {array.shape}; uint8 (samples, "
        "height, width, channels) or float (samples, ...) is needed."
    )


def convert_to_rgb(picture: Image.Image) -> Image.Image:
    """Convert a picture to RGB and drop its transparency."""
    if picture.mode in ("I", "I;16", "I;16L", "I;16B", "I;16N"):
        # Some Pillow versions scale 16 bits, others clip them. Always keep the 8 high bits.
        grey = np.asarray(picture).astype(np.int64).clip(0, 65535) >> 8
        picture = Image.fromarray(grey.astype(np.uint8))
    picture.info.pop("transparency", None)
    return picture.convert("RGB")


def _format_size(pixels: np.ndarray) -> str:
    return f"{pixels.shape[1]} x {pixels.shape[0]}"
