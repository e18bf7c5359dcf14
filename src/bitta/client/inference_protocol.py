"""Request and response bodies of the Open Inference Protocol with binary tensors.

A body is JSON, followed by the tensors in little-endian order without padding.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from bitta.client.errors import UnavailableError
from bitta.records import ServedPrediction

JSON_LENGTH_HEADER = "Inference-Header-Content-Length"
"""Header with the number of bytes of the JSON, which the tensors follow."""
_OUTPUTS = ("prediction_id", "label", "class_index", "confidence", "model_version")
"""Names of the outputs, in the order of the fields of `ServedPrediction`."""
_STRUCT_CODES = {"INT64": "q", "FP32": "f"}
"""Codes of the module `struct` for the datatypes of the outputs."""


@dataclass(frozen=True, slots=True)
class InputTensor:
    """Input of a request. `data` holds the encoded values."""

    datatype: str
    shape: tuple[int, ...]
    data: bytes


def write_request(name: str, images: InputTensor) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request. The input of the model is called `name`."""
    fields = {
        "inputs": [
            {
                "name": name,
                "datatype": images.datatype,
                "shape": list(images.shape),
                "parameters": {"binary_data_size": len(images.data)},
            }
        ],
        "outputs": [{"name": output, "parameters": {"binary_data": True}} for output in _OUTPUTS],
    }
    head = json.dumps(fields).encode()
    headers = {JSON_LENGTH_HEADER: str(len(head)), "Content-Type": "application/octet-stream"}
    return head + images.data, headers


def read_response(body: bytes, json_length: str | None) -> list[ServedPrediction]:
    """Return one `ServedPrediction` per image."""
    try:
        columns = _read_columns(body, json_length)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise UnavailableError(
            f"the response could not be read ({type(error).__name__}: {error}); is this a bitta "
            "server?"
        ) from None
    missing = [name for name in _OUTPUTS if name not in columns]
    if missing:
        raise UnavailableError(
            f"the response holds no {', '.join(missing)}; is this a bitta server? It sent: "
            f"{', '.join(columns) or 'nothing'}."
        )
    rows = zip(*(columns[name] for name in _OUTPUTS), strict=True)
    return [ServedPrediction(*row) for row in rows]


def pack_bytes(elements: Sequence[bytes]) -> bytes:
    """Encode a BYTES tensor: each element is preceded by its length."""
    return b"".join(
        part for element in elements for part in (struct.pack("<I", len(element)), element)
    )


def _read_columns(body: bytes, json_length: str | None) -> dict[str, list[Any]]:
    end = len(body) if json_length is None else int(json_length)
    columns: dict[str, list[Any]] = {}
    for output in json.loads(body[:end])["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            columns[output["name"]] = list(output["data"])
            continue
        columns[output["name"]] = _read_values(output, body[end : end + size])
        end += size
    return columns


def _read_values(output: Mapping[str, Any], raw: bytes) -> list[Any]:
    n = prod(output["shape"])
    datatype = output["datatype"]
    if datatype in _STRUCT_CODES:
        return list(struct.unpack(f"<{n}{_STRUCT_CODES[datatype]}", raw))
    if datatype != "BYTES":
        raise ValueError(f"output {output['name']} is {datatype}")
    values: list[str] = []
    position = 0
    for _ in range(n):
        (length,) = struct.unpack_from("<I", raw, position)
        position += 4 + length
        if position > len(raw):
            raise ValueError(f"output {output['name']} is truncated")
        values.append(raw[position - length : position].decode())
    return values
