"""Mistakes of a caller, as the protocol tells them."""

import json
import reprlib

from bitta.errors import BittaError

BAD_REQUEST = 400
TOO_LARGE = 413

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60
_short.maxlevel = 2


class V2Error(BittaError):
    """A request that cannot be served as it is; `status` is that of the response."""

    def __init__(self, message: str, *, status: int = BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status

    @property
    def body(self) -> bytes:
        """Of the response."""
        return error_body(str(self))


def error_body(message: str) -> bytes:
    """The form that clients read on every path under /v2, whatever went wrong."""
    return json.dumps({"error": message}).encode()


def shown(value: object) -> str:
    """What was given, for a sentence; long values are cut, since they are sent back."""
    return _short.repr(value)
