"""When to try again, and how long to wait before."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random

from bitta.config import require

_BUSY = frozenset({429, 503})
"""The server says that it did nothing."""
_PASSING = _BUSY | {408, 500, 502, 504}


@dataclass(frozen=True, slots=True)
class Retry:
    """Waits that double, with chance in them so that many clients do not come back at once."""

    times: int = 5
    first: float = 0.2
    """Seconds."""
    longest: float = 20.0
    """Seconds; a server that asks for more than this is not waited for."""

    def __post_init__(self) -> None:
        require(self.times >= 0, "retries", self.times, "0 or more")

    def pause(
        self,
        attempt: int,
        *,
        repeatable: bool,
        status: int | None,
        unsent: bool = False,
        headers: Mapping[str, str] | None = None,
        chance: Random,
    ) -> float | None:
        """Seconds to wait before trying again, None to give up.

        `repeatable` calls have the same effect once or twice. Others are tried again only when
        the first try surely had none: it was `unsent`, or the server was too busy to begin.
        """
        if attempt >= self.times:
            return None
        if status is None and not (repeatable or unsent):
            return None
        if status is not None and status not in (_PASSING if repeatable else _BUSY):
            return None
        wait: float = min(self.longest, self.first * 2.0**attempt) * (0.5 + chance.random() / 2)
        asked = _seconds(headers.get("Retry-After")) if headers else None
        if asked is None:
            return wait
        return None if asked > self.longest else max(wait, asked)


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After is a number of seconds or a date."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())
