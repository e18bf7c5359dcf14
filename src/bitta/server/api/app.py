"""The app: everything that is reached over HTTP, put together."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from structlog.typing import FilteringBoundLogger

from bitta.server.api import v1_feedback, v1_operation
from bitta.server.api.access import Access
from bitta.server.api.auth import Auth, session_secret
from bitta.server.api.documents import install_document
from bitta.server.api.errors import Refused, error_response, install_handlers
from bitta.server.api.feed import Feed
from bitta.server.api.health import Health
from bitta.server.api.limits import BoundedBodies
from bitta.server.api.metrics import CONTENT_TYPE, Metrics
from bitta.server.api.pages import install_pages
from bitta.server.api.parts import Everybody, Own, Parts
from bitta.server.api.ports import Engine
from bitta.server.api.status import Reader
from bitta.server.api.tally import Tally
from bitta.server.api.v2 import straight_to_inference, v2_router
from bitta.server.logs import make_log
from bitta.server.protocol import ProtocolError
from bitta.server.settings import ServeSettings
from bitta.server.store import (
    IdempotencyConflict,
    QuestionExpired,
    Store,
    StoreClosed,
    StoreUnavailable,
    UnknownFeedback,
    UnknownPrediction,
    UnknownSnapshot,
)
from bitta.streams import Geometry
from bitta.version import __version__

Kinds = Mapping[type[Exception], tuple[int, str]]
_KINDS: Kinds = {
    IdempotencyConflict: (422, "conflict"),
    UnknownPrediction: (404, "not_found"),
    UnknownFeedback: (404, "not_found"),
    UnknownSnapshot: (404, "not_found"),
    QuestionExpired: (410, "expired"),
    StoreUnavailable: (503, "unavailable"),
    StoreClosed: (503, "unavailable"),
}


def create_app(
    engine: Engine,
    store: Store,
    settings: ServeSettings,
    *,
    geometry: Geometry | None = None,
    errors: Kinds | None = None,
    log: FilteringBoundLogger | None = None,
) -> FastAPI:
    """An app around an engine that runs and a store that is open; it closes neither.

    `geometry` is how encoded pictures get to the model's shape; `errors` tells status and code of
    the engine's own errors.
    """
    feed = Feed(store)
    parts = Parts(
        engine=engine,
        store=store,
        settings=settings,
        geometry=geometry,
        auth=Auth(store.keys, settings, session_secret(settings.data_dir)),
        feed=feed,
        health=Health(engine, store, settings, feed),
        metrics=Metrics(engine, store),
        reader=Reader(store),
        tally=Tally(),
        log=log or make_log(settings.log_level),
    )
    app = FastAPI(
        title="bitta",
        version=__version__,
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.parts = parts
    _install_routes(app)
    install_handlers(app, {**_KINDS, **(errors or {})})
    app.add_exception_handler(ProtocolError, _on_v2)
    install_document(app)
    limits = settings.limits
    app.add_middleware(
        BoundedBodies,
        body_bytes=limits.body_bytes,
        other_bytes=limits.other_bytes,
        seconds=limits.read_seconds,
    )
    app.add_middleware(Access, log=parts.log, metrics=parts.metrics)
    return app


def _install_routes(app: FastAPI) -> None:
    app.include_router(v2_router())
    app.include_router(v1_feedback.router)
    app.include_router(v1_operation.router)
    app.include_router(v1_operation.sessions)
    app.add_api_route(
        "/metrics",
        _metrics,
        methods=["GET"],
        tags=["operation"],
        operation_id="metrics",
        summary="Numbers for Prometheus",
        response_class=Response,
        responses={
            200: {
                "description": "In Prometheus' text format.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            }
        },
    )
    install_pages(app)
    straight_to_inference(app)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    parts.feed.open()
    try:
        yield
    finally:
        await parts.feed.close()


async def _metrics(parts: Own, _: Everybody) -> Response:
    return Response(await run_in_threadpool(parts.metrics.text), media_type=CONTENT_TYPE)


def _on_v2(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProtocolError)
    return error_response(request, Refused(error.status, str(error)))
