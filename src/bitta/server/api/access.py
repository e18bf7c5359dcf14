"""Around every request: its id, its headers, its line in the log, its place in the metrics."""

import re
import secrets
from time import perf_counter
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from bitta.server.api.metrics import Metrics

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("Cache-Control", "no-store"),
)
"""Pages have a policy and caching of their own."""


class Access:
    """The outermost of our layers."""

    def __init__(self, app: ASGIApp, *, log: FilteringBoundLogger, metrics: Metrics) -> None:
        self._app = app
        self._log = log
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; lifespan messages pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, request_id = perf_counter(), _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 500
        stream = False

        async def with_headers(message: Message) -> None:
            nonlocal status, stream
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in _HEADERS:
                    headers.setdefault(name, value)
                stream = headers.get("content-type", "").startswith("text/event-stream")
            await send(message)

        failure: BaseException | None = None
        try:
            await self._app(scope, receive, with_headers)
        except BaseException as error:
            failure = error
            raise
        finally:
            seconds = perf_counter() - began
            self._tell(scope, status, seconds, stream=stream, failure=failure)

    def _tell(
        self,
        scope: Scope,
        status: int,
        seconds: float,
        *,
        stream: bool,
        failure: BaseException | None,
    ) -> None:
        route = _route(scope)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.observe(method, route, status, None if stream else seconds)
        state: dict[str, Any] = scope["state"]
        level = "error" if failure else "warning" if status >= 500 else "info"
        more = {"exc_info": failure} if failure else {}
        getattr(self._log, level)(
            "request",
            request_id=state["request_id"],
            key_id=state.get("key_id"),
            method=method,
            route=route,
            status=status,
            ms=round(1000 * seconds, 2),
            **more,
        )


def _request_id(scope: Scope) -> str:
    """The caller's own, where it is harmless in a log, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(text):
                return str(text)
    return secrets.token_hex(8)


def _route(scope: Scope) -> str:
    """The pattern of the path, so that names in paths do not make new series."""
    route = scope.get("route")
    return "none" if route is None else str(route.path)
