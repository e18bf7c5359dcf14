"""Error responses: a sentence for people and a code for programs."""

from collections.abc import Mapping
from math import ceil
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from bitta.errors import BittaError, FeedbackError, InputError, SettingError

ErrorTable = Mapping[type[Exception], tuple[int, str]]
"""Status and code of the response for each exception class."""

_CODES = {
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
    504: "timeout",
}
_LIBRARY_ERRORS: ErrorTable = {
    InputError: (422, "invalid"),
    SettingError: (422, "invalid"),
    FeedbackError: (422, "invalid"),
    # Other errors are not about the request, so the same request may succeed later.
    BittaError: (503, "unavailable"),
}
_MAX_SHOWN_CHARACTERS = 60


class ApiError(HTTPException):
    """Raised to refuse a request with a status, a sentence and a code."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, sentence, dict(headers or {}))
        self.code = code or _CODES.get(status, "refused")


def too_many_requests(sentence: str, wait_seconds: float) -> ApiError:
    """Return an error with status 429 and the time after which to try again."""
    seconds = max(1, ceil(wait_seconds))
    return ApiError(
        429, f"{sentence}; try again in {seconds} s.", headers={"Retry-After": str(seconds)}
    )


def install_error_handlers(app: FastAPI, errors: ErrorTable) -> None:
    """Make the app answer every exception with an error body. `errors` extends the table."""
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_unexpected_exception)
    table: dict[type[Exception], tuple[int, str]] = {**_LIBRARY_ERRORS, **errors}

    def on_known_exception(request: Request, error: Exception) -> JSONResponse:
        error_class = next(each for each in type(error).__mro__ if each in table)
        status, code = table[error_class]
        headers = {"Retry-After": "1"} if status == 503 else {}
        return error_response(request, ApiError(status, str(error), code=code, headers=headers))

    for error_class in table:
        app.add_exception_handler(error_class, on_known_exception)


def error_response(request: Request, error: ApiError) -> JSONResponse:
    """Return the response. The inference protocol has no code in its error body."""
    body = {"error": error.detail}
    path = request.url.path
    if path != "/v2" and not path.startswith("/v2/"):
        body["code"] = error.code
    return JSONResponse(body, error.status_code, error.headers)


def validation_message(errors: list[Any]) -> str:
    """Return the first of pydantic's validation errors as one sentence."""
    first = errors[0]
    field = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "header"))
    message = first["msg"].removeprefix("Value error, ")
    message = f"{message[0].lower()}{message[1:]}"
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first.get('ctx', {}).get('error', message)}."
    if first["type"] == "missing":
        return f"{field or 'the body'} is missing."
    if first["type"] == "extra_forbidden":
        return f"{field} is not a field of this request; leave it out."
    given = repr(first.get("input"))
    if len(given) > _MAX_SHOWN_CHARACTERS:
        given = given[:_MAX_SHOWN_CHARACTERS] + "..."
    return f"{field or 'the body'} is {given}; {message}."


def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiError):
        return error_response(request, error)
    sentence = str(error.detail)
    if error.status_code == 404:
        sentence = "there is nothing at this address; GET /openapi.json lists all addresses."
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        sentence = f"{request.method} is not allowed here; allowed: {allowed}."
    return error_response(request, ApiError(error.status_code, sentence, headers=error.headers))


def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return error_response(request, ApiError(422, validation_message(list(error.errors()))))


def _on_unexpected_exception(request: Request, error: Exception) -> JSONResponse:
    """Return status 500 with all headers. Starlette sends this response outside our middleware."""
    request_id = request.scope.get("state", {}).get("request_id", "")
    sentence = (
        f"the server failed ({type(error).__name__}); search its log for the request {request_id}."
    )
    headers = {"X-Request-Id": request_id, "X-Content-Type-Options": "nosniff"}
    return error_response(request, ApiError(500, sentence, headers=headers))
