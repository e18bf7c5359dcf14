"""Conversion of images to input tensors of the protocol.

The client also works without numpy, Pillow and torch: they are used only for their own objects.
"""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bitta.client.inference_protocol import InputTensor, pack_bytes
from bitta.errors import InputError

if TYPE_CHECKING:
    import numpy as np

Image: TypeAlias = Any
"""Bytes of a JPEG, PNG or WebP file, a path to such a file, a Pillow image, or an array or torch
tensor in the layout of the model, (channels, height, width). An array holds uint8 from 0 to 255, or
floats in the range that the model takes."""

_MAX_IMAGES = 64
"""Images per request."""
_MAX_BYTES = 32 * 2**20
"""Bytes of images per request."""


def pack_images(images: Image | Sequence[Image], shape: tuple[int, ...]) -> Iterator[InputTensor]:
    """Yield one tensor per request. `shape` is the shape of one image as an array."""
    if isinstance(images, list | tuple):
        if not images:
            return
        image_list = list(images)
        if _is_array(image_list[0]):
            yield from _split_batch(_stack_arrays(image_list, shape))
        else:
            yield from _pack_encoded(image_list)
    elif _is_array(images):
        yield from _split_batch(_add_batch_dimension(images, shape))
    else:
        yield from _pack_encoded([images])


def _pack_encoded(images: list[Image]) -> Iterator[InputTensor]:
    """Yield BYTES tensors of encoded images."""
    pending: list[bytes] = []
    for index, image in enumerate(images):
        content = _encode(image, index)
        n_bytes = sum(map(len, pending)) + len(content)
        if pending and (len(pending) == _MAX_IMAGES or n_bytes > _MAX_BYTES):
            yield InputTensor("BYTES", (len(pending),), pack_bytes(pending))
            pending = []
        pending.append(content)
    yield InputTensor("BYTES", (len(pending),), pack_bytes(pending))


def _encode(image: Image, index: int) -> bytes:
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | PathLike):
        return _read_file(Path(os.fspath(image)))
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(image, pillow.Image):
        file = io.BytesIO()
        converted = image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB")
        converted.save(file, "PNG")  # lossless
        return file.getvalue()
    raise InputError(
        f"image {index} is of type {type(image).__name__}; allowed: encoded bytes, a path, a "
        "Pillow image, a numpy array, a torch tensor, or a list of them (arrays and tensors "
        "not mixed with the others)."
    )


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"the image {str(path)!r} cannot be read: {error.strerror}.") from None


def _is_array(image: Image) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (numpy is not None and isinstance(image, numpy.ndarray)) or (
        torch is not None and isinstance(image, torch.Tensor)
    )


def _stack_arrays(images: list[Image], shape: tuple[int, ...]) -> "np.ndarray":
    import numpy as np  # noqa: PLC0415 (only needed for arrays)

    arrays: list[np.ndarray] = []
    for index, image in enumerate(images):
        if not _is_array(image):
            _encode(image, index)  # raises for objects that are not images
            raise InputError(
                "the list mixes arrays and encoded images; give each kind in its own call."
            )
        arrays.append(_to_array(image))
        if arrays[index].shape != arrays[0].shape or arrays[index].dtype != arrays[0].dtype:
            raise InputError(
                f"image {index} is {_describe(arrays[index])} and image 0 is "
                f"{_describe(arrays[0])}; all images of one call need the same type and shape."
            )
    if arrays[0].ndim != len(shape):
        raise _shape_error(arrays[0].shape, shape)
    return np.stack(arrays)


def _describe(array: "np.ndarray") -> str:
    return f"{array.dtype} of shape {list(array.shape)}"


def _add_batch_dimension(images: Image, shape: tuple[int, ...]) -> "np.ndarray":
    array = _to_array(images)
    if array.ndim == len(shape):
        return array[None]
    if array.ndim != len(shape) + 1:
        raise _shape_error(array.shape, shape)
    return array


def _shape_error(given: tuple[int, ...], shape: tuple[int, ...]) -> InputError:
    sides = ", ".join(map(str, shape))
    return InputError(
        f"the array has shape {list(given)}; the model takes ({sides}) for one image and "
        f"(n, {sides}) for several."
    )


def _to_array(image: Image) -> "np.ndarray":
    """Return the image as uint8 or float32. Refuse other integers: their range is ambiguous."""
    import numpy as np  # noqa: PLC0415 (only needed for arrays)

    if not isinstance(image, np.ndarray):
        tensor = image.detach().cpu()
        image = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    if image.dtype != np.uint8 and image.dtype.kind != "f":
        raise InputError(
            f"the array holds {image.dtype}; allowed: uint8 (0 to 255) or floats. Convert it, for "
            "example with .astype(numpy.uint8)."
        )
    return np.asarray(image, dtype="u1" if image.dtype == np.uint8 else "<f4")


def _split_batch(batch: "np.ndarray") -> Iterator[InputTensor]:
    image_bytes = max(1, batch.nbytes // max(1, len(batch)))
    n_images = max(1, min(_MAX_IMAGES, _MAX_BYTES // image_bytes))
    datatype = "UINT8" if batch.dtype.itemsize == 1 else "FP32"
    for start in range(0, len(batch), n_images):
        part = batch[start : start + n_images]
        yield InputTensor(datatype, part.shape, part.tobytes())
