"""Errors of the client. If the server sent an error, they carry its message."""

import httpx

from bitta.errors import BittaError


class ClientError(BittaError):
    """Raised when a call fails. `status` is 0 if there was no response."""

    def __init__(
        self, message: str, *, status: int = 0, code: str = "", request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """Error code of the server, for programs."""
        self.request_id = request_id
        """Id of the request in the log of the server."""


class AccessError(ClientError):
    """Raised if the key is unknown or revoked, or its role may not do this (401, 403)."""


class NotFoundError(ClientError):
    """Raised if the prediction, answer or model does not exist (404)."""


class ExpiredError(ClientError):
    """Raised if the question can no longer be answered (410)."""


class ConflictError(ClientError):
    """Raised if an idempotency key is used again for a different answer."""


class RefusedError(ClientError):
    """Raised if the server does not accept the request (other 4xx)."""


class RateError(ClientError):
    """Raised if the key makes too many requests (429) and retries do not help."""


class UnavailableError(ClientError):
    """Raised if there is no readable response, or the server fails (5xx), after all retries."""


def response_error(response: httpx.Response) -> ClientError:
    """Return the error for a response, with the message of the server."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("error"), str):
        # The response comes from a proxy or from another kind of server.
        body = {"error": f"the server answered {response.status_code} to {response.url.path}."}
    status, code = response.status_code, str(body.get("code", ""))
    return _error_class(status, code)(
        body["error"],
        status=status,
        code=code,
        request_id=response.headers.get("X-Request-Id", ""),
    )


def connection_error(url: str, error: httpx.RequestError) -> UnavailableError:
    """Return the error for a call that got no response."""
    reason = str(error) or type(error).__name__
    return UnavailableError(f"no response from {url} ({reason}); is the server running there?")


def _error_class(status: int, code: str) -> type[ClientError]:
    if code == "conflict" or status == 409:
        return ConflictError
    if status >= 500 or status < 400:
        return UnavailableError
    classes: dict[int, type[ClientError]] = {
        401: AccessError,
        403: AccessError,
        404: NotFoundError,
        408: UnavailableError,
        410: ExpiredError,
        429: RateError,
    }
    return classes.get(status, RefusedError)
