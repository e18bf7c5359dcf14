"""Tensors as the protocol writes them: in JSON, or little endian without padding.

BF16 comes in binary alone, as the client sends it, and is widened to float32, which is exact.
Values that are not finite are tensors like others here; whoever reads images refuses them.
"""

import struct
from base64 import b64decode
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from bitta.server.v2.errors import V2Error, shown

BYTES = "BYTES"
BF16 = "BF16"
NUMERIC: dict[str, np.dtype[Any]] = {
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
DATATYPES = (*NUMERIC, BF16, BYTES)

_NAMES = {kind: name for name, kind in NUMERIC.items()}
_LENGTH = struct.Struct("<I")
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
_JSON_NAMES = {"b": "true and false", "u": "whole numbers", "i": "whole numbers", "f": "numbers"}


def from_binary(
    raw: memoryview, *, datatype: str, shape: tuple[int, ...], where: str
) -> np.ndarray:
    """The tensor in these bytes, as a view that must not be written to; `where` is for errors."""
    if datatype == BYTES:
        return _objects(_elements(raw, prod(shape), where), shape)
    kind = np.dtype("<u2") if datatype == BF16 else NUMERIC[datatype]
    needed = prod(shape) * kind.itemsize
    if needed != len(raw):
        raise V2Error(
            f"{where} has {len(raw)} bytes of binary data; {datatype} of shape {list(shape)} "
            f"needs {needed}."
        )
    if datatype == "BOOL" and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
        raise V2Error(f"{where} holds a byte that is neither 0 nor 1; BOOL allows no other.")
    array = np.frombuffer(raw, kind).reshape(shape)
    if datatype == BF16:  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def from_json(
    items: Sequence[Any], *, datatype: str, shape: tuple[int, ...], where: str, packed: bool = False
) -> np.ndarray:
    """The tensor of these values, flattened already; `packed` says that strings are base64."""
    if datatype == BF16:
        raise V2Error(f"{where} is BF16 in JSON; send its values in binary, or as FP32.")
    if datatype == BYTES:
        return _objects([_text(item, where, packed=packed) for item in items], shape)
    kind = NUMERIC[datatype]
    strange = set(map(type, items)) - _JSON_TYPES[kind.kind]
    if strange:
        first = next(item for item in items if type(item) in strange)
        raise V2Error(
            f"{where} holds {shown(first)} in its data; {datatype} allows {_JSON_NAMES[kind.kind]}."
        )
    try:
        array = np.array(items, dtype=np.float64 if kind.kind == "f" else kind)
    except OverflowError:
        raise _does_not_fit(where, datatype) from None
    with np.errstate(over="ignore"):
        fitted = array.astype(kind)
    if kind.kind == "f" and (np.isinf(fitted) & np.isfinite(array)).any():
        raise _does_not_fit(where, datatype)
    return fitted.reshape(shape)


def to_binary(array: np.ndarray) -> bytes:
    """Little endian, row by row; an element of BYTES is its length and itself."""
    datatype = datatype_of(array)
    if datatype != BYTES:
        return array.astype(NUMERIC[datatype], order="C", copy=False).tobytes()
    elements = [as_bytes(element) for element in array.flat]
    return b"".join(part for each in elements for part in (_LENGTH.pack(len(each)), each))


def to_json(array: np.ndarray, *, where: str) -> list[Any]:
    """Values row by row, in one flat list."""
    if array.dtype == object:
        return [as_bytes(element).decode() for element in array.flat]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise V2Error(
            f"{where} holds values that are not finite, which JSON cannot carry; ask for it with "
            "binary_data true."
        )
    values: list[Any] = array.ravel().tolist()
    return values


def datatype_of(array: np.ndarray) -> str:
    """The protocol's name; arrays of Python objects hold bytes or text."""
    if array.dtype == object:
        return BYTES
    return _NAMES[array.dtype.newbyteorder("<")]


def as_bytes(element: bytes | str) -> bytes:
    """Text in UTF-8."""
    return element.encode() if isinstance(element, str) else element


def _elements(raw: memoryview, n: int, where: str) -> list[bytes]:
    """Cut BYTES apart; n may be absurd, so nothing of its size is made before it is known."""
    found: list[bytes] = []
    place = 0
    while place < len(raw) and len(found) < n:
        start = place + _LENGTH.size
        stop = start + _LENGTH.unpack_from(raw, place)[0] if start <= len(raw) else start
        if stop > len(raw):
            raise V2Error(f"{where} is cut in element {len(found)} of its binary data.")
        found.append(bytes(raw[start:stop]))
        place = stop
    if len(found) < n or place < len(raw):
        given = f"{len(found)} elements" if len(found) < n else f"more than {n} elements"
        raise V2Error(f"{where} has {given} in its binary data; its shape needs {n}.")
    return found


def _objects(elements: list[bytes], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def _text(item: object, where: str, *, packed: bool) -> bytes:
    if not isinstance(item, str):
        raise V2Error(f"{where} holds {shown(item)} in its data; BYTES in JSON are strings.")
    try:
        return b64decode(item, validate=True) if packed else item.encode()
    except ValueError:
        what = "base64" if packed else "text that UTF-8 can hold"
        raise V2Error(f"{where} holds {shown(item)} in its data, which is not {what}.") from None


def _does_not_fit(where: str, datatype: str) -> V2Error:
    return V2Error(f"{where} holds a number in its data that does not fit into {datatype}.")
