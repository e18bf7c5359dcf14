"""Tensors of the protocol in JSON and in binary, compressed bodies, and `ProtocolError`.

Binary tensors are little endian without padding. BF16 is accepted in binary only and is widened to
float32, which is exact. Values that are not finite are allowed here; `images.py` refuses them.
"""

import json
import re
import reprlib
import struct
import zlib
from base64 import b64decode
from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from bitta.errors import BittaError

BAD_REQUEST = 400
TOO_LARGE = 413
BYTES = "BYTES"
BF16 = "BF16"
NUMERIC_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
DATATYPES = (*NUMERIC_DTYPES, BF16, BYTES)
Encoding = Literal["gzip", "deflate"]

_DATATYPE_OF_DTYPE = {dtype: name for name, dtype in NUMERIC_DTYPES.items()}
_ELEMENT_LENGTH = struct.Struct("<I")
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
_JSON_NAMES = {"b": "true and false", "u": "whole numbers", "i": "whole numbers", "f": "numbers"}
_WINDOW_BITS: dict[str, int] = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_QUALITY = re.compile(r"\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*")
_COMPRESSION_LEVEL = 1  # Floats hardly shrink further at higher levels, which cost more time.

_short_repr = reprlib.Repr()
_short_repr.maxstring = _short_repr.maxother = _short_repr.maxlong = 60
_short_repr.maxlevel = 2


