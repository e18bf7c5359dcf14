"""Images of a request: tensors, or encoded JPEG, PNG or WebP files.

Encoded images become RGB as in `bitta.streams`: transparency is dropped, 16-bit values keep their 8
high bits, and an animation is reduced to its first frame. They are rotated as their EXIF data says.
Every limit is checked before Pillow allocates memory: the size in the header, and the number of
scans of a JPEG.
"""

import io
import re
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import ExifTags, Image
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from bitta.server.protocol.requests import DEFAULT_LIMITS, RequestInput
from bitta.server.protocol.tensors import BYTES, TOO_LARGE, ProtocolError
from bitta.server.settings import RequestLimits
from bitta.streams import Geometry
from bitta.streams.images import convert_to_rgb

MAX_JPEG_SCANS = 50
"""Limit of the scans of a JPEG. A progressive one has about ten."""
_MAX_EXIF_BYTES = 64 * 1024
"""Largest size of a JPEG segment. Older Pillow versions copy gigabytes from larger EXIF blocks."""

_FLOAT_DATATYPES = ("FP16", "BF16", "FP32", "FP64")
_N_CHANNELS = (1, 3)
_DECODING_ERRORS = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, ArithmeticError, TypeError,
    AttributeError, AssertionError, RuntimeError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip
