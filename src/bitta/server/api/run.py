"""The server process: uvicorn, told to stop in time and to wait for nobody."""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from signal import SIGINT, SIGTERM
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from bitta.errors import InputError
from bitta.server.api.parts import Parts
from bitta.server.api.tls import check_tls, tls_options
from bitta.server.logs import Forward
from bitta.server.settings import ServeSettings

_KEEP_ALIVE = 65
"""Seconds; longer than clients keep idle connections, so that they close first."""
_LONGEST_HEAD = 64 * 1024
"""Bytes of a request's line and headers."""
Tell = Callable[[str], None]


def serve(app: FastAPI, settings: ServeSettings, *, tell: Tell = print) -> None:
    """Serve until SIGINT or SIGTERM, then let requests under way finish."""
    sockets = [bind(settings)]
    for line in addresses(settings, sockets[0]):
        tell(line)
    server = make_server(app, settings)
    gc.freeze()  # what the server is made of is never garbage, and looking it through takes long
    gc.enable()
    with _obeyed():
        server.run(sockets=sockets)


@contextmanager
def _obeyed() -> Iterator[None]:
    """Signals end the server, and what comes after it is still done.

    uvicorn raises a signal again once it has shut down, with the handler that was there before;
    the usual one of SIGTERM would end the process before the model's state is kept.
    """
    before = {each: signal.signal(each, lambda *_: None) for each in (SIGINT, SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def make_server(app: FastAPI, settings: ServeSettings) -> "Server":
    """A server that has not begun, for `serve` and for tests."""
    check_tls(settings)
    parts: Parts = app.state.parts
    limits = settings.limits
    for name in ("uvicorn.error", "bitta.server"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [Forward(parts.log)], False
        logger.setLevel(logging.INFO if settings.log_level == "debug" else logging.WARNING)
    config = uvicorn.Config(
        app,
        http=_protocol(limits.read_seconds, limits.connections),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=_LONGEST_HEAD,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        **tls_options(settings),
    )
    config.load()
    return Server(config, parts)


class Server(uvicorn.Server):
    """Ends event streams and long polls before it waits for requests to end."""

    def __init__(self, config: uvicorn.Config, parts: Parts) -> None:
        super().__init__(config)
        self._parts = parts

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Open streams would otherwise hold up a SIGTERM for as long as they like."""
        self._parts.feed.end()
        await super().shutdown(sockets)


def bind(settings: ServeSettings) -> socket.socket:
    """The socket to listen at, taken before anything is promised."""
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, address = found[0]
        bound = socket.create_server(address[:2], family=family)
        # Connections inherit it; else the body of an answer waits 40 ms for its head to be
        # acknowledged.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except OSError as error:
        raise InputError(
            f"cannot listen at {settings.host}:{settings.port} ({error.strerror or error}); "
            "choose another --port, or 0 for a free one."
        ) from None


def addresses(settings: ServeSettings, bound: socket.socket) -> Sequence[str]:
    """What to open, by name."""
    port = bound.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    root = f"{'https' if settings.tls else 'http'}://{host}:{port}"
    return [
        f"inference  {root}/v2",
        f"annotate   {root}/annotate",
        f"operate    {root}/operate",
        f"document   {root}/openapi.json",
    ]


def _protocol(seconds: float, most: int) -> type[H11Protocol]:
    """uvicorn's own, with a time limit for headers and a limit of connections."""

    class Patient(H11Protocol):
        _head: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            else:
                self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._await_head()
            else:
                self._forget_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_head()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            if self._head is None and not self.transport.is_closing():
                self._head = self.loop.call_later(seconds, self.transport.abort)

        def _forget_head(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

    return Patient