class ProtocolError(BittaError):
    """Raised when a request is invalid. `status` is the HTTP status of the response."""

    def __init__(self, message: str, *, status: int = BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status

    @property
    def body(self) -> bytes:
        """Body of the response."""
        return error_body(str(self))


def error_body(message: str) -> bytes:
    """Return the JSON body of an error response on a path under /v2."""
    return json.dumps({"error": message}).encode()


def shortened(value: object) -> str:
    """Return the representation of a value for an error message, cut to a bounded length."""
    return _short_repr.repr(value)


def read_binary_tensor(
    raw: memoryview, *, datatype: str, shape: tuple[int, ...], where: str
) -> np.ndarray:
    """Return the tensor in these bytes as a read-only view. `where` names it in errors."""
    if datatype == BYTES:
        return _object_array(_split_elements(raw, prod(shape), where), shape)
    dtype = np.dtype("<u2") if datatype == BF16 else NUMERIC_DTYPES[datatype]
    needed = prod(shape) * dtype.itemsize
    if needed != len(raw):
        raise ProtocolError(
            f"{where} has {len(raw)} bytes of binary data; {datatype} of shape {list(shape)} "
            f"needs {needed}."
        )
    if datatype == "BOOL" and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
        raise ProtocolError(f"{where} has a byte other than 0 and 1; BOOL allows only these two.")
    array = np.frombuffer(raw, dtype).reshape(shape)
    if datatype == BF16:  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def read_json_tensor(
    items: Sequence[Any],
    *,
    datatype: str,
    shape: tuple[int, ...],
    where: str,
    is_base64: bool = False,
) -> np.ndarray:
    """Return the tensor of these flattened JSON values.

    `is_base64` says that the strings of a BYTES tensor are encoded in base64.
    """
    if datatype == BF16:
        raise ProtocolError(f"{where} is BF16 in JSON; send its values in binary, or as FP32.")
    if datatype == BYTES:
        elements = [_read_string(item, where, is_base64=is_base64) for item in items]
        return _object_array(elements, shape)
    dtype = NUMERIC_DTYPES[datatype]
    wrong_types = set(map(type, items)) - _JSON_TYPES[dtype.kind]
    if wrong_types:
        first = next(item for item in items if type(item) in wrong_types)
        raise ProtocolError(
            f"{where} has {shortened(first)} in its data; {datatype} allows "
            f"{_JSON_NAMES[dtype.kind]}."
        )
    try:
        array = np.array(items, dtype=np.float64 if dtype.kind == "f" else dtype)
    except OverflowError:
        raise _overflow_error(where, datatype) from None
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    if dtype.kind == "f" and (np.isinf(converted) & np.isfinite(array)).any():
        raise _overflow_error(where, datatype)
    return converted.reshape(shape)


def write_binary_tensor(array: np.ndarray) -> bytes:
    """Return the values row by row, little endian. Each BYTES element follows its length."""
    datatype = datatype_of(array)
    if datatype != BYTES:
        return array.astype(NUMERIC_DTYPES[datatype], order="C", copy=False).tobytes()
    elements = [encode_text(element) for element in array.flat]
    return b"".join(
        part for element in elements for part in (_ELEMENT_LENGTH.pack(len(element)), element)
    )


def write_json_tensor(array: np.ndarray, *, where: str) -> list[Any]:
    """Return the values row by row in one flat list."""
    if array.dtype == object:
        return [encode_text(element).decode() for element in array.flat]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ProtocolError(
            f"{where} has values that are not finite, which JSON cannot hold; request it with "
            "binary_data true."
        )
    values: list[Any] = array.ravel().tolist()
    return values


def datatype_of(array: np.ndarray) -> str:
    """Return the protocol's name for the array's type. Object arrays hold bytes or text."""
    if array.dtype == object:
        return BYTES
    return _DATATYPE_OF_DTYPE[array.dtype.newbyteorder("<")]


def encode_text(element: bytes | str) -> bytes:
    """Return text encoded in UTF-8, and bytes unchanged."""
    return element.encode() if isinstance(element, str) else element


def decompress(body: bytes, content_encoding: str | None, *, max_bytes: int) -> bytes:
    """Return the body without its Content-Encoding. Refuse results above `max_bytes`."""
    name = (content_encoding or "identity").strip().lower()
    if name in ("", "identity"):
        if len(body) > max_bytes:
            raise _body_too_large(max_bytes)
        return body
    if name not in _WINDOW_BITS:
        raise ProtocolError(
            f"Content-Encoding is {shortened(content_encoding)}; gzip, deflate or none is allowed."
        )
    stream = zlib.decompressobj(wbits=_WINDOW_BITS[name])
    try:
        content = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise ProtocolError(f"the body cannot be read as {name} ({error}).") from None
    if len(content) > max_bytes:
        raise _body_too_large(max_bytes)
    if not stream.eof or stream.unused_data:
        problem = "has bytes after the compressed data" if stream.eof else "is incomplete"
        raise ProtocolError(f"the body {problem}; exactly one whole {name} stream is needed.")
    return content


def compress(body: bytes, encoding: Encoding) -> bytes:
    """Return the compressed body."""
    return zlib.compress(body, _COMPRESSION_LEVEL, wbits=_WINDOW_BITS[encoding])


def choose_encoding(accept_encoding: str | None) -> Encoding | None:
    """Return the supported encoding that Accept-Encoding prefers; None for no compression."""
    qualities = dict(map(_parse_quality, (accept_encoding or "").lower().split(",")))
    default = qualities.get("*", 0.0)
    gzip, deflate = qualities.get("gzip", default), qualities.get("deflate", default)
    if max(gzip, deflate) <= 0:
        return None
    return "gzip" if gzip >= deflate else "deflate"


def _parse_quality(item: str) -> tuple[str, float]:
    """Return an encoding's name and quality value. A malformed quality counts as 0."""
    name, _, weight = item.partition(";")
    quality = _QUALITY.fullmatch(weight or "q=1")
    return name.strip(), float(quality[1]) if quality else 0.0


def _body_too_large(max_bytes: int) -> ProtocolError:
    return ProtocolError(
        f"the body is larger than the allowed {max_bytes} bytes; send fewer images at a time.",
        status=TOO_LARGE,
    )


def _split_elements(raw: memoryview, n: int, where: str) -> list[bytes]:
    """Split binary BYTES data into n elements.

    Memory grows with the data and not with n, because a request can choose n freely.
    """
    elements: list[bytes] = []
    offset = 0
    while offset < len(raw) and len(elements) < n:
        start = offset + _ELEMENT_LENGTH.size
        stop = start + _ELEMENT_LENGTH.unpack_from(raw, offset)[0] if start <= len(raw) else start
        if stop > len(raw):
            raise ProtocolError(
                f"the binary data of {where} ends inside element {len(elements)}; send all of it."
            )
        elements.append(bytes(raw[start:stop]))
        offset = stop
    if len(elements) < n or offset < len(raw):
        found = f"{len(elements)} elements" if len(elements) < n else f"more than {n} elements"
        raise ProtocolError(f"{where} has {found} in its binary data; its shape needs {n}.")
    return elements


def _object_array(elements: list[bytes], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def _read_string(item: object, where: str, *, is_base64: bool) -> bytes:
    if not isinstance(item, str):
        raise ProtocolError(
            f"{where} has {shortened(item)} in its data; BYTES in JSON are strings."
        )
    try:
        return b64decode(item, validate=True) if is_base64 else item.encode()
    except ValueError:
        needed = "base64" if is_base64 else "text that UTF-8 can encode"
        raise ProtocolError(
            f"{where} has {shortened(item)} in its data, which is not {needed}."
        ) from None


def _overflow_error(where: str, datatype: str) -> ProtocolError:
    return ProtocolError(f"{where} has a number in its data that does not fit into {datatype}.")