_TRANSPOSES = {  # by the value of the EXIF tag Orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Matches the start marker, the end marker, and all markers that a length follows. Does not match
# fill bytes, escaped bytes, restart markers and TEM.
_JPEG_MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")
_JPEG_START, _JPEG_END, _JPEG_SCAN = 0xD8, 0xD9, 0xDA


def read_images(
    given: RequestInput,
    expected_shape: tuple[int, ...],
    *,
    geometry: Geometry | None = None,
    limits: RequestLimits = DEFAULT_LIMITS,
) -> np.ndarray:
    """Return float32 images of shape (n, *expected_shape).

    Floats are used unchanged and must be finite. UINT8 tensors and encoded images, BYTES of shape
    [n] or [n, 1], are divided by 255. Both need an expected shape (channels, height, width) with 1
    or 3 channels.
    """
    n_rows = given.shape[0] if given.shape else 0
    if n_rows > limits.images:
        raise ProtocolError(
            f"input {given.name!r} has {n_rows} images; up to {limits.images} are allowed at a "
            "time.",
            status=TOO_LARGE,
        )
    takes_images = len(expected_shape) == 3 and expected_shape[0] in _N_CHANNELS
    if given.datatype == BYTES and takes_images and given.shape in ((n_rows,), (n_rows, 1)):
        return _scale(_decode_all(given, expected_shape, geometry, limits))
    has_expected_shape = given.shape == (n_rows, *expected_shape)
    if has_expected_shape and given.datatype == "UINT8" and takes_images:
        return _scale(given.array)
    if has_expected_shape and given.datatype in _FLOAT_DATATYPES:
        return _finite_floats(given)
    allowed = [f"{'FP32 or UINT8' if takes_images else 'FP32'} of shape {['n', *expected_shape]}"]
    if takes_images:
        allowed.append("BYTES of shape ['n'], each a whole JPEG, PNG or WebP")
    raise ProtocolError(
        f"input {given.name!r} is {given.datatype} of shape {list(given.shape)}; "
        f"{', or '.join(allowed)} is needed.".replace("'n'", "n")
    )


def decode_image(content: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> np.ndarray:
    """Return an encoded image as uint8 (height, width, 3), rotated as its EXIF data says."""
    return _decode_pixels(_open_image(content, limits))


def fit_image(
    pixels: np.ndarray,
    size: tuple[int, int],
    *,
    geometry: Geometry | None = None,
    limits: RequestLimits = DEFAULT_LIMITS,
) -> np.ndarray:
    """Return the image resized and cropped to (height, width), by the model's geometry if given.

    Without a geometry the image is scaled (bilinear) until it just covers the size, and then
    cropped around its centre. For a square this is `Geometry(resize=side, crop=side)`.
    """
    height, width = size
    image = Image.fromarray(pixels)
    shorter = min(image.size)
    if geometry is None:
        covering = max(-(-width * shorter // image.width), -(-height * shorter // image.height))
        geometry = Geometry(resize=covering)
    _check_scaling(image.size, geometry, limits)
    image = geometry(image)
    if image.width < width or image.height < height:
        raise ProtocolError(
            f"an image is {image.width} x {image.height}; the model needs {width} x {height}."
        )
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return np.asarray(image.crop((left, top, left + width, top + height)))


def count_jpeg_scans(content: bytes, *, stop_after: int) -> int:
    """Count the scans of a JPEG. Stop as soon as there are more than `stop_after`.

    A progressive JPEG of a few kilobytes can repeat an empty scan thousands of times, and libjpeg
    processes the whole image for each of them.
    """
    n_scans = offset = 0
    while n_scans <= stop_after and (found := _JPEG_MARKER.search(content, offset)):
        (marker,) = found[1]
        if marker == _JPEG_END:
            break
        n_scans += marker == _JPEG_SCAN
        offset = found.end()
        if marker != _JPEG_START:  # A length of 2 bytes follows. It includes these 2 bytes.
            offset += max(2, int.from_bytes(content[offset : offset + 2], "big"))
    return n_scans


def _check_scaling(size: tuple[int, int], geometry: Geometry, limits: RequestLimits) -> None:
    """Refuse images that become too large, or stay too small, when they are resized."""
    shorter = min(size)
    resized = geometry.resize or shorter
    if (size[0] * resized // shorter) * (size[1] * resized // shorter) > limits.pixels:
        raise ProtocolError(
            f"an image of {size[0]} x {size[1]} is too narrow: resized to a shorter side of "
            f"{resized}, it has more than the allowed {limits.pixels} pixels.",
            status=TOO_LARGE,
        )
    if resized < geometry.crop:
        raise ProtocolError(
            f"an image is {size[0]} x {size[1]}; its shorter side must be at least "
            f"{geometry.crop}, since {geometry.crop} x {geometry.crop} is cropped from its centre."
        )


def _open_image(content: bytes, limits: RequestLimits) -> ImageFile:
    """Read the header of an image. Nothing is decoded yet."""
    if len(content) > limits.image_bytes:
        raise ProtocolError(
            f"an image has {len(content)} bytes; up to {limits.image_bytes} are allowed.",
            status=TOO_LARGE,
        )
    reader = _image_reader(content)
    if reader is WebPImageFile:  # Opening it allocates two frames.
        _check_n_pixels(_webp_size(content), limits)
    if (
        reader is JpegImageFile
        and count_jpeg_scans(content, stop_after=MAX_JPEG_SCANS) > MAX_JPEG_SCANS
    ):
        raise ProtocolError(
            f"a JPEG has more than the allowed {MAX_JPEG_SCANS} scans; encode it with fewer."
        )
    try:
        # Image.open would try other formats, and warn about sizes above a limit of its own.
        image = reader(io.BytesIO(content))
    except _DECODING_ERRORS as error:
        raise _broken_image_error(error) from None
    _check_n_pixels(image.size, limits)
    return image


def _image_reader(content: bytes) -> Callable[[io.BytesIO], ImageFile]:
    if content.startswith(b"\xff\xd8\xff"):
        return JpegImageFile
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return PngImageFile
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return WebPImageFile
    raise ProtocolError(
        f"an image of {len(content)} bytes starts with {content[:8]!r}; JPEG, PNG and WebP are "
        "allowed."
    )


def _webp_size(content: bytes) -> tuple[int, int]:
    """Read width and height from the first chunk: extended (VP8X), lossless (VP8L) or lossy."""
    chunk, head = content[12:16], content[20:30].ljust(10, b"\0")
    if chunk == b"VP8X":
        return 1 + int.from_bytes(head[4:7], "little"), 1 + int.from_bytes(head[7:10], "little")
    if chunk == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", head[6:10])
    return width & 0x3FFF, height & 0x3FFF


def _check_n_pixels(size: tuple[int, int], limits: RequestLimits) -> None:
    if size[0] * size[1] > limits.pixels:
        raise ProtocolError(
            f"an image is {size[0]} x {size[1]}; up to {limits.pixels} pixels are allowed.",
            status=TOO_LARGE,
        )


def _decode_pixels(image: ImageFile) -> np.ndarray:
    try:
        rgb = convert_to_rgb(image)
    except _DECODING_ERRORS as error:
        raise _broken_image_error(error) from None
    transpose = _TRANSPOSES.get(_read_orientation(image.info.get("exif")))
    return np.asarray(rgb if transpose is None else rgb.transpose(transpose))


def _read_orientation(exif: object) -> int:
    """Return the value of the tag Orientation; 0 if it is missing or cannot be read.

    `ImageOps.exif_transpose` would decode and rewrite all other tags, which may be broken.
    """
    if not isinstance(exif, bytes) or len(exif) > _MAX_EXIF_BYTES:
        return 0
    tags = Image.Exif()
    try:
        tags.load(exif)
        return int(tags.get(ExifTags.Base.Orientation, 0))
    except _DECODING_ERRORS:
        return 0


def _decode_all(
    given: RequestInput,
    expected_shape: tuple[int, ...],
    geometry: Geometry | None,
    limits: RequestLimits,
) -> np.ndarray:
    """Return encoded images as uint8 (n, channels, height, width)."""
    n_channels, height, width = expected_shape
    images = np.empty((len(given.array), *expected_shape), np.uint8)
    n_pixels_left = limits.request_pixels
    for row, content in enumerate(given.array.flat):
        try:
            image = _open_image(content, limits)
            n_pixels_left -= image.width * image.height
            if n_pixels_left < 0:
                raise ProtocolError(
                    f"with this image the request has more than the allowed "
                    f"{limits.request_pixels} pixels; send fewer images at a time.",
                    status=TOO_LARGE,
                )
            pixels = _decode_pixels(image)
            pixels = fit_image(pixels, (height, width), geometry=geometry, limits=limits)
        except ProtocolError as error:
            where = f"image {row} of input {given.name!r}"
            raise ProtocolError(f"{where}: {error}", status=error.status) from None
        if n_channels == 1:
            pixels = np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
        images[row] = pixels.transpose(2, 0, 1)
    return images


def _scale(pixels: np.ndarray) -> np.ndarray:
    return pixels.astype(np.float32) / np.float32(255)


def _finite_floats(given: RequestInput) -> np.ndarray:
    with np.errstate(over="ignore"):
        images = given.array.astype(np.float32)
    if not np.isfinite(images).all():
        raise ProtocolError(
            f"input {given.name!r} has values that are not finite, or too large for FP32; the "
            "model learns from its inputs and needs finite ones."
        )
    return images


def _broken_image_error(error: Exception) -> ProtocolError:
    return ProtocolError(
        f"an image is incomplete or damaged ({type(error).__name__}); send a whole one."
    )
