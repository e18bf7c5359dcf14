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

from bitta.config import require
from bitta.errors import InputError


class Images(Protocol):
    """Pictures that are read when they are needed, to derive from; a tensor will do as well."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, rows: Tensor) -> Tensor:
        """These rows, uint8 (0 to 255) or float, (rows, channels, height, width)."""

    @property
    def fingerprint(self) -> str:
        """Hash that tells these images from others, found without decoding all of them."""

    def prepare(self) -> None:
        """Make now what would be made for the first row; most have nothing to make."""
        return

    def release(self) -> None:
        """Let go of what was made; it is made anew if a row is asked for after all."""
        return


@dataclass(frozen=True, eq=False)
class Domain:
    """One condition under which a stream is taken."""

    name: str
    images: Tensor | Images
    labels: Tensor
    classes: tuple[str, ...] = ()
    """Their names, in the order of the labels, where they are known."""

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
        told = hashed(images) if isinstance(images, Tensor) else images.fingerprint
        return hashed(self.name, self.labels, *self.classes, told)

    def prepare(self) -> None:
        """Make the images, where they have to be made."""
        if not isinstance(self.images, Tensor):
            self.images.prepare()

    def release(self) -> None:
        """Let go of images that can be made anew."""
        if not isinstance(self.images, Tensor):
            self.images.release()


def hashed(*parts: str | bytes | Tensor) -> str:
    """One hash of several things."""
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
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)


@dataclass(frozen=True)
class Geometry:
    """How a picture is brought to size: scaled first, then cut from its middle."""

    resize: int = 0
    """Length of the shorter side after bilinear scaling; 0 leaves the picture as it is."""
    crop: int = 0
    """Side of the square that is kept; 0 keeps everything."""

    def __post_init__(self) -> None:
        require(self.resize >= 0, "resize", self.resize, "0 or more")
        require(self.crop >= 0, "crop", self.crop, "0 or more")

    def __call__(self, picture: Image.Image) -> Image.Image:
        """The picture at its new size; the caller has to see that the crop fits."""
        if self.resize:
            shorter = min(picture.size)
            width, height = (self.resize * side // shorter for side in picture.size)
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        if not self.crop:
            return picture
        # Halves round to even, as in torchvision, whose crops published numbers rest on.
        left, top = (round((side - self.crop) / 2) for side in picture.size)
        return picture.crop((left, top, left + self.crop, top + self.crop))


AS_IT_IS = Geometry()
FOR_224 = Geometry(resize=256, crop=224)
"""The usual way to models that were trained on ImageNet."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the bytes of one picture lie: a file, or a member of an uncompressed tar."""

    path: str
    member: str = ""
    offset: int = 0
    size: int = -1

    def __str__(self) -> str:
        return f"{self.member!r} in {self.path!r}" if self.member else repr(self.path)

    def read(self) -> bytes:
        """The bytes, as they are."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


class Files(Images):
    """Pictures in files, decoded to RGB when they are asked for.

    >>> photos = Files([Entry("a.jpg"), Entry("b.jpg")], Geometry(resize=256, crop=224))
    >>> len(photos)
    2
    """

    def __init__(self, entries: Sequence[Entry], geometry: Geometry = AS_IT_IS) -> None:
        self.entries = entries
        self.geometry = geometry

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """uint8 (rows, 3, height, width), in the order of `rows`."""
        wanted = [self.entries[row] for row in rows.tolist()]
        if not wanted:
            return torch.empty(0, 3, self.geometry.crop, self.geometry.crop, dtype=torch.uint8)
        with ThreadPoolExecutor(min(_N_THREADS, len(wanted))) as pool:
            pictures = list(pool.map(self._decode, wanted))
        for entry, pixels in zip(wanted, pictures, strict=True):
            if pixels.shape != pictures[0].shape:
                raise InputError(
                    f"{entry} is {_size(pixels)} and {wanted[0]} is {_size(pictures[0])}; "
                    "pictures of a batch need one size: set resize and crop."
                )
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()

    @property
    def fingerprint(self) -> str:
        """Of every name, of how pictures are brought to size, and of the bytes of a few."""
        names = (entry.member or os.path.basename(entry.path) for entry in self.entries)
        try:
            few = [self.entries[row].read() for row in _spread(len(self.entries))]
        except OSError as error:
            raise InputError(
                f"{error.filename!r} cannot be read ({error.strerror}); was the folder moved?"
            ) from None
        return hashed(str(self.geometry), *names, *few)

    def _decode(self, entry: Entry) -> np.ndarray:
        try:
            with Image.open(io.BytesIO(entry.read())) as opened:
                picture = as_rgb(opened)
        except FileNotFoundError:
            raise InputError(f"there is no picture {entry}; was the folder moved?") from None
        except (*_BROKEN, Image.DecompressionBombError) as error:
            raise InputError(
                f"{entry} is cut or no picture ({type(error).__name__}); put a whole one in its "
                "place, and --resume goes on."
            ) from None
        smallest = self.geometry.resize or min(picture.size)
        if smallest < self.geometry.crop:
            raise InputError(
                f"{entry} is {picture.width} x {picture.height} and crop is {self.geometry.crop}; "
                f"set resize to {self.geometry.crop} or more, or a smaller crop."
            )
        return np.asarray(self.geometry(picture))


class Mapped(Images):
    """Rows of an .npy file, from `start` up to `stop`, read when they are asked for.

    Pictures are uint8 (n, h, w, c), as image libraries give them, or (n, c, h, w); anything else
    is float. The file is mapped for each call and let go again, so that pages do not pile up.
    """

    def __init__(self, path: str | Path, *, start: int = 0, stop: int | None = None) -> None:
        array = open_array(path)
        self.path = path
        self.rows = range(len(array))[start:stop]
        as_images(array[:1], path)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """(rows, channels, height, width), or float (rows, ...)."""
        places = [self.rows[row] for row in rows.tolist()]
        return as_images(open_array(self.path)[places], self.path)

    @property
    def fingerprint(self) -> str:
        """Of the file's name, of which rows, and of a few of them."""
        array = open_array(self.path)
        few = array[[self.rows[row] for row in _spread(len(self.rows))]]
        return hashed(Path(self.path).name, str(array.shape), str(self.rows), few.tobytes())


