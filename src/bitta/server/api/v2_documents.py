"""What the OpenAPI document says about the routes under /v2."""

from typing import Any

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_PARAMETERS: Schema = {"type": "object", "additionalProperties": True}


def _object(needed: Schema, **more: Schema) -> Schema:
    return {"type": "object", "required": list(needed), "properties": {**needed, **more}}


def _list(of: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": of, **more}


_SHAPE = _list({"type": "integer", "minimum": -1})
_TENSOR = _object({"name": _TEXT, "datatype": _TEXT, "shape": _SHAPE})
_CONFIGURED = _object({"name": _TEXT, "data_type": _TEXT, "dims": _list({"type": "integer"})})
_TOOK = _object({"count": _COUNT, "ns": _COUNT})
_STATS = _object(
    {
        "model_stats": _list(
            _object(
                {
                    "name": _TEXT,
                    "version": _TEXT,
                    "last_inference": _COUNT,
                    "inference_count": _COUNT,
                    "execution_count": _COUNT,
                    "inference_stats": {"type": "object", "additionalProperties": _TOOK},
                }
            )
        )
    }
)
_ANSWER = _object(
    {
        "model_name": _TEXT,
        "model_version": _TEXT,
        "outputs": _list(
            _object(
                {"name": _TEXT, "datatype": _TEXT, "shape": _SHAPE},
                data=_list({}),
                parameters=_PARAMETERS,
            )
        ),
    },
    id=_TEXT,
)
_REQUEST = _object(
    {
        "inputs": _list(
            _object(
                {
                    "name": {"type": "string", "const": "image"},
                    "datatype": {"enum": ["FP32", "FP16", "BF16", "FP64", "UINT8", "BYTES"]},
                    "shape": _list({"type": "integer", "minimum": 1}),
                },
                data=_list({}),
                parameters=_PARAMETERS,
            ),
            minItems=1,
        )
    },
    id=_TEXT,
    parameters=_PARAMETERS,
    outputs=_list(_object({"name": _TEXT}, parameters=_PARAMETERS)),
)
_BODIES: dict[str, Schema] = {
    "live": _object({"live": {"const": True}}),
    "ready": _object({"ready": {"const": True}}),
    "model_ready": _object({"name": _TEXT, "ready": {"const": True}}),
    "server": _object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}),
    "index": _list(_object({"name": _TEXT, "version": _TEXT, "state": _TEXT, "reason": _TEXT})),
    "model": _object(
        {
            "name": _TEXT,
            "versions": _list(_TEXT),
            "platform": _TEXT,
            "inputs": _list(_TENSOR),
            "outputs": _list(_TENSOR),
        }
    ),
    "config": _object(
        {
            "name": _TEXT,
            "platform": _TEXT,
            "max_batch_size": _COUNT,
            "input": _list(_CONFIGURED),
            "output": _list(_CONFIGURED),
        }
    ),
    "stats": _STATS,
    "all_stats": _STATS,
    "infer": _ANSWER,
}
_EXAMPLE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 3, 1, 1], "data": [0, 0.5, 1]}],
    "outputs": [{"name": "label"}, {"name": "prediction_id"}],
}


def responses_of(name: str) -> dict[int | str, dict[str, Any]]:
    """Of success and of what can be wrong with the path; the rest is common to all."""
    content: Schema = {"application/json": {"schema": _BODIES[name]}}
    described: dict[int | str, dict[str, Any]] = {200: {"description": "So it is."}}
    if name == "infer":
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        described[200] = {
            "description": "The outputs: JSON alone, or JSON of the length that the header "
            "Inference-Header-Content-Length tells, and binary tensors after it.",
        }
    described[200]["content"] = content
    return described


def extra_of(name: str, path: str) -> dict[str, Any]:
    """Parameters of the path, and the body that is read raw."""
    extra: dict[str, Any] = {}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    if names:
        extra["parameters"] = [
            {"name": each, "in": "path", "required": True, "schema": _TEXT} for each in names
        ]
    if name == "infer":
        extra.setdefault("parameters", []).append(
            {
                "name": "Inference-Header-Content-Length",
                "in": "header",
                "required": False,
                "description": "Length of the JSON, after decompression, where tensors follow it.",
                "schema": {"type": "string", "pattern": "^[0-9]{1,12}$"},
            }
        )
        extra["requestBody"] = {
            "required": True,
            "content": {
                "application/json": {"schema": _REQUEST, "example": _EXAMPLE},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        }
    return extra
