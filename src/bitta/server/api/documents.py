"""The OpenAPI document: complete, and true for every status a route can answer with."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from bitta.server.api.auth import COOKIE
from bitta.server.api.models import ErrorBody

Responses = dict[int | str, dict[str, Any]]
_DESCRIPTION = """A model that answers, asks, learns from the answers, and can go back.

Inference speaks the Open Inference Protocol, version 2, under `/v2`. Questions, verdicts and
operation are under `/v1`. Times are whole microseconds since 1970, UTC. Every response carries
`X-Request-Id`; send one to choose it."""
_OPEN = ("/v2/health/live", "/v2/health/ready")
_KEYED = {
    "401": "No key, or one that is unknown or revoked.",
    "403": "A key whose role does not allow this, or a cookie without X-Bitta: 1.",
    "429": "Too many requests with this key; Retry-After tells when to come back.",
}
_BODIED = {
    "400": "The body cannot be read.",
    "408": "The request took too long to arrive.",
    "413": "The body is too large.",
}
_ALL = {
    "500": "The server failed; its log says why.",
    "503": "The server cannot do this now; Retry-After tells when to come back.",
}
_V2_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
    "example": {"error": "there is no model 'x'; 'digits' is served here."},
}
_REQUEST_ID = {"description": "Names this request in the log.", "schema": {"type": "string"}}
_SCHEMES = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key: bitta keys create."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "For the pages: POST /v1/session sets it. Requests that change something "
        "need the header X-Bitta: 1 beside it.",
    },
}


def refusals(reasons: Mapping[int, str]) -> Responses:
    """Statuses that a route has beyond those of all."""
    return {status: {"model": ErrorBody, "description": text} for status, text in reasons.items()}


def install_document(app: FastAPI) -> None:
    """Put what all routes have in common into the document, once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title,
                version=app.version,
                description=_DESCRIPTION,
                routes=app.routes,
                tags=[
                    {"name": "inference", "description": "Open Inference Protocol, version 2."},
                    {"name": "feedback", "description": "Questions and verdicts."},
                    {"name": "operation", "description": "Versions, status, events."},
                    {"name": "session", "description": "Signing in on the pages."},
                ],
            )
            app.openapi_schema = _completed(made)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _completed(made: dict[str, Any]) -> dict[str, Any]:
    made["components"]["securitySchemes"] = _SCHEMES
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own form, not ours
        made["components"]["schemas"].pop(name, None)
    for path, item in made["paths"].items():
        for method, operation in item.items():
            _complete(operation, path, method)
    return made


def _complete(operation: dict[str, Any], path: str, method: str) -> None:
    signing_in = path == "/v1/session" and method == "post"
    keyed = path not in _OPEN
    reasons = dict(_ALL)
    if keyed:
        reasons |= _KEYED
        operation["security"] = [] if signing_in else [{"key": []}, {"session": []}]
    if "requestBody" in operation:
        reasons |= _BODIED
    if path.startswith("/v2") and "{" in path:
        reasons["404"] = "There is no such model or version."
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]  # added by FastAPI where every value is valid
    for status, text in reasons.items():
        responses.setdefault(status, {"description": text})["content"] = _error(path)
    for response in responses.values():
        response.setdefault("headers", {})["X-Request-Id"] = _REQUEST_ID


def _error(path: str) -> dict[str, Any]:
    schema = _V2_ERROR if path.startswith("/v2") else {"$ref": "#/components/schemas/ErrorBody"}
    return {"application/json": {"schema": schema}}
