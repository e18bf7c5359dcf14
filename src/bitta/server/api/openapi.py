"""OpenAPI document: every route, with every status of its responses."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from bitta.server.api.authentication import COOKIE
from bitta.server.api.schemas import ErrorBody

Responses = dict[int | str, dict[str, Any]]
Schema = dict[str, Any]

_DESCRIPTION = """Serve a classifier, ask questions about its predictions, learn from the answers.

Inference uses the Open Inference Protocol, version 2, under `/v2`. Questions, verdicts and
operation are under `/v1`. Times are whole microseconds since 1970, UTC. Every response has the
header `X-Request-Id`; a request may set it."""
_TAGS = [
    {"name": "inference", "description": "Open Inference Protocol, version 2."},
    {"name": "feedback", "description": "Questions and verdicts."},
    {"name": "operation", "description": "Snapshots, status, events."},
    {"name": "session", "description": "Sessions of the pages."},
]
_SECURITY_SCHEMES = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key: bitta keys create."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "For the pages: POST /v1/session sets it. Requests that change something "
        "also need the header X-Bitta: 1.",
    },
}
_WITHOUT_KEY = ("/v2/health/live", "/v2/health/ready")
_KEY_ERRORS = {
    "401": "No key was given, or it is unknown or revoked.",
    "403": "The role of the key does not allow this, or a request with a cookie lacks X-Bitta: 1.",
    "429": "Too many requests with this key; try again after Retry-After.",
}
_BODY_ERRORS = {
    "400": "The body cannot be read.",
    "408": "The request took too long to arrive.",
    "413": "The body is too large.",
}
_SERVER_ERRORS = {
    "500": "The server failed; its log has the reason.",
    "503": "The server cannot do this now; try again after Retry-After.",
    "504": "The server did not respond in time; it may still do what was requested.",
}
_PROTOCOL_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
    "example": {"error": "there is no model 'x'; 'digits' is served here."},
}
_REQUEST_ID = {"description": "Id of this request in the log.", "schema": {"type": "string"}}


def error_responses(descriptions: Mapping[int, str]) -> Responses:
    """Return the errors that a route has in addition to the common ones."""
    return {
        status: {"model": ErrorBody, "description": text} for status, text in descriptions.items()
    }


def install_openapi(app: FastAPI) -> None:
    """Make the app generate the document once, with the common errors on every route."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=_DESCRIPTION,
                routes=app.routes,
                tags=_TAGS,
            )
            app.openapi_schema = _complete_document(document)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete_document(document: dict[str, Any]) -> dict[str, Any]:
    document["components"]["securitySchemes"] = _SECURITY_SCHEMES
    for name in ("HTTPValidationError", "ValidationError"):  # replaced by ErrorBody
        document["components"]["schemas"].pop(name, None)
    for path, item in document["paths"].items():
        for method, operation in item.items():
            _complete_operation(operation, path, method)
    return document


def _complete_operation(operation: dict[str, Any], path: str, method: str) -> None:
    is_sign_in = path == "/v1/session" and method == "post"
    descriptions = dict(_SERVER_ERRORS)
    if path not in _WITHOUT_KEY:
        descriptions |= _KEY_ERRORS
        operation["security"] = [] if is_sign_in else [{"key": []}, {"session": []}]
    if "requestBody" in operation:
        descriptions |= _BODY_ERRORS
    if path.startswith("/v2") and "{" in path:
        descriptions["404"] = "There is no such model or version."
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]  # FastAPI adds it even where no value can be invalid
    for status, text in descriptions.items():
        responses.setdefault(status, {"description": text})["content"] = _error_content(path)
    for response in responses.values():
        response.setdefault("headers", {})["X-Request-Id"] = _REQUEST_ID


def _error_content(path: str) -> dict[str, Any]:
    reference = {"$ref": "#/components/schemas/ErrorBody"}
    schema = _PROTOCOL_ERROR if path.startswith("/v2") else reference
    return {"application/json": {"schema": schema}}


# Schemas of the inference protocol, whose bodies FastAPI does not parse


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_PARAMETERS: Schema = {"type": "object", "additionalProperties": True}


def _object(required: Schema, **optional: Schema) -> Schema:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **optional},
    }


