"""An inference request: its JSON, and the tensors that follow it in binary."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from bitta.server.v2.compression import decompressed
from bitta.server.v2.datatypes import BYTES, DATATYPES, from_binary, from_json
from bitta.server.v2.errors import TOO_LARGE, V2Error, shown
from bitta.server.v2.fields import (
    Fields,
    get,
    get_id,
    get_name,
    get_parameters,
    get_shape,
    objects,
    only,
    read_fields,
    unknown,
)
from bitta.server.v2.limits import DEFAULT_LIMITS, Limits

_REQUEST_FIELDS = ("id", "inputs", "outputs", "parameters", "model_name", "model_version")
_INPUT_FIELDS = ("name", "datatype", "shape", "data", "parameters")
_OUTPUT_FIELDS = ("name", "parameters")
_MAX_DIGITS = 12


@dataclass(frozen=True, slots=True)
class RequestInput:
    """A tensor as it was sent."""

    name: str
    datatype: str
    array: np.ndarray
    """Read-only. BYTES are an array of Python's bytes, BF16 one of float32."""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sides."""
        return self.array.shape


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that is to be sent, and in which form."""

    name: str
    binary: bool
    classification: int = 0
    """How many of the highest values to send as "value:index:label"; 0 sends the tensor."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What a caller sends to be predicted."""

    id: str
    inputs: Mapping[str, RequestInput]
    outputs: tuple[RequestedOutput, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def wanted(self, names: Iterable[str]) -> tuple[RequestedOutput, ...]:
        """What to send of the outputs there are: those asked for, or all, in binary.

        `binary_data_output: false` sends all of them in JSON.
        """
        known = tuple(names)
        if not self.outputs:
            binary = self.parameters.get("binary_data_output", True)
            return tuple(RequestedOutput(name, binary) for name in known)
        for output in self.outputs:
            if output.name not in known:
                raise V2Error(f"the request asks for an {unknown('output', output.name, known)}")
        return self.outputs


def parse(
    body: bytes,
    header_length: int | None,
    content_encoding: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> InferRequest:
    """Read a request; `header_length` is that of its JSON after decompression, None for all."""
    content = memoryview(decompressed(body, content_encoding, cap=limits.body_bytes))
    length = len(content) if header_length is None else header_length
    if not 0 <= length <= len(content):
        raise V2Error(
            f"Inference-Header-Content-Length is {length}; the body has {len(content)} bytes "
            "once it is decompressed."
        )
    if length > limits.json_bytes:
        raise V2Error(
            f"the JSON of the request has {length} bytes; up to {limits.json_bytes} are allowed. "
            "Send tensors in binary.",
            status=TOO_LARGE,
        )
    fields = read_fields(content[:length])
    only(fields, _REQUEST_FIELDS, where="the request")
    parameters = get_parameters(fields, where="the request")
    get(parameters, "binary_data_output", bool, where="the request", default=True)
    return InferRequest(
        get_id(fields),
        _inputs(fields, content[length:]),
        _outputs(fields, binary=parameters.get("binary_data_output", False)),
        parameters,
    )


def read_header_length(text: str | None) -> int | None:
    """The header Inference-Header-Content-Length as a number; None where it was not sent."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise V2Error(
            f"Inference-Header-Content-Length is {shown(text)}; a whole number of bytes is needed."
        )
    return int(text)


def _inputs(fields: Fields, binary: memoryview) -> dict[str, RequestInput]:
    inputs: dict[str, RequestInput] = {}
    place = 0
    for number, item in enumerate(objects(fields, "inputs", needed=True)):
        name = get_name(item, where=f"inputs[{number}]")
        where = f"input {shown(name)}"
        if name in inputs:
            raise V2Error(f"{where} is given twice; each may be given once.")
        only(item, _INPUT_FIELDS, where=where)
        size = _binary_size(item, left=len(binary) - place, where=where)
        raw = None if size is None else binary[place : place + size]
        inputs[name] = _input(item, raw, name=name, where=where)
        place += size or 0
    if not inputs:
        raise V2Error("inputs of the request is empty; at least one input is needed.")
    if place < len(binary):
        raise V2Error(
            f"{len(binary) - place} bytes follow that belong to no input; binary_data_size of all "
            f"inputs comes to {place}."
        )
    return inputs


def _input(item: Fields, raw: memoryview | None, *, name: str, where: str) -> RequestInput:
    datatype = get(item, "datatype", str, where=where)
    if datatype not in DATATYPES:
        raise V2Error(f"{where} has an {unknown('datatype', datatype, DATATYPES)}")
    shape = get_shape(item, where=where)
    parameters = get_parameters(item, where=where)
    if raw is not None:
        array = from_binary(raw, datatype=datatype, shape=shape, where=where)
    else:
        items = _flat(get(item, "data", list, where=where), shape, where)
        # The name that other servers of this protocol use for it.
        packed = datatype == BYTES and parameters.get("content_type") == "base64"
        array = from_json(items, datatype=datatype, shape=shape, where=where, packed=packed)
    array.flags.writeable = False
    return RequestInput(name, datatype, array, parameters)


def _binary_size(item: Fields, *, left: int, where: str) -> int | None:
    """How many bytes of the binary part belong to the input; None if its data is in JSON."""
    parameters = get_parameters(item, where=where)
    if "binary_data_size" not in parameters:
        if "data" not in item:
            raise V2Error(f"{where} has neither data nor the parameter binary_data_size.")
        return None
    if "data" in item:
        raise V2Error(f"{where} has both data and the parameter binary_data_size; give one.")
    size: int = get(parameters, "binary_data_size", int, where=where)
    if not 0 <= size <= left:
        raise V2Error(
            f"binary_data_size of {where} is {shown(size)}; {left} bytes are left after the JSON, "
            "whose length Inference-Header-Content-Length tells."
        )
    return size


def _flat(data: list[Any], shape: tuple[int, ...], where: str) -> list[Any]:
    """Values row by row, from a flat list or from lists nested as the shape says."""
    if not any(type(item) is list for item in data):
        if len(data) != prod(shape):
            raise V2Error(
                f"{where} has {len(data)} values in its data; shape {list(shape)} needs "
                f"{prod(shape)}."
            )
        return data
    level: list[Any] = [data]
    for depth, side in enumerate(shape):
        for item in level:
            if type(item) is not list or len(item) != side:
                raise V2Error(
                    f"data of {where} holds {shown(item)} at depth {depth}; shape {list(shape)} "
                    f"needs a list of {side} there, or one flat list."
                )
        level = list(chain.from_iterable(level))
    return level


def _outputs(fields: Fields, *, binary: bool) -> tuple[RequestedOutput, ...]:
    outputs: dict[str, RequestedOutput] = {}
    for number, item in enumerate(objects(fields, "outputs")):
        name = get_name(item, where=f"outputs[{number}]")
        where = f"output {shown(name)}"
        if name in outputs:
            raise V2Error(f"{where} is asked for twice; each may be asked for once.")
        only(item, _OUTPUT_FIELDS, where=where)
        parameters = get_parameters(item, where=where)
        in_binary = get(parameters, "binary_data", bool, where=where, default=binary)
        count = get(parameters, "classification", int, where=where, default=0)
        if count < 0:
            raise V2Error(f"classification of {where} is {shown(count)}; 0 or more is allowed.")
        outputs[name] = RequestedOutput(name, in_binary, count)
    return tuple(outputs.values())
