"""Fields of the JSON of a request, each of the kind the protocol gives it."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from bitta.server.v2.errors import V2Error, shown

Fields = Mapping[str, Any]

_TYPE_NAMES = {str: "a string", bool: "true or false", int: "a whole number", list: "a list"}
_MAX_DIMENSIONS = 8
_MAX_SIDE = 2**31 - 1
_MAX_NAME = 256


def read_fields(header: bytes | memoryview) -> Fields:
    """The JSON object of a request."""
    try:
        value = json.loads(str(header, "utf-8"), object_pairs_hook=_each_once)
    except RecursionError:
        raise V2Error("the JSON of the request is nested too deeply.") from None
    except ValueError as error:
        raise V2Error(
            f"the JSON of the request cannot be read ({error}); binary data after it needs the "
            "header Inference-Header-Content-Length, the length of the JSON in bytes."
        ) from None
    if not isinstance(value, dict):
        raise V2Error(f"the request is {shown(value)}; a JSON object is needed.")
    return value


def objects(fields: Fields, name: str, *, needed: bool = False) -> Iterator[Fields]:
    """The objects of a list of tensors."""
    items = get(fields, name, list, where="the request", default=None if needed else [])
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            raise V2Error(f"{name}[{place}] is {shown(item)}; a JSON object is needed.")
        yield item


def only(fields: Fields, allowed: Collection[str], *, where: str) -> None:
    """Refuse fields that have no meaning, a slip of the pen more often than not."""
    for name in fields:
        if name not in allowed:
            raise V2Error(f"{where} has an {unknown('field', name, allowed)}")


def unknown(kind: str, given: str, allowed: Collection[str]) -> str:
    """The end of a sentence about a name, with the nearest that is allowed, or all."""
    near = get_close_matches(given[:_MAX_NAME], allowed, n=1)
    guess = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(allowed)}."
    return f"unknown {kind} {shown(given)}; {guess}"


def get(fields: Fields, name: str, kind: type, *, where: str, default: Any = None) -> Any:
    """The value of a field, of exactly this type; without a default it has to be there."""
    value = fields.get(name, default)
    if value is None and name not in fields:
        raise V2Error(f"{where} has no {name}; {_TYPE_NAMES[kind]} is needed.")
    if type(value) is not kind:
        raise V2Error(f"{name} of {where} is {shown(value)}; {_TYPE_NAMES[kind]} is needed.")
    return value


def get_name(fields: Fields, *, where: str) -> str:
    """The name of a tensor."""
    name = cast(str, get(fields, "name", str, where=where))
    if not 1 <= len(name) <= _MAX_NAME:
        raise V2Error(f"name of {where} is {shown(name)}; 1 to {_MAX_NAME} characters are allowed.")
    return name


def get_id(fields: Fields) -> str:
    """The caller's name for the request, which goes into logs and headers; "" without one."""
    given = cast(str, get(fields, "id", str, where="the request", default=""))
    if len(given) > _MAX_NAME or not given.isprintable():
        raise V2Error(
            f"id of the request is {shown(given)}; up to {_MAX_NAME} printable characters are "
            "allowed."
        )
    return given


def get_parameters(fields: Fields, *, where: str) -> Fields:
    """Parameters, which may be strings, numbers, true and false under any name."""
    given = fields.get("parameters", {})
    if not isinstance(given, dict):
        raise V2Error(f"parameters of {where} are {shown(given)}; a JSON object is needed.")
    for name, value in given.items():
        if not isinstance(value, str | int | float):
            raise V2Error(
                f"parameter {shown(name)} of {where} is {shown(value)}; a string, a number, true "
                "or false is needed."
            )
        if name.startswith("shared_memory"):
            raise V2Error(f"{where} asks for shared memory, which is not served; send the data.")
    return given


def get_shape(fields: Fields, *, where: str) -> tuple[int, ...]:
    """Sides of a tensor; what they come to is compared with the data before anything is made."""
    shape = cast(list[object], get(fields, "shape", list, where=where))
    if len(shape) > _MAX_DIMENSIONS:
        raise V2Error(
            f"shape of {where} has {len(shape)} sides; up to {_MAX_DIMENSIONS} are allowed."
        )
    sides = tuple(side for side in shape if type(side) is int and 1 <= side <= _MAX_SIDE)
    if len(sides) < len(shape):
        raise V2Error(
            f"shape of {where} is {shown(shape)}; whole numbers from 1 to {_MAX_SIDE} are allowed."
        )
    return sides


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice in one object")
    return fields
