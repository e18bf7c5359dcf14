"""An inference response: JSON, and after it the tensors that were asked for in binary."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bitta.server.v2.compression import accepted, compressed
from bitta.server.v2.datatypes import datatype_of, to_binary, to_json
from bitta.server.v2.errors import V2Error
from bitta.server.v2.request import InferRequest, RequestedOutput

JSON_LENGTH = "Inference-Header-Content-Length"


def encode(
    outputs: Mapping[str, np.ndarray],
    request: InferRequest,
    *,
    model_name: str,
    model_version: str,
    classes: Sequence[str] = (),
    accept_encoding: str | None = None,
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of what the request asks for; `classes` are labels of classifications."""
    entries: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for wanted in request.wanted(outputs):
        array = outputs[wanted.name]
        if wanted.classification:
            array = classified(array, wanted, classes)
        entry: dict[str, Any] = {
            "name": wanted.name,
            "datatype": datatype_of(array),
            "shape": list(array.shape),
        }
        if wanted.binary:
            tail.append(to_binary(array))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            entry["data"] = to_json(array, where=f"output {wanted.name!r}")
        entries.append(entry)
    fields = {"model_name": model_name, "model_version": model_version, "outputs": entries}
    if request.id:
        fields["id"] = request.id
    return _packed(json.dumps(fields).encode(), tail, accept_encoding)


def answer_outputs(
    *,
    logits: np.ndarray,
    class_index: Sequence[int],
    classes: Sequence[str],
    confidence: Sequence[float],
    prediction_ids: Sequence[str],
    model_version: str,
) -> dict[str, np.ndarray]:
    """The outputs that a model here has, one row per image, under their names."""
    return {
        "logits": np.asarray(logits, np.float32),
        "label": _texts([classes[index] for index in class_index]),
        "class_index": np.asarray(class_index, np.int64),
        "confidence": np.asarray(confidence, np.float32),
        "prediction_id": _texts(prediction_ids),
        "model_version": _texts([model_version] * len(prediction_ids)),
    }


def classified(array: np.ndarray, wanted: RequestedOutput, classes: Sequence[str]) -> np.ndarray:
    """(n, count) strings "value:index:label", highest first, at ties the lower index first."""
    if array.ndim != 2 or array.dtype == object:
        raise V2Error(
            f"classification of output {wanted.name!r} is asked for, which is "
            f"{datatype_of(array)} of shape {list(array.shape)}; numbers of shape [n, classes] are "
            "needed."
        )
    order = np.argsort(-array.astype(np.float64), axis=1, kind="stable")
    named = len(classes) == array.shape[1]
    strings = [
        ":".join((_number(array[row, index]), str(index), *([classes[index]] if named else [])))
        for row, best in enumerate(order[:, : wanted.classification])
        for index in best
    ]
    return _texts(strings).reshape(len(array), -1)


def _number(value: np.generic) -> str:
    """Six places for floats, as the protocol's first server prints them."""
    return f"{value:f}" if isinstance(value, np.floating) else str(value)


def _texts(strings: Sequence[str]) -> np.ndarray:
    array = np.empty(len(strings), dtype=object)
    array[:] = strings
    return array


def _packed(
    header: bytes, tail: Sequence[bytes], accept_encoding: str | None
) -> tuple[bytes, dict[str, str]]:
    headers = {"Content-Type": "application/octet-stream" if tail else "application/json"}
    if tail:
        headers[JSON_LENGTH] = str(len(header))
    body = b"".join((header, *tail))
    encoding = accepted(accept_encoding)
    if encoding is not None:
        headers["Content-Encoding"] = encoding
        body = compressed(body, encoding)
    return body, headers
