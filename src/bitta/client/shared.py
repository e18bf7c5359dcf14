"""What both clients have in common: settings, requests, and when to try again."""

import hashlib
from collections.abc import Mapping
from random import Random
from typing import Any

from bitta.client.calls import Call, no_answer, refusal
from bitta.client.errors import ClientError
from bitta.client.library import httpx
from bitta.client.retry import Retry
from bitta.config import require
from bitta.errors import SettingError
from bitta.version import __version__

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Shared:
    """Settings of a client. The key is in no representation and no error."""

    def __init__(
        self, url: str, key: str, *, model: str | None, timeout: float, retries: int
    ) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise SettingError(
                f"url is {url!r}; allowed: one that begins with http:// or https://."
            )
        if not isinstance(key, str) or not key.isascii() or not key.isprintable() or not key:
            raise SettingError('key is no text of printable ASCII; make one with "bitta keys".')
        require(timeout > 0, "timeout", timeout, "more than 0 seconds")
        self.url = url.rstrip("/")
        self.model = model
        """The name that predictions are asked of; found out if there is only one."""
        self.timeout = timeout
        self._owner = hashlib.sha256(key.encode()).hexdigest()
        """Tells owners of keys apart without telling their keys."""
        self._retry = Retry(times=retries)
        self._chance = Random()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _options(self, key: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {key}", "User-Agent": f"bitta/{__version__}"}
        return {"base_url": f"{self.url}/", "headers": headers, "timeout": self.timeout}

    def _arguments(self, call: Call[Any]) -> dict[str, Any]:
        return {
            "method": call.method,
            "url": call.path,
            "headers": dict(call.headers),
            "json": call.json,
            "content": call.content,
            "timeout": httpx.Timeout(self.timeout, read=self.timeout + call.extra_time),
        }

    def _pause(
        self, call: Call[Any], attempt: int, failure: httpx.Response | httpx.RequestError
    ) -> float:
        """Seconds to wait before the next attempt, or the error if there is none."""
        status: int | None = None
        headers: Mapping[str, str] | None = None
        error: ClientError
        if isinstance(failure, httpx.Response):
            status, headers, error = failure.status_code, failure.headers, refusal(failure)
        else:
            error = no_answer(self.url, failure)
        wait = self._retry.pause(
            attempt,
            repeatable=call.repeatable,
            status=status,
            unsent=isinstance(failure, _UNSENT),
            headers=headers,
            chance=self._chance,
        )
        if wait is None:
            raise error
        return wait
