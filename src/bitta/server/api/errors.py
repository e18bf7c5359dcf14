"""One form for everything that is refused: a sentence, and a word for programs."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from bitta.errors import BittaError, FeedbackError, InputError, SettingError

CODES = {
    400: "malformed",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    410: "expired",
    413: "too_large",
    415: "unsupported",
    422: "invalid",
    429: "too_many",
    500: "internal",
    503: "unavailable",
}
_KNOWN: Mapping[type[Exception], tuple[int, str]] = {
    InputError: (422, "invalid"),
    SettingError: (422, "invalid"),
    FeedbackError: (422, "invalid"),
    BittaError: (503, "unavailable"),  # not about what was sent, so it may pass
}
_SHOWN = 60


class Refused(HTTPException):
    """A request that is answered with a sentence instead of what it asked for."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, sentence, dict(headers or {}))
        self.code = code or CODES.get(status, "refused")


def install_handlers(app: FastAPI, kinds: Mapping[type[Exception], tuple[int, str]]) -> None:
    """Every error leaves in our form; `kinds` tells status and code of errors of other parts."""
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_failure)
    known: dict[type[Exception], tuple[int, str]] = {**_KNOWN, **kinds}

    def on_known(request: Request, error: Exception) -> JSONResponse:
        kind = next(kind for kind in type(error).__mro__ if kind in known)
        status, code = known[kind]
        headers = {"Retry-After": "1"} if status == 503 else {}
        return error_response(request, Refused(status, str(error), code=code, headers=headers))

    for kind in known:
        app.add_exception_handler(kind, on_known)


def error_response(request: Request, error: Refused) -> JSONResponse:
    """The body that the protocol of this path wants."""
    body = {"error": error.detail}
    if not _is_v2(request):
        body["code"] = error.code
    return JSONResponse(body, error.status_code, error.headers)


def first_problem(errors: list[Any]) -> str:
    """What is wrong first, in one sentence."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "header"))
    message = first["msg"].removeprefix("Value error, ")
    message = f"{message[0].lower()}{message[1:]}"
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first.get('ctx', {}).get('error', message)}."
    if first["type"] == "missing":
        return f"{place or 'the body'} is missing."
    if first["type"] == "extra_forbidden":
        return f"{place} is not a field of this request; leave it out."
    given = repr(first.get("input"))
    given = given if len(given) <= _SHOWN else given[:_SHOWN] + "..."
    return f"{place or 'the body'} is {given}; {message}."


def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error, Refused):
        return error_response(request, error)
    sentence = str(error.detail)
    if error.status_code == 404:
        sentence = "there is nothing at this address; GET /openapi.json lists what there is."
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        sentence = f"{request.method} is not possible here; allowed: {allowed}."
    return error_response(request, Refused(error.status_code, sentence, headers=error.headers))


def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return error_response(request, Refused(422, first_problem(list(error.errors()))))


def _on_failure(request: Request, error: Exception) -> JSONResponse:
    """Our own mistake; Starlette's outermost layer answers it, outside of our own layers."""
    request_id = request.scope.get("state", {}).get("request_id", "")
    sentence = f"the server failed ({type(error).__name__}); its log has it under {request_id}."
    headers = {"X-Request-Id": request_id, "X-Content-Type-Options": "nosniff"}
    return error_response(request, Refused(500, sentence, headers=headers))


def _is_v2(request: Request) -> bool:
    path = request.url.path
    return path == "/v2" or path.startswith("/v2/")
