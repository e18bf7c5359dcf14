"""What a server refuses, with its own sentence."""

from bitta.errors import BittaError


class ClientError(BittaError):
    """A call that did not succeed; `status` is 0 where no answer came."""

    def __init__(
        self, message: str, *, status: int = 0, code: str = "", request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """The server's word for programs."""
        self.request_id = request_id
        """Under which the server's log tells more."""


class AccessError(ClientError):
    """The key is unknown, revoked, or of a role that may not do this (401, 403)."""


class NotFoundError(ClientError):
    """There is no such prediction, answer or model (404)."""


class ExpiredError(ClientError):
    """The question can no longer be answered (410)."""


class ConflictError(ClientError):
    """An idempotency key was used again for something else."""


class RefusedError(ClientError):
    """What was sent is not allowed (other 4xx)."""


class RateError(ClientError):
    """Too many calls, after all retries (429)."""


class UnavailableError(ClientError):
    """No answer, one that cannot be read, or a failure of the server (5xx), after all retries."""


def kind_of(status: int, code: str) -> type[ClientError]:
    """The error of a response that is none of success."""
    if code == "conflict" or status == 409:
        return ConflictError
    if status >= 500 or status < 400:
        return UnavailableError
    kinds: dict[int, type[ClientError]] = {
        401: AccessError,
        403: AccessError,
        404: NotFoundError,
        408: UnavailableError,
        410: ExpiredError,
        429: RateError,
    }
    return kinds.get(status, RefusedError)
