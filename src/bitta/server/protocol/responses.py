"""Responses: encoded outputs of an inference, and metadata of the server and its model."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitta.server.protocol.requests import InferRequest, RequestedOutput, unknown_name_message
from bitta.server.protocol.tensors import (
    BYTES,
    ProtocolError,
    choose_encoding,
    compress,
    datatype_of,
    shortened,
    write_binary_tensor,
    write_json_tensor,
)
from bitta.version import __version__

JSON_LENGTH_HEADER = "Inference-Header-Content-Length"
PLATFORM = "bitta"
INPUT_NAME = "image"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "statistics",
)
_N_IMAGES = -1


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, datatype and shape of an input or output. -1 stands for the number of images."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Names, inputs and outputs of the served model."""

    name: str
    versions: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_rows: int

    def check_request(self, request: InferRequest) -> None:
        """Refuse unknown or missing inputs and outputs before anything is computed."""
        inputs = [tensor.name for tensor in self.inputs]
        for name in request.inputs:
            if name not in inputs:
                raise ProtocolError(
                    f"the request gives an {unknown_name_message('input', name, inputs)}"
                )
        for name in inputs:
            if name not in request.inputs:
                raise ProtocolError(
                    f"the request has no input {name!r}, which {self.name!r} needs."
                )
        outputs = {tensor.name: tensor for tensor in self.outputs}
        for output in request.requested_outputs(outputs):
            if output.n_classification and len(outputs[output.name].shape) != 2:
                raise ProtocolError(
                    f"classification of output {shortened(output.name)} is requested; only the "
                    f"logits of {self.name!r} support it."
                )


@dataclass(frozen=True, slots=True)
class StatisticDuration:
    """Number of calls and their total time, as Triton reports them."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """Statistics of the served model since the start of the server."""

    n_images: int = 0
    n_batches: int = 0
    last_ms: int = 0
    """Time of the last request, in milliseconds since 1970."""
    success: StatisticDuration = StatisticDuration()
    fail: StatisticDuration = StatisticDuration()
    queue: StatisticDuration = StatisticDuration()
    compute_input: StatisticDuration = StatisticDuration()
    compute_infer: StatisticDuration = StatisticDuration()
    compute_output: StatisticDuration = StatisticDuration()


def classifier_spec(
    name: str,
    versions: Iterable[str],
    *,
    input_shape: tuple[int, ...],
    n_classes: int,
    max_rows: int,
) -> ModelSpec:
    """Describe a classifier. Every served model has these outputs."""
    outputs = (
        TensorSpec("logits", "FP32", (_N_IMAGES, n_classes)),
        TensorSpec("label", BYTES, (_N_IMAGES,)),
        TensorSpec("class_index", "INT64", (_N_IMAGES,)),
        TensorSpec("confidence", "FP32", (_N_IMAGES,)),
        TensorSpec("prediction_id", BYTES, (_N_IMAGES,)),
        TensorSpec("model_version", BYTES, (_N_IMAGES,)),
    )
    image = TensorSpec(INPUT_NAME, "FP32", (_N_IMAGES, *input_shape))
    return ModelSpec(name, tuple(versions), (image,), outputs, max_rows)


def server_metadata() -> dict[str, Any]:
    """Return the body of GET /v2."""
    return {"name": PLATFORM, "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(model: ModelSpec) -> dict[str, Any]:
    """Return the body of GET /v2/models/{name}."""
    return {
        "name": model.name,
        "versions": list(model.versions),
        "platform": PLATFORM,
        "inputs": [_tensor_metadata(tensor) for tensor in model.inputs],
        "outputs": [_tensor_metadata(tensor) for tensor in model.outputs],
    }


def model_config(model: ModelSpec) -> dict[str, Any]:
    """Return the body of GET /v2/models/{name}/config. Shapes are those of one image."""
    alternatives = "or UINT8 of that shape, or BYTES of shape [n], each a JPEG, PNG or WebP"
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": model.max_rows,
        "input": [_tensor_config(tensor) for tensor in model.inputs],
        "output": [_tensor_config(tensor) for tensor in model.outputs],
        "parameters": {
            tensor.name: {"string_value": alternatives}
            for tensor in model.inputs
            if len(tensor.shape) == 4
        },
    }


def model_statistics(model: ModelSpec, version: str, statistics: ModelStatistics) -> dict[str, Any]:
    """Return the body of GET /v2/models/{name}/stats and of GET /v2/models/stats."""
    parts = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    durations: dict[str, StatisticDuration] = {part: getattr(statistics, part) for part in parts}
    durations |= {"cache_hit": StatisticDuration(), "cache_miss": StatisticDuration()}
    entry = {
        "name": model.name,
        "version": version,
        "last_inference": statistics.last_ms,
        "inference_count": statistics.n_images,
        "execution_count": statistics.n_batches,
        "inference_stats": {
            part: {"count": spent.count, "ns": spent.ns} for part, spent in durations.items()
        },
        "batch_stats": [],
        "memory_usage": [],
    }
    return {"model_stats": [entry]}


def repository_index(
    model: ModelSpec, *, is_ready: bool = True, reason: str = ""
) -> list[dict[str, str]]:
    """Return the body of POST /v2/repository/index."""
    state = "READY" if is_ready else "UNAVAILABLE"
    return [
        {"name": model.name, "version": version, "state": state, "reason": reason}
        for version in model.versions
    ]


def _tensor_metadata(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _tensor_config(tensor: TensorSpec) -> dict[str, Any]:
    kind = "STRING" if tensor.datatype == BYTES else tensor.datatype
    config: dict[str, Any] = {"name": tensor.name, "data_type": f"TYPE_{kind}"}
    if len(tensor.shape) > 1:
        return config | {"dims": list(tensor.shape[1:])}
    # The format expresses one value per image as a dimension of 1 that is removed by a reshape.
    return config | {"dims": [1], "reshape": {"shape": []}}


def encode_response(
    outputs: Mapping[str, np.ndarray],
    request: InferRequest,
    *,
    model_name: str,
    model_version: str,
    classes: Sequence[str] = (),
    accept_encoding: str | None = None,
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of the response. `classes` are the labels of classifications."""
    entries: list[dict[str, Any]] = []
    binary_parts: list[bytes] = []
    for output in request.requested_outputs(outputs):
        array = outputs[output.name]
        if output.n_classification:
            array = _format_classification(array, output, classes)
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": datatype_of(array),
            "shape": list(array.shape),
        }
        if output.is_binary:
            binary_parts.append(write_binary_tensor(array))
            entry["parameters"] = {"binary_data_size": len(binary_parts[-1])}
        else:
            entry["data"] = write_json_tensor(array, where=f"output {output.name!r}")
        entries.append(entry)
    fields = {"model_name": model_name, "model_version": model_version, "outputs": entries}
    if request.id:
        fields["id"] = request.id
    return _join_parts(json.dumps(fields).encode(), binary_parts, accept_encoding)


