"""ASGI middleware: request ids, log lines, metrics and headers; limits on bodies."""

import asyncio
import re
import secrets
from time import perf_counter
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from bitta.server.api.errors import ApiError
from bitta.server.api.metrics import ServerMetrics

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_DEFAULT_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("Cache-Control", "no-store"),
)
"""Headers that are added to responses that lack them. Pages set their own policy and caching."""
_SOCKET_BUFFER_BYTES = 16 * 1024
"""Size of a response that the socket's buffer takes at once."""


class RequestLogMiddleware:
    """Outermost middleware. Gives each request an id and headers; logs and counts it."""

    def __init__(self, app: ASGIApp, *, log: FilteringBoundLogger, metrics: ServerMetrics) -> None:
        self._app = app
        self._log = log
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, request_id = perf_counter(), _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 500
        is_stream = False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in _DEFAULT_HEADERS:
                    headers.setdefault(name, value)
                is_stream = headers.get("content-type", "").startswith("text/event-stream")
            await send(message)

        failure: BaseException | None = None
        try:
            await self._app(scope, receive, send_with_headers)
        except BaseException as error:
            failure = error
            raise
        finally:
            seconds = perf_counter() - start
            self._record(scope, status, seconds, is_stream=is_stream, failure=failure)

    def _record(
        self,
        scope: Scope,
        status: int,
        seconds: float,
        *,
        is_stream: bool,
        failure: BaseException | None,
    ) -> None:
        route = _route_pattern(scope)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.observe_request(method, route, status, None if is_stream else seconds)
        state: dict[str, Any] = scope["state"]
        level = "error" if failure else "warning" if status >= 500 else "info"
        traceback = {"exc_info": failure} if failure else {}
        getattr(self._log, level)(
            "request",
            request_id=state["request_id"],
            key_id=state.get("key_id"),
            method=method,
            route=route,
            status=status,
            ms=round(1000 * seconds, 2),
            **traceback,
        )


def _request_id(scope: Scope) -> str:
    """Return the id that the caller sent, if it is safe in a log, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(text):
                return str(text)
    return secrets.token_hex(8)


def _route_pattern(scope: Scope) -> str:
    """Return the pattern of the path. With full paths, every id would be a metric series."""
    route = scope.get("route")
    return "none" if route is None else str(route.path)


class BodyLimitMiddleware:
    """Refuse bodies that are too large or too slow; drop clients that do not read the response.

    Only inference requests may have large bodies. The JSON of all other requests is parsed in the
    event loop.
    """

    def __init__(
        self, app: ASGIApp, *, body_bytes: int, other_body_bytes: int, seconds: float
    ) -> None:
        self._app = app
        self._body_bytes = body_bytes
        self._other_bytes = other_body_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._body_bytes if _is_inference(scope) else self._other_bytes
        limited_receive = _LimitedReceive(receive, _content_length(scope), limit, self._seconds)

        async def send_with_timeout(message: Message) -> None:
            n_bytes = len(message.get("body", b""))
            if not message.get("more_body") and n_bytes <= _SOCKET_BUFFER_BYTES:
                await send(message)
                return
            # A client that does not read must not hold the memory of the response.
            async with asyncio.timeout(self._seconds):
                await send(message)

        await self._app(scope, limited_receive, send_with_timeout)


def _content_length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


def _is_inference(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith("/v2/models/") and path.endswith("/infer")


class _LimitedReceive:
    """ASGI `receive` that counts the bytes of the body and has one deadline for all of it."""

    def __init__(
        self, receive: Receive, content_length: int | None, max_bytes: int, seconds: float
    ) -> None:
        self._receive = receive
        self._content_length = content_length
        self._max_bytes = max_bytes
        self._n_received = 0
        self._seconds = seconds
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._is_complete = False

    async def __call__(self) -> Message:
        if self._is_complete:
            return await self._receive()
        if self._content_length is not None and self._content_length > self._max_bytes:
            raise self._too_large(f"{self._content_length:,}")
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                408,
                f"the request was not complete after {self._seconds:g} seconds.",
                headers={"Connection": "close"},
            ) from None
        if message["type"] == "http.request":
            self._n_received += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
            if self._n_received > self._max_bytes:
                raise self._too_large(f"more than {self._max_bytes:,}")
        return message

    def _too_large(self, given: str) -> ApiError:
        return ApiError(
            413,
            f"the body has {given} bytes; allowed here: {self._max_bytes:,}. Send less per "
            "request.",
            headers={"Connection": "close"},
        )
