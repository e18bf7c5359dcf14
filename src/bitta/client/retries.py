"""Rules for sending a request again after an error."""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import TypeAlias

import httpx

from bitta.config_base import require

Outcome: TypeAlias = httpx.Response | httpx.RequestError
"""Response to a request, or the error that prevented it."""

_BUSY_STATUSES = frozenset({429, 503})
"""Statuses after which the request had no effect."""
_TRANSIENT_STATUSES = _BUSY_STATUSES | {408, 500, 502, 504}
"""Statuses after which a repeatable request is sent again."""
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Errors that happen before the request leaves this machine."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries with delays that double.

    A random factor keeps many clients from retrying at the same moment.
    """

    n_retries: int = 5
    first_delay_seconds: float = 0.2
    max_delay_seconds: float = 20.0
    """The client gives up when the server asks for a longer delay."""

    def __post_init__(self) -> None:
        require(self.n_retries >= 0, "retries", self.n_retries, "0 or more")

    def delay_seconds(
        self, attempt: int, outcome: Outcome, *, is_repeatable: bool, rng: Random
    ) -> float | None:
        """Return the delay before the next attempt, or None to give up."""
        if attempt >= self.n_retries or not _may_repeat(outcome, is_repeatable=is_repeatable):
            return None
        delay: float = min(self.max_delay_seconds, self.first_delay_seconds * 2.0**attempt)
        delay *= 0.5 + rng.random() / 2
        requested = None
        if isinstance(outcome, httpx.Response):
            requested = _parse_retry_after(outcome.headers.get("Retry-After"))
        if requested is None:
            return delay
        return None if requested > self.max_delay_seconds else max(delay, requested)


def _may_repeat(outcome: Outcome, *, is_repeatable: bool) -> bool:
    """Return True if the request may be sent again.

    A request that is not repeatable is sent again only if it certainly had no effect.
    """
    if isinstance(outcome, httpx.Response):
        statuses = _TRANSIENT_STATUSES if is_repeatable else _BUSY_STATUSES
        return outcome.status_code in statuses
    return is_repeatable or isinstance(outcome, _NOT_SENT)


def _parse_retry_after(text: str | None) -> float | None:
    """Return the delay in seconds. The header holds a number of seconds or a date."""
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
