"""Server process: starts the parts of a server and runs uvicorn until SIGINT or SIGTERM."""

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from bitta.errors import InputError
from bitta.server.api import create_app
from bitta.server.api.dependencies import AppState
from bitta.server.engine import Engine, EngineOverloadedError
from bitta.server.logs import LogForwarder
from bitta.server.model_loading import ServedModel, load_served_model
from bitta.server.settings import ServeSettings
from bitta.server.store import Store, now

_KEEP_ALIVE_SECONDS = 65
"""Time after which the server closes an idle connection. Most clients close theirs earlier."""
_MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of the request line and the headers."""


@dataclass(frozen=True, slots=True, eq=False)
class RunningServer:
    """The parts of a started server."""

    model: ServedModel
    store: Store
    engine: Engine
    app: FastAPI
    start_message: str
    """Model version that serves, and the snapshot or weights that it comes from."""


@contextmanager
def start_server(settings: ServeSettings) -> Iterator[RunningServer]:
    """Start a server. At the end of the block, save its state and release the data folder."""
    model = load_model_from_settings(settings)
    with (
        _reserve_one_core(),
        _exif_warnings_ignored(),
        Store.open(settings.database, settings.data_dir) as store,
    ):
        engine = Engine(
            model.module,
            model.classes,
            store,
            settings,
            data_dir=settings.data_dir,
            clock=now,
            input_shape=model.input_shape,
            name=model.name,
        )
        start_message = engine.start()
        try:
            app = create_app(
                engine,
                store,
                settings,
                geometry=model.geometry,
                errors={EngineOverloadedError: (503, "overloaded")},
            )
            yield RunningServer(model, store, engine, app, start_message)
        finally:
            engine.stop()


def load_model_from_settings(settings: ServeSettings) -> ServedModel:
    """Load the model that the settings name."""
    return load_served_model(
        settings.model, classes=settings.classes, input_shape=settings.input_shape
    )


@contextmanager
def _reserve_one_core() -> Iterator[None]:
    """Let the model use all cores but one, unless OMP_NUM_THREADS is set.

    The free core handles requests. Without it, requests would slow down one of the model's threads,
    and every parallel operation waits for the slowest thread.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(before, len(os.sched_getaffinity(0)) - 1)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _exif_warnings_ignored() -> Iterator[None]:
    """Ignore Pillow's warnings about damaged EXIF tags, which any client could cause."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.TiffImagePlugin")
        yield


def serve(
    app: FastAPI, settings: ServeSettings, *, print_line: Callable[[str], None] = print
) -> None:
    """Serve until SIGINT or SIGTERM, then finish the current requests."""
    sockets = [bind(settings)]
    for line in addresses(settings, sockets[0]):
        print_line(line)
    server = make_server(app, settings)
    gc.freeze()  # the server's own objects stay alive, and scanning them takes long
    gc.enable()
    with _ignored_signals():
        server.run(sockets=sockets)


@contextmanager
def _ignored_signals() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM outside of uvicorn.

    After its shutdown, uvicorn raises the signal again with the handler that was installed
    before. The default handler would end the process before the model's state is saved.
    """
    before = {each: signal.signal(each, lambda *_: None) for each in (SIGINT, SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def make_server(app: FastAPI, settings: ServeSettings) -> "GracefulServer":
    """Return a server that has not started."""
    check_tls(settings)
    state: AppState = app.state.bitta
    limits = settings.limits
    for name in ("uvicorn.error", "bitta.server"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [LogForwarder(state.log)], False
        logger.setLevel(logging.INFO if settings.log_level == "debug" else logging.WARNING)
    config = uvicorn.Config(
        app,
        http=_limited_protocol(limits.read_seconds, limits.max_connections),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        **_tls_options(settings),
    )
    config.load()
    return GracefulServer(config, state)


class GracefulServer(uvicorn.Server):
    """Server that ends event streams and long polls first when it shuts down."""

    def __init__(self, config: uvicorn.Config, state: AppState) -> None:
        super().__init__(config)
        self._state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then wait for other requests. Open streams would never end."""
        self._state.log_watcher.end_waits()
        await super().shutdown(sockets)


def bind(settings: ServeSettings) -> socket.socket:
    """Return a socket that is bound to the host and port of the settings."""
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, address = found[0]
        bound = socket.create_server(address[:2], family=family)
        # Connections inherit this option. Without it, the body of a response waits 40 ms for the
        # acknowledgement of its headers.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except OSError as error:
        raise InputError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror or error}); "
            "choose another --port, or 0 for a free one."
        ) from None


def addresses(settings: ServeSettings, bound: socket.socket) -> Sequence[str]:
    """Return one line per address of the server, for the terminal."""
    port = bound.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    root = f"{'https' if settings.has_tls else 'http'}://{host}:{port}"
    return [
        f"inference  {root}/v2",
        f"annotate   {root}/annotate",
        f"operate    {root}/operate",
        f"openapi    {root}/openapi.json",
    ]


def _limited_protocol(seconds: float, max_connections: int) -> type[H11Protocol]:
    """Return uvicorn's protocol with a time limit for headers and a limit of connections."""

    class LimitedProtocol(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                transport.abort()
            else:
                self._start_head_timer()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._start_head_timer()
            else:
                self._cancel_head_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel_head_timer()
            super().connection_lost(exc)

        def _start_head_timer(self) -> None:
            if self._head_timer is None and not self.transport.is_closing():
                self._head_timer = self.loop.call_later(seconds, self.transport.abort)

        def _cancel_head_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

    return LimitedProtocol


def _tls_options(settings: ServeSettings) -> dict[str, Any]:
    """Return the TLS settings under uvicorn's names."""
    ca = settings.tls_client_ca
    return {
        "ssl_certfile": settings.tls_cert,
        "ssl_keyfile": settings.tls_key,
        "ssl_keyfile_password": _key_password(settings),
        "ssl_ca_certs": None if ca is None else str(ca),
        "ssl_cert_reqs": ssl.CERT_NONE if ca is None else ssl.CERT_REQUIRED,
    }


def check_tls(settings: ServeSettings) -> None:
    """Check that certificate, key and password can be read and belong together."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        _check_readable(name, getattr(settings, name))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _check_certificate(context, settings.tls_cert, settings.tls_key, _key_password(settings))
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except ssl.SSLError as error:
            raise InputError(
                f"tls_client_ca {str(settings.tls_client_ca)!r} cannot be used: it holds no "
                f"certificates in PEM format ({error.reason or error})."
            ) from None


def _check_readable(name: str, path: Path | None) -> None:
    try:
        if path is not None:
            path.open("rb").close()
    except OSError as error:
        raise InputError(f"{name} {str(path)!r} cannot be used: {error.strerror}.") from None


def _check_certificate(
    context: ssl.SSLContext, cert: Path, key: Path, password: str | None
) -> None:
    is_encrypted = False

    def give_password() -> str:  # without a callback OpenSSL would ask at the terminal
        nonlocal is_encrypted
        is_encrypted = True
        return password or ""

    try:
        context.load_cert_chain(cert, key, give_password)
    except ssl.SSLError as error:
        if is_encrypted and password is None:
            reason = "the key is encrypted; give tls_key_password in the file or the environment"
        elif is_encrypted:
            reason = "tls_key_password does not open the key"
        elif error.reason == "KEY_VALUES_MISMATCH":
            reason = "the key does not belong to the certificate"
        else:
            reason = f"they are not a certificate and a key in PEM format ({error.reason or error})"
        raise InputError(
            f"tls_cert {str(cert)!r} and tls_key {str(key)!r} cannot be used: {reason}."
        ) from None


def _key_password(settings: ServeSettings) -> str | None:
    secret = settings.tls_key_password
    return None if secret is None else secret.get_secret_value()
