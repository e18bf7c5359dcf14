"""Images of a request: tensors, or pictures as JPEG, PNG or WebP.

Pictures become RGB as those in folders do: transparency is dropped, of 16 bits the 8 high ones are
kept, an animation is its first frame. They are turned upright as their EXIF says. What Pillow would
allocate is checked before it can: size by the header, passes of a JPEG by its markers.
"""

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from bitta.server.v2.datatypes import BYTES
from bitta.server.v2.errors import TOO_LARGE, V2Error
from bitta.server.v2.limits import DEFAULT_LIMITS, Limits
from bitta.server.v2.orientation import upright
from bitta.server.v2.request import RequestInput
from bitta.server.v2.scans import count_scans
from bitta.streams import Geometry
from bitta.streams.images import as_rgb

_FLOATS = ("FP16", "BF16", "FP32", "FP64")
_CHANNELS = (1, 3)
_BROKEN = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, ArithmeticError, TypeError,
    AttributeError, AssertionError, RuntimeError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip


def as_images(
    given: RequestInput,
    expected: tuple[int, ...],
    *,
    geometry: Geometry | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> np.ndarray:
    """float32 (n, *expected), for a model whose images have the shape `expected`.

    Floats are taken as they are, and have to be finite. UINT8 and encoded pictures, BYTES of shape
    [n] or [n, 1], are divided by 255; they need (channels, height, width) with 1 or 3 channels.
    """
    n_rows = given.shape[0] if given.shape else 0
    if n_rows > limits.rows:
        raise V2Error(
            f"input {given.name!r} has {n_rows} images; up to {limits.rows} are allowed at a time.",
            status=TOO_LARGE,
        )
    pictured = len(expected) == 3 and expected[0] in _CHANNELS
    if given.datatype == BYTES and pictured and given.shape in ((n_rows,), (n_rows, 1)):
        return _scaled(_decoded(given, expected, geometry, limits))
    whole = given.shape == (n_rows, *expected)
    if whole and given.datatype == "UINT8" and pictured:
        return _scaled(given.array)
    if whole and given.datatype in _FLOATS:
        return _finite(given)
    ways = [f"{'FP32 or UINT8' if pictured else 'FP32'} of shape {['n', *expected]}"]
    if pictured:
        ways.append("BYTES of shape ['n'], each a whole JPEG, PNG or WebP")
    raise V2Error(
        f"input {given.name!r} is {given.datatype} of shape {list(given.shape)}; "
        f"{', or '.join(ways)} is needed.".replace("'n'", "n")
    )


def decode(content: bytes, limits: Limits = DEFAULT_LIMITS) -> np.ndarray:
    """uint8 (height, width, 3), upright."""
    return _pixels(_opened(content, limits))


def fit(
    pixels: np.ndarray,
    size: tuple[int, int],
    *,
    geometry: Geometry | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> np.ndarray:
    """The picture at (height, width): by the model's geometry, as streams bring theirs to size.

    Without one the picture is scaled, bilinear, until it just covers the size, and cut from its
    middle; for a square that is `Geometry(resize=side, crop=side)`.
    """
    height, width = size
    picture = Image.fromarray(pixels)
    shorter = min(picture.size)
    if geometry is None:
        covers = max(-(-width * shorter // picture.width), -(-height * shorter // picture.height))
        geometry = Geometry(resize=covers)
    _check_scaling(picture.size, geometry, limits)
    picture = geometry(picture)
    if picture.width < width or picture.height < height:
        raise V2Error(
            f"a picture is {picture.width} x {picture.height}; the model reads {width} x {height}."
        )
    left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
    return np.asarray(picture.crop((left, top, left + width, top + height)))


def _check_scaling(sides: tuple[int, int], geometry: Geometry, limits: Limits) -> None:
    """A picture a pixel wide is as long as a street once it is scaled by its shorter side."""
    shorter = min(sides)
    to = geometry.resize or shorter
    if (sides[0] * to // shorter) * (sides[1] * to // shorter) > limits.picture_pixels:
        raise V2Error(
            f"a picture of {sides[0]} x {sides[1]} is too narrow: with its shorter side at {to} it "
            f"has more than the {limits.picture_pixels} pixels that are allowed.",
            status=TOO_LARGE,
        )
    if to < geometry.crop:
        raise V2Error(
            f"a picture is {sides[0]} x {sides[1]}; {geometry.crop} x {geometry.crop} is cut from "
            "its middle, so that its shorter side has to be that long at least."
        )


def _opened(content: bytes, limits: Limits) -> ImageFile:
    """The picture, its header read and nothing decoded."""
    if len(content) > limits.picture_bytes:
        raise V2Error(
            f"a picture has {len(content)} bytes; up to {limits.picture_bytes} are allowed.",
            status=TOO_LARGE,
        )
    kind = _kind(content)
    if kind is WebPImageFile:  # Its reader makes room for two frames when it is opened.
        _check_pixels(_webp_size(content), limits)
    most = limits.picture_scans
    if kind is JpegImageFile and count_scans(content, enough=most) > most:
        raise V2Error(f"a JPEG has more than {most} scans, which are allowed; write it with less.")
    try:
        # Not by Image.open, which tries other formats and warns above a size of its own.
        picture = kind(io.BytesIO(content))
    except _BROKEN as error:
        raise _no_picture(error) from None
    _check_pixels(picture.size, limits)
    return picture


def _kind(content: bytes) -> Callable[[io.BytesIO], ImageFile]:
    if content.startswith(b"\xff\xd8\xff"):
        return JpegImageFile
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return PngImageFile
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return WebPImageFile
    raise V2Error(
        f"a picture of {len(content)} bytes begins with {content[:8]!r}; JPEG, PNG and WebP are "
        "allowed."
    )


def _webp_size(content: bytes) -> tuple[int, int]:
    """Width and height by the first chunk: of a canvas, lossless or lossy."""
    chunk, head = content[12:16], content[20:30].ljust(10, b"\0")
    if chunk == b"VP8X":
        return 1 + int.from_bytes(head[4:7], "little"), 1 + int.from_bytes(head[7:10], "little")
    if chunk == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", head[6:10])
    return width & 0x3FFF, height & 0x3FFF


def _check_pixels(sides: tuple[int, int], limits: Limits) -> None:
    if sides[0] * sides[1] > limits.picture_pixels:
        raise V2Error(
            f"a picture is {sides[0]} x {sides[1]}; up to {limits.picture_pixels} pixels are "
            "allowed.",
            status=TOO_LARGE,
        )


def _pixels(picture: ImageFile) -> np.ndarray:
    try:
        colours = as_rgb(picture)
    except _BROKEN as error:
        raise _no_picture(error) from None
    return np.asarray(upright(colours, picture.info.get("exif")))


def _decoded(
    given: RequestInput, expected: tuple[int, ...], geometry: Geometry | None, limits: Limits
) -> np.ndarray:
    """uint8 (n, channels, height, width)."""
    channels, height, width = expected
    images = np.empty((len(given.array), *expected), np.uint8)
    left = limits.request_pixels
    for row, content in enumerate(given.array.flat):
        try:
            picture = _opened(content, limits)
            left -= picture.width * picture.height
            if left < 0:
                raise V2Error(
                    f"with it the request has more than {limits.request_pixels} pixels, which are "
                    "allowed; send fewer at a time.",
                    status=TOO_LARGE,
                )
            pixels = fit(_pixels(picture), (height, width), geometry=geometry, limits=limits)
        except V2Error as error:
            where = f"image {row} of input {given.name!r}"
            raise V2Error(f"{where}: {error}", status=error.status) from None
        if channels == 1:
            pixels = np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
        images[row] = pixels.transpose(2, 0, 1)
    return images


def _scaled(pixels: np.ndarray) -> np.ndarray:
    return pixels.astype(np.float32) / np.float32(255)


def _finite(given: RequestInput) -> np.ndarray:
    with np.errstate(over="ignore"):
        images = given.array.astype(np.float32)
    if not np.isfinite(images).all():
        raise V2Error(
            f"input {given.name!r} holds values that are not finite, or too large for FP32; a "
            "model that learns from what it serves cannot take them."
        )
    return images


def _no_picture(error: Exception) -> V2Error:
    return V2Error(f"a picture is cut or broken ({type(error).__name__}); send a whole one.")
