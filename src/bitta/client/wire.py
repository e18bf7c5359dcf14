"""Open Inference Protocol, binary form: JSON, then tensors, little endian and without padding."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from bitta.client.errors import UnavailableError
from bitta.client.records import Served

JSON_LENGTH = "Inference-Header-Content-Length"
_OUTPUTS = {
    "prediction_id": "BYTES",
    "label": "BYTES",
    "class_index": "INT64",
    "confidence": "FP32",
    "model_version": "BYTES",
}
_NUMBERS = {"INT64": "q", "FP32": "f"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input; `data` is as it goes over the wire."""

    datatype: str
    shape: tuple[int, ...]
    data: bytes


def write_request(name: str, images: Tensor) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an inference request that asks for what `Served` holds."""
    fields = {
        "inputs": [
            {
                "name": name,
                "datatype": images.datatype,
                "shape": list(images.shape),
                "parameters": {"binary_data_size": len(images.data)},
            }
        ],
        "outputs": [{"name": each, "parameters": {"binary_data": True}} for each in _OUTPUTS],
    }
    head = json.dumps(fields).encode()
    headers = {JSON_LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}
    return head + images.data, headers


def read_response(body: bytes, json_length: str | None) -> list[Served]:
    """One `Served` per image."""
    try:
        columns = _read_columns(body, json_length)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise UnavailableError(
            f"the server's answer could not be read ({type(error).__name__}: {error})."
        ) from None
    missing = [name for name in _OUTPUTS if name not in columns]
    if missing:
        raise UnavailableError(
            f"the server sent no {', '.join(missing)}; is it a bitta server? Its outputs: "
            f"{', '.join(columns) or 'none'}."
        )
    rows = zip(*(columns[name] for name in _OUTPUTS), strict=True)
    return [Served(*row) for row in rows]


def pack_bytes(elements: Sequence[bytes]) -> bytes:
    """BYTES: each element is its length and itself."""
    return b"".join(part for each in elements for part in (struct.pack("<I", len(each)), each))


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
    n, datatype = prod(output["shape"]), output["datatype"]
    if datatype in _NUMBERS:
        return list(struct.unpack(f"<{n}{_NUMBERS[datatype]}", raw))
    if datatype != "BYTES":
        raise ValueError(f"output {output['name']} is {datatype}")
    values, place = [], 0
    for _ in range(n):
        (length,) = struct.unpack_from("<I", raw, place)
        place += 4 + length
        if place > len(raw):
            raise ValueError(f"output {output['name']} is cut")
        values.append(raw[place - length : place].decode())
    return values