def prediction_outputs(
    *,
    logits: np.ndarray,
    class_index: Sequence[int],
    classes: Sequence[str],
    confidence: Sequence[float],
    prediction_ids: Sequence[str],
    model_version: str,
) -> dict[str, np.ndarray]:
    """Return all outputs by name, one row per image."""
    return {
        "logits": np.asarray(logits, np.float32),
        "label": _object_array([classes[index] for index in class_index]),
        "class_index": np.asarray(class_index, np.int64),
        "confidence": np.asarray(confidence, np.float32),
        "prediction_id": _object_array(prediction_ids),
        "model_version": _object_array([model_version] * len(prediction_ids)),
    }


def _format_classification(
    array: np.ndarray, output: RequestedOutput, classes: Sequence[str]
) -> np.ndarray:
    """Return (n, count) strings "value:index:label", highest first; ties in order of index."""
    if array.ndim != 2 or array.dtype == object:
        raise ProtocolError(
            f"classification of output {output.name!r} is requested, which is "
            f"{datatype_of(array)} of shape {list(array.shape)}; numbers of shape [n, classes] are "
            "needed."
        )
    order = np.argsort(-array.astype(np.float64), axis=1, kind="stable")
    labels = classes if len(classes) == array.shape[1] else ()
    strings = [
        ":".join((_format_number(array[row, index]), str(index), *labels[index : index + 1]))
        for row, highest in enumerate(order[:, : output.n_classification])
        for index in highest
    ]
    return _object_array(strings).reshape(len(array), -1)


def _format_number(value: np.generic) -> str:
    """Format floats with six decimals, as Triton does."""
    return f"{value:f}" if isinstance(value, np.floating) else str(value)


def _object_array(strings: Sequence[str]) -> np.ndarray:
    array = np.empty(len(strings), dtype=object)
    array[:] = strings
    return array


def _join_parts(
    json_header: bytes, binary_parts: Sequence[bytes], accept_encoding: str | None
) -> tuple[bytes, dict[str, str]]:
    headers = {"Content-Type": "application/octet-stream" if binary_parts else "application/json"}
    if binary_parts:
        headers[JSON_LENGTH_HEADER] = str(len(json_header))
    body = b"".join((json_header, *binary_parts))
    encoding = choose_encoding(accept_encoding)
    if encoding is not None:
        headers["Content-Encoding"] = encoding
        body = compress(body, encoding)
    return body, headers