def _array(items: Schema, **keywords: Any) -> Schema:
    return {"type": "array", "items": items, **keywords}


_SHAPE = _array({"type": "integer", "minimum": -1})
_TENSOR = _object({"name": _TEXT, "datatype": _TEXT, "shape": _SHAPE})
_TENSOR_CONFIG = _object({"name": _TEXT, "data_type": _TEXT, "dims": _array({"type": "integer"})})
_DURATION = _object({"count": _COUNT, "ns": _COUNT})
_STATISTICS = _object(
    {
        "model_stats": _array(
            _object(
                {
                    "name": _TEXT,
                    "version": _TEXT,
                    "last_inference": _COUNT,
                    "inference_count": _COUNT,
                    "execution_count": _COUNT,
                    "inference_stats": {"type": "object", "additionalProperties": _DURATION},
                }
            )
        )
    }
)
_INFER_RESPONSE = _object(
    {
        "model_name": _TEXT,
        "model_version": _TEXT,
        "outputs": _array(
            _object(
                {"name": _TEXT, "datatype": _TEXT, "shape": _SHAPE},
                data=_array({}),
                parameters=_PARAMETERS,
            )
        ),
    },
    id=_TEXT,
)
_INFER_REQUEST = _object(
    {
        "inputs": _array(
            _object(
                {
                    "name": {"type": "string", "const": "image"},
                    "datatype": {"enum": ["FP32", "FP16", "BF16", "FP64", "UINT8", "BYTES"]},
                    "shape": _array({"type": "integer", "minimum": 1}),
                },
                data=_array({}),
                parameters=_PARAMETERS,
            ),
            minItems=1,
        )
    },
    id=_TEXT,
    parameters=_PARAMETERS,
    outputs=_array(_object({"name": _TEXT}, parameters=_PARAMETERS)),
)
_INFER_EXAMPLE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 3, 1, 1], "data": [0, 0.5, 1]}],
    "outputs": [{"name": "label"}, {"name": "prediction_id"}],
}
_RESPONSES: dict[str, Schema] = {
    "live": _object({"live": {"const": True}}),
    "ready": _object({"ready": {"const": True}}),
    "model_ready": _object({"name": _TEXT, "ready": {"const": True}}),
    "server": _object({"name": _TEXT, "version": _TEXT, "extensions": _array(_TEXT)}),
    "index": _array(_object({"name": _TEXT, "version": _TEXT, "state": _TEXT, "reason": _TEXT})),
    "model": _object(
        {
            "name": _TEXT,
            "versions": _array(_TEXT),
            "platform": _TEXT,
            "inputs": _array(_TENSOR),
            "outputs": _array(_TENSOR),
        }
    ),
    "config": _object(
        {
            "name": _TEXT,
            "platform": _TEXT,
            "max_batch_size": _COUNT,
            "input": _array(_TENSOR_CONFIG),
            "output": _array(_TENSOR_CONFIG),
        }
    ),
    "stats": _STATISTICS,
    "all_stats": _STATISTICS,
    "infer": _INFER_RESPONSE,
}
"""Response body of each route, by the name of the route."""


def inference_responses(route_name: str) -> Responses:
    """Return the description of the success response of a route under /v2."""
    content: Schema = {"application/json": {"schema": _RESPONSES[route_name]}}
    description = "Success."
    if route_name == "infer":
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        description = (
            "The outputs, as JSON, or as JSON followed by binary tensors. The header "
            "Inference-Header-Content-Length then holds the length of the JSON."
        )
    return {200: {"description": description, "content": content}}


def inference_parameters(route_name: str, path: str) -> dict[str, Any]:
    """Return the parameters and the body of a route under /v2."""
    extra: dict[str, Any] = {}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    if names:
        extra["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names
        ]
    if route_name == "infer":
        extra.setdefault("parameters", []).append(
            {
                "name": "Inference-Header-Content-Length",
                "in": "header",
                "required": False,
                "description": "Length of the decompressed JSON, if binary tensors follow it.",
                "schema": {"type": "string", "pattern": "^[0-9]{1,12}$"},
            }
        )
        extra["requestBody"] = {
            "required": True,
            "content": {
                "application/json": {"schema": _INFER_REQUEST, "example": _INFER_EXAMPLE},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        }
    return extra