class Chosen(Images):
    """Some of the images, in an order of one's own."""

    def __init__(self, images: Tensor | Images, rows: Tensor) -> None:
        self.images = images
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """The images that stand at these places of the choice."""
        return self.images[self.rows[rows]]

    @property
    def fingerprint(self) -> str:
        """Of the images chosen from, and of the choice."""
        images = self.images
        return hashed(self.rows, images if isinstance(images, Tensor) else images.fingerprint)

    def prepare(self) -> None:
        """Make the images chosen from."""
        if not isinstance(self.images, Tensor):
            self.images.prepare()

    def release(self) -> None:
        """Let go of the images chosen from."""
        if not isinstance(self.images, Tensor):
            self.images.release()


def _spread(n_rows: int) -> range:
    """A few rows, from beginning to end."""
    return range(0, n_rows, max(1, n_rows // _N_FINGERPRINTED))


def open_array(path: str | Path) -> np.ndarray:
    """An .npy file, mapped, not read."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r}.") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{str(path)!r} is cut or no .npy file of plain numbers ({error}); "
            "write it with numpy.save."
        ) from None
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise InputError(f"{str(path)!r} is not one array; write it with numpy.save.")
    return array


def as_images(array: np.ndarray, path: str | Path) -> Tensor:
    """Pictures in uint8 are (n, h, w, c), as image libraries give them, or (n, c, h, w)."""
    if array.dtype == np.uint8 and array.ndim == 4:
        if array.shape[-1] in _COLOUR_CHANNELS and array.shape[1] not in _COLOUR_CHANNELS:
            array = array.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.array(array, order="C"))
    if np.issubdtype(array.dtype, np.floating) and array.ndim >= 2:
        if not np.isfinite(array).all():
            raise InputError(f"inputs in {str(path)!r} hold values that are not finite.")
        return torch.from_numpy(array.astype(np.float32))
    raise InputError(
        f"inputs in {str(path)!r} are {array.dtype} of shape {array.shape}; uint8 (samples, "
        "height, width, channels) or float (samples, ...) is needed."
    )


def as_rgb(picture: Image.Image) -> Image.Image:
    """Any picture in three colours; transparency is dropped."""
    if picture.mode in ("I", "I;16", "I;16L", "I;16B", "I;16N"):
        # Pillow versions differ in whether they scale 16 bits or clip them; 8 high bits are kept.
        grey = np.asarray(picture).astype(np.int64).clip(0, 65535) >> 8
        picture = Image.fromarray(grey.astype(np.uint8))
    picture.info.pop("transparency", None)
    return picture.convert("RGB")


def _size(pixels: np.ndarray) -> str:
    return f"{pixels.shape[1]} x {pixels.shape[0]}"
