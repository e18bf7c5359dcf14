"""Images in whatever form they are at hand, as tensors for the wire.

Neither numpy nor Pillow nor torch is imported before something of theirs is given.
"""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bitta.client.wire import Tensor, pack_bytes
from bitta.errors import InputError

if TYPE_CHECKING:
    import numpy as np

Image: TypeAlias = Any
"""bytes of a JPEG, PNG or WebP; a path to one; a Pillow image; an array or torch tensor in the
model's own layout, (channels, height, width): uint8 from 0 to 255, or floats as it takes them."""

_MAX_ROWS = 64
_MAX_BYTES = 32 * 2**20


def pack(images: Image | Sequence[Image], shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Tensors for as many requests as are needed; `shape` is that of one image as an array."""
    if isinstance(images, list | tuple):
        if not images:
            return
        given = list(images)
        if _is_array(given[0]):
            yield from _cut(_stacked(given, shape))
        else:
            yield from _pictures(given)
    elif _is_array(images):
        yield from _cut(_batched(images, shape))
    else:
        yield from _pictures([images])


def _pictures(images: list[Image]) -> Iterator[Tensor]:
    """Encoded ones, as BYTES."""
    held: list[bytes] = []
    for place, image in enumerate(images):
        content = _encoded(image, place)
        if held and (len(held) == _MAX_ROWS or sum(map(len, held)) + len(content) > _MAX_BYTES):
            yield Tensor("BYTES", (len(held),), pack_bytes(held))
            held = []
        held.append(content)
    yield Tensor("BYTES", (len(held),), pack_bytes(held))


def _encoded(image: Image, place: int) -> bytes:
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | PathLike):
        return _read(Path(os.fspath(image)))
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(image, pillow.Image):
        file = io.BytesIO()
        plain = image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB")
        plain.save(file, "PNG")  # without loss
        return file.getvalue()
    kind = type(image).__name__
    raise InputError(
        f"image {place} is of type {kind}; allowed: encoded bytes, a path, a Pillow image, a numpy "
        "array or torch tensor, or a list of one kind (arrays and pictures not mixed)."
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"the picture {str(path)!r} cannot be read: {error.strerror}.") from None


def _is_array(image: Image) -> bool:
    known = (("numpy", "ndarray"), ("torch", "Tensor"))
    modules = ((sys.modules.get(module), name) for module, name in known)
    return any(module is not None and isinstance(image, getattr(module, name))
               for module, name in modules)  # fmt: skip


def _stacked(images: list[Image], shape: tuple[int, ...]) -> "np.ndarray":
    import numpy as np  # noqa: PLC0415 (only where arrays are given)

    arrays: list[np.ndarray] = []
    for place, image in enumerate(images):
        if not _is_array(image):
            _encoded(image, place)  # what is neither has a sentence of its own
            raise InputError("arrays and pictures are mixed in one list; give them apart.")
        arrays.append(_as_array(image))
        if arrays[place].shape != arrays[0].shape or arrays[place].dtype != arrays[0].dtype:
            raise InputError(
                f"image {place} is {_described(arrays[place])} and image 0 "
                f"{_described(arrays[0])}; images of one call are alike."
            )
    if arrays[0].ndim != len(shape):
        raise _wrong_shape(arrays[0].shape, shape)
    return np.stack(arrays)


def _described(array: "np.ndarray") -> str:
    return f"{array.dtype} of shape {list(array.shape)}"


def _batched(images: Image, shape: tuple[int, ...]) -> "np.ndarray":
    array = _as_array(images)
    if array.ndim == len(shape):
        return array[None]
    if array.ndim != len(shape) + 1:
        raise _wrong_shape(array.shape, shape)
    return array


def _wrong_shape(given: tuple[int, ...], shape: tuple[int, ...]) -> InputError:
    sides = ", ".join(map(str, shape))
    return InputError(
        f"the array has shape {list(given)}; the model takes ({sides}) for one image and "
        f"(n, {sides}) for several."
    )


def _as_array(image: Image) -> "np.ndarray":
    """uint8 stays, floats become float32; other integers could be anything."""
    import numpy as np  # noqa: PLC0415 (only where arrays are given)

    if not isinstance(image, np.ndarray):
        tensor = image.detach().cpu()
        image = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    if image.dtype != np.uint8 and image.dtype.kind != "f":
        raise InputError(
            f"the array holds {image.dtype}; uint8 (0 to 255) or floats are needed, as by "
            ".astype(numpy.uint8)."
        )
    return np.asarray(image, dtype="u1" if image.dtype == np.uint8 else "<f4")


def _cut(batch: "np.ndarray") -> Iterator[Tensor]:
    row_bytes = max(1, batch.nbytes // max(1, len(batch)))
    rows = max(1, min(_MAX_ROWS, _MAX_BYTES // row_bytes))
    datatype = "UINT8" if batch.dtype.itemsize == 1 else "FP32"
    for start in range(0, len(batch), rows):
        part = batch[start : start + rows]
        yield Tensor(datatype, part.shape, part.tobytes())
