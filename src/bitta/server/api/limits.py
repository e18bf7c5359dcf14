"""How much, how often and how slowly: bodies counted as they come, tokens per caller."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bitta.server.api.errors import Refused

_REMEMBERED = 10_000
_SMALL = 16 * 1024
"""Bytes that the socket takes at once."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class RateLimit:
    """A token bucket per name: `burst` at once, `rate` per second for long."""

    def __init__(
        self, rate: float, burst: float, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        """In the order of their last use."""

    def take(self, name: str) -> float:
        """0, or for how many seconds there is no token."""
        bucket = self._filled(name)
        if bucket.tokens < 1.0:
            return (1.0 - bucket.tokens) / self._rate
        bucket.tokens -= 1.0
        return 0.0

    def empty(self, name: str) -> float:
        """The same answer without taking a token."""
        tokens = self._filled(name).tokens
        return 0.0 if tokens >= 1.0 else (1.0 - tokens) / self._rate

    def _filled(self, name: str) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.pop(name, None)
        if bucket is None:
            bucket = _Bucket(self._burst, now)
            if len(self._buckets) >= _REMEMBERED:  # the one that was used longest ago goes
                del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = bucket
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._rate)
        bucket.at = now
        return bucket


class BoundedBodies:
    """Refuses bodies that are too long, whatever they claim, and clients that are too slow.

    Only inference takes long ones: the JSON of all others is read in the event loop.
    """

    def __init__(self, app: ASGIApp, *, body_bytes: int, other_bytes: int, seconds: float) -> None:
        self._app = app
        self._body_bytes = body_bytes
        self._other_bytes = other_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; lifespan messages pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._body_bytes if _infers(scope) else self._other_bytes
        counted = _Counted(receive, claimed_length(scope), limit, self._seconds)

        async def patient_send(message: Message) -> None:
            if not message.get("more_body") and len(message.get("body", b"")) <= _SMALL:
                await send(message)
                return
            # A reader that takes nothing for so long must not hold what the answer holds.
            async with asyncio.timeout(self._seconds):
                await send(message)

        await self._app(scope, counted, patient_send)


def claimed_length(scope: Scope) -> int | None:
    """Content-Length, where the request has one; the server beneath has checked its form."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


def _infers(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith("/v2/models/") and path.endswith("/infer")


class _Counted:
    """A `receive` that counts; the deadline is for the whole body."""

    def __init__(
        self, receive: Receive, claimed: int | None, body_bytes: int, seconds: float
    ) -> None:
        self._receive = receive
        self._claimed = claimed
        self._left = body_bytes
        self._limit = body_bytes
        self._seconds = seconds
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        if self._claimed is not None and self._claimed > self._limit:
            raise self._too_large(f"{self._claimed:,}")
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise Refused(
                408,
                f"the request was not complete after {self._seconds:g} seconds.",
                headers={"Connection": "close"},
            ) from None
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._left < 0:
                raise self._too_large(f"more than {self._limit:,}")
        return message

    def _too_large(self, given: str) -> Refused:
        return Refused(
            413,
            f"the body has {given} bytes; allowed here: {self._limit:,}. Send less at once.",
            headers={"Connection": "close"},
        )
