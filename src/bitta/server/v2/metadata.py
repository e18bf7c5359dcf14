"""What a server and its model say of themselves, in the forms of the protocol's extensions."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bitta.server.v2.datatypes import BYTES
from bitta.server.v2.errors import V2Error, shown
from bitta.server.v2.fields import unknown
from bitta.server.v2.request import InferRequest
from bitta.version import __version__

PLATFORM = "bitta"
INPUT = "image"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "statistics",
)
_ANY = -1


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output; a side of -1 is the number of images."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as callers see it."""

    name: str
    versions: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_rows: int

    def check(self, request: InferRequest) -> None:
        """Refuse, before anything is computed, names that the model does not have."""
        inputs = [tensor.name for tensor in self.inputs]
        for name in request.inputs:
            if name not in inputs:
                raise V2Error(f"the request gives an {unknown('input', name, inputs)}")
        for name in inputs:
            if name not in request.inputs:
                raise V2Error(f"the request has no input {name!r}, which {self.name!r} needs.")
        outputs = {tensor.name: tensor for tensor in self.outputs}
        for wanted in request.wanted(outputs):
            if wanted.classification and len(outputs[wanted.name].shape) != 2:
                raise V2Error(
                    f"classification of output {shown(wanted.name)} is asked for; of "
                    f"{self.name!r} only logits can be classified."
                )


@dataclass(frozen=True, slots=True)
class Took:
    """How often something was done and how long that took in all."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of a version, since the server began."""

    n_images: int = 0
    n_batches: int = 0
    last_ms: int = 0
    """When the last request came, in milliseconds since 1970."""
    success: Took = Took()
    fail: Took = Took()
    queue: Took = Took()
    compute_input: Took = Took()
    compute_infer: Took = Took()
    compute_output: Took = Took()


def classifier(
    name: str,
    versions: Iterable[str],
    *,
    input_shape: tuple[int, ...],
    n_classes: int,
    max_rows: int,
) -> ModelSpec:
    """A model that answers with the outputs every model has here."""
    outputs = (
        TensorSpec("logits", "FP32", (_ANY, n_classes)),
        TensorSpec("label", BYTES, (_ANY,)),
        TensorSpec("class_index", "INT64", (_ANY,)),
        TensorSpec("confidence", "FP32", (_ANY,)),
        TensorSpec("prediction_id", BYTES, (_ANY,)),
        TensorSpec("model_version", BYTES, (_ANY,)),
    )
    image = TensorSpec(INPUT, "FP32", (_ANY, *input_shape))
    return ModelSpec(name, tuple(versions), (image,), outputs, max_rows)


def server_metadata() -> dict[str, Any]:
    """Body of GET /v2."""
    return {"name": PLATFORM, "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(model: ModelSpec) -> dict[str, Any]:
    """Body of GET /v2/models/{name}."""
    return {
        "name": model.name,
        "versions": list(model.versions),
        "platform": PLATFORM,
        "inputs": [_described(tensor) for tensor in model.inputs],
        "outputs": [_described(tensor) for tensor in model.outputs],
    }


def model_config(model: ModelSpec) -> dict[str, Any]:
    """Body of GET /v2/models/{name}/config; sides are those of one image."""
    pictures = "or UINT8 of that shape, or BYTES of shape [n], each a JPEG, PNG or WebP"
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": model.max_rows,
        "input": [_configured(tensor) for tensor in model.inputs],
        "output": [_configured(tensor) for tensor in model.outputs],
        "parameters": {
            tensor.name: {"string_value": pictures}
            for tensor in model.inputs
            if len(tensor.shape) == 4
        },
    }


def model_statistics(model: ModelSpec, version: str, statistics: Statistics) -> dict[str, Any]:
    """Body of GET /v2/models/{name}/stats, and of /v2/models/stats where it is the only model."""
    parts = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    took: dict[str, Took] = {part: getattr(statistics, part) for part in parts}
    took |= {"cache_hit": Took(), "cache_miss": Took()}
    of_version = {
        "name": model.name,
        "version": version,
        "last_inference": statistics.last_ms,
        "inference_count": statistics.n_images,
        "execution_count": statistics.n_batches,
        "inference_stats": {
            part: {"count": each.count, "ns": each.ns} for part, each in took.items()
        },
        "batch_stats": [],
        "memory_usage": [],
    }
    return {"model_stats": [of_version]}


def repository_index(
    model: ModelSpec, *, ready: bool = True, reason: str = ""
) -> list[dict[str, str]]:
    """Body of POST /v2/repository/index."""
    state = "READY" if ready else "UNAVAILABLE"
    return [
        {"name": model.name, "version": version, "state": state, "reason": reason}
        for version in model.versions
    ]


def _described(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _configured(tensor: TensorSpec) -> dict[str, Any]:
    kind = "STRING" if tensor.datatype == BYTES else tensor.datatype
    described: dict[str, Any] = {"name": tensor.name, "data_type": f"TYPE_{kind}"}
    if len(tensor.shape) > 1:
        return described | {"dims": list(tensor.shape[1:])}
    # The form has no word for one value per image but a side of 1 that is taken away again.
    return described | {"dims": [1], "reshape": {"shape": []}}
