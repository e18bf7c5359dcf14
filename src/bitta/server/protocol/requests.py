"""Inference requests: parsing and checking of the JSON and of the binary tensors after it."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain
from math import prod
from typing import Any, cast

import numpy as np

from bitta.server.protocol.tensors import (
    BYTES,
    DATATYPES,
    TOO_LARGE,
    ProtocolError,
    decompress,
    read_binary_tensor,
    read_json_tensor,
    shortened,
)
from bitta.server.settings import RequestLimits

Fields = Mapping[str, Any]
DEFAULT_LIMITS = RequestLimits()

_REQUEST_FIELDS = ("id", "inputs", "outputs", "parameters", "model_name", "model_version")
_INPUT_FIELDS = ("name", "datatype", "shape", "data", "parameters")
_OUTPUT_FIELDS = ("name", "parameters")
_TYPE_NAMES = {str: "a string", bool: "true or false", int: "a whole number", list: "a list"}
_MAX_HEADER_DIGITS = 12
_MAX_DIMENSIONS = 8
_MAX_SIDE = 2**31 - 1
_MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class RequestInput:
    """One input tensor of a request."""

    name: str
    datatype: str
    array: np.ndarray
    """Read-only. BYTES are an object array of `bytes`. BF16 is an array of float32."""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.array.shape


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the caller requests, and its form."""

    name: str
    is_binary: bool
    n_classification: int = 0
    """Number of highest values to send as "value:index:label"; 0 sends the tensor."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A parsed inference request."""

    id: str
    inputs: Mapping[str, RequestInput]
    outputs: tuple[RequestedOutput, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def requested_outputs(self, names: Iterable[str]) -> tuple[RequestedOutput, ...]:
        """Return the outputs to send, given the names of the model's outputs.

        A request that names none gets all of them, in binary unless `binary_data_output` is false.
        """
        known = tuple(names)
        if not self.outputs:
            is_binary = self.parameters.get("binary_data_output", True)
            return tuple(RequestedOutput(name, is_binary) for name in known)
        for output in self.outputs:
            if output.name not in known:
                raise ProtocolError(
                    f"the request asks for an {unknown_name_message('output', output.name, known)}"
                )
        return self.outputs


def parse_request(
    body: bytes,
    header_length: int | None,
    content_encoding: str | None = None,
    limits: RequestLimits = DEFAULT_LIMITS,
) -> InferRequest:
    """Parse a request body.

    `header_length` is the length of the JSON after decompression; None if all of it is JSON.
    """
    content = memoryview(decompress(body, content_encoding, max_bytes=limits.body_bytes))
    length = len(content) if header_length is None else header_length
    if not 0 <= length <= len(content):
        raise ProtocolError(
            f"Inference-Header-Content-Length is {length}; the body has {len(content)} bytes "
            "after decompression."
        )
    if length > limits.json_bytes:
        raise ProtocolError(
            f"the JSON of the request has {length} bytes; up to {limits.json_bytes} are allowed. "
            "Send tensors in binary.",
            status=TOO_LARGE,
        )
    fields = _parse_json(content[:length])
    check_field_names(fields, _REQUEST_FIELDS, where="the request")
    parameters = get_parameters(fields, where="the request")
    get_field(parameters, "binary_data_output", bool, where="the request", default=True)
    return InferRequest(
        _get_id(fields),
        _parse_inputs(fields, content[length:]),
        _parse_outputs(fields, is_binary=parameters.get("binary_data_output", False)),
        parameters,
    )


def parse_header_length(text: str | None) -> int | None:
    """Return the header Inference-Header-Content-Length as a number; None if it is absent."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_HEADER_DIGITS):
        raise ProtocolError(
            f"Inference-Header-Content-Length is {shortened(text)}; a whole number of bytes is "
            "needed."
        )
    return int(text)


def unknown_name_message(kind: str, given: str, allowed: Collection[str]) -> str:
    """Return the end of an error message: the unknown name and the nearest or all allowed ones."""
    near = get_close_matches(given[:_MAX_NAME], allowed, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(allowed)}."
    return f"unknown {kind} {shortened(given)}; {hint}"


def check_field_names(fields: Fields, allowed: Collection[str], *, where: str) -> None:
    """Refuse unknown fields. Most of them are typing errors."""
    for name in fields:
        if name not in allowed:
            raise ProtocolError(f"{where} has an {unknown_name_message('field', name, allowed)}")


def get_field(fields: Fields, name: str, kind: type, *, where: str, default: Any = None) -> Any:
    """Return the value of a field of exactly this type. Without a default it is required."""
    value = fields.get(name, default)
    if value is None and name not in fields:
        raise ProtocolError(f"{where} has no {name}; {_TYPE_NAMES[kind]} is needed.")
    if type(value) is not kind:
        raise ProtocolError(
            f"{name} of {where} is {shortened(value)}; {_TYPE_NAMES[kind]} is needed."
        )
    return value


def get_parameters(fields: Fields, *, where: str) -> Fields:
    """Return the parameters: strings, numbers and booleans under any name."""
    given = fields.get("parameters", {})
    if not isinstance(given, dict):
        raise ProtocolError(
            f"parameters of {where} are {shortened(given)}; a JSON object is needed."
        )
    for name, value in given.items():
        if not isinstance(value, str | int | float):
            raise ProtocolError(
                f"parameter {shortened(name)} of {where} is {shortened(value)}; a string, a "
                "number, true or false is needed."
            )
        if name.startswith("shared_memory"):
            raise ProtocolError(
                f"{where} asks for shared memory, which is not supported; send the data."
            )
    return given


def get_shape(fields: Fields, *, where: str) -> tuple[int, ...]:
    """Return the shape of a tensor. It is compared with the data before anything is allocated."""
    shape = cast(list[object], get_field(fields, "shape", list, where=where))
    if len(shape) > _MAX_DIMENSIONS:
        raise ProtocolError(
            f"shape of {where} has {len(shape)} dimensions; up to {_MAX_DIMENSIONS} are allowed."
        )
    sides = tuple(side for side in shape if type(side) is int and 1 <= side <= _MAX_SIDE)
    if len(sides) < len(shape):
        raise ProtocolError(
            f"shape of {where} is {shortened(shape)}; whole numbers from 1 to {_MAX_SIDE} are "
            "allowed."
        )
    return sides


def _parse_json(header: bytes | memoryview) -> Fields:
    try:
        value = json.loads(str(header, "utf-8"), object_pairs_hook=_unique_fields)
    except RecursionError:
        raise ProtocolError(
            "the JSON of the request is nested too deeply; send the data of each input as a flat "
            "list."
        ) from None
    except ValueError as error:
        raise ProtocolError(
            f"the JSON of the request cannot be read ({error}); binary data after it needs the "
            "header Inference-Header-Content-Length, the length of the JSON in bytes."
        ) from None
    if not isinstance(value, dict):
        raise ProtocolError(f"the request is {shortened(value)}; a JSON object is needed.")
    return value


def _unique_fields(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice in one object")
    return fields


def _get_objects(fields: Fields, name: str, *, is_required: bool = False) -> Iterator[Fields]:
    """Yield the JSON objects of a list of tensors."""
    default: list[Any] | None = None if is_required else []
    items = get_field(fields, name, list, where="the request", default=default)
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise ProtocolError(f"{name}[{index}] is {shortened(item)}; a JSON object is needed.")
        yield item


def _get_name(fields: Fields, *, where: str) -> str:
    """Return the name of a tensor."""
    name = cast(str, get_field(fields, "name", str, where=where))
    if not 1 <= len(name) <= _MAX_NAME:
        raise ProtocolError(
            f"name of {where} is {shortened(name)}; 1 to {_MAX_NAME} characters are allowed."
        )
    return name


def _get_id(fields: Fields) -> str:
    """Return the caller's id of the request, or "". The response repeats it."""
    given = cast(str, get_field(fields, "id", str, where="the request", default=""))
    if len(given) > _MAX_NAME or not given.isprintable():
        raise ProtocolError(
            f"id of the request is {shortened(given)}; up to {_MAX_NAME} printable characters are "
            "allowed."
        )
    return given


def _parse_inputs(fields: Fields, binary: memoryview) -> dict[str, RequestInput]:
    inputs: dict[str, RequestInput] = {}
    offset = 0
    for index, item in enumerate(_get_objects(fields, "inputs", is_required=True)):
        name = _get_name(item, where=f"inputs[{index}]")
        where = f"input {shortened(name)}"
        if name in inputs:
            raise ProtocolError(f"{where} is given twice; give it once.")
        check_field_names(item, _INPUT_FIELDS, where=where)
        size = _binary_size(item, n_left=len(binary) - offset, where=where)
        raw = None if size is None else binary[offset : offset + size]
        inputs[name] = _parse_input(item, raw, name=name, where=where)
        offset += size or 0
    if not inputs:
        raise ProtocolError("inputs of the request is empty; at least one input is needed.")
    if offset < len(binary):
        raise ProtocolError(
            f"{len(binary) - offset} bytes at the end belong to no input; the sum of "
            f"binary_data_size over all inputs is {offset}."
        )
    return inputs


def _parse_input(item: Fields, raw: memoryview | None, *, name: str, where: str) -> RequestInput:
    datatype = get_field(item, "datatype", str, where=where)
    if datatype not in DATATYPES:
        raise ProtocolError(
            f"{where} has an {unknown_name_message('datatype', datatype, DATATYPES)}"
        )
    shape = get_shape(item, where=where)
    parameters = get_parameters(item, where=where)
    if raw is not None:
        array = read_binary_tensor(raw, datatype=datatype, shape=shape, where=where)
    else:
        items = _flatten(get_field(item, "data", list, where=where), shape, where)
        # Other servers of this protocol use the same parameter.
        is_base64 = datatype == BYTES and parameters.get("content_type") == "base64"
        array = read_json_tensor(
            items, datatype=datatype, shape=shape, where=where, is_base64=is_base64
        )
    array.flags.writeable = False
    return RequestInput(name, datatype, array, parameters)


def _binary_size(item: Fields, *, n_left: int, where: str) -> int | None:
    """Return the size of the input's binary data; None if its data is in JSON."""
    parameters = get_parameters(item, where=where)
    if "binary_data_size" not in parameters:
        if "data" not in item:
            raise ProtocolError(
                f"{where} has neither data nor the parameter binary_data_size; give one of them."
            )
        return None
    if "data" in item:
        raise ProtocolError(
            f"{where} has both data and the parameter binary_data_size; give one of them."
        )
    size: int = get_field(parameters, "binary_data_size", int, where=where)
    if not 0 <= size <= n_left:
        raise ProtocolError(
            f"binary_data_size of {where} is {shortened(size)}; {n_left} bytes are left after the "
            "JSON, whose length is in Inference-Header-Content-Length."
        )
    return size


def _flatten(data: list[Any], shape: tuple[int, ...], where: str) -> list[Any]:
    """Return the values row by row, from a flat list or from lists nested as in the shape."""
    if not any(type(item) is list for item in data):
        if len(data) != prod(shape):
            raise ProtocolError(
                f"{where} has {len(data)} values in its data; shape {list(shape)} needs "
                f"{prod(shape)}."
            )
        return data
    level: list[Any] = [data]
    for depth, side in enumerate(shape):
        for item in level:
            if type(item) is not list or len(item) != side:
                raise ProtocolError(
                    f"data of {where} has {shortened(item)} at depth {depth}; shape {list(shape)} "
                    f"needs a list of {side} there, or one flat list."
                )
        level = list(chain.from_iterable(level))
    return level


def _parse_outputs(fields: Fields, *, is_binary: bool) -> tuple[RequestedOutput, ...]:
    outputs: dict[str, RequestedOutput] = {}
    for index, item in enumerate(_get_objects(fields, "outputs")):
        name = _get_name(item, where=f"outputs[{index}]")
        where = f"output {shortened(name)}"
        if name in outputs:
            raise ProtocolError(f"{where} is requested twice; request it once.")
        check_field_names(item, _OUTPUT_FIELDS, where=where)
        parameters = get_parameters(item, where=where)
        in_binary = get_field(parameters, "binary_data", bool, where=where, default=is_binary)
        count = get_field(parameters, "classification", int, where=where, default=0)
        if count < 0:
            raise ProtocolError(
                f"classification of {where} is {shortened(count)}; 0 or more is allowed."
            )
        outputs[name] = RequestedOutput(name, in_binary, count)
    return tuple(outputs.values())
