"""The FastAPI app: state, routes, pages, middleware and error handlers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from structlog.typing import FilteringBoundLogger

from bitta.server.api import feedback_routes, operation_routes
from bitta.server.api.authentication import Authenticator, load_session_secret
from bitta.server.api.dependencies import AnyCaller, AppState, AppStateDependency
from bitta.server.api.engine_interface import EngineInterface
from bitta.server.api.errors import ApiError, ErrorTable, error_response, install_error_handlers
from bitta.server.api.events import LogWatcher
from bitta.server.api.inference_routes import inference_router, install_fast_inference_routes
from bitta.server.api.metrics import CONTENT_TYPE, InferenceCounter, ServerMetrics
from bitta.server.api.middleware import BodyLimitMiddleware, RequestLogMiddleware
from bitta.server.api.openapi import install_openapi
from bitta.server.api.status import HealthChecks, StoreSummaryReader
from bitta.server.logs import make_logger
from bitta.server.pages import HEADERS, PAGES
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

_STORE_ERRORS: ErrorTable = {
    IdempotencyConflict: (422, "conflict"),
    UnknownPrediction: (404, "not_found"),
    UnknownFeedback: (404, "not_found"),
    UnknownSnapshot: (404, "not_found"),
    QuestionExpired: (410, "expired"),
    StoreUnavailable: (503, "unavailable"),
    StoreClosed: (503, "unavailable"),
}


def create_app(
    engine: EngineInterface,
    store: Store,
    settings: ServeSettings,
    *,
    geometry: Geometry | None = None,
    errors: ErrorTable | None = None,
    log: FilteringBoundLogger | None = None,
) -> FastAPI:
    """Return an app for a running engine and an open store. The caller closes both.

    `geometry` resizes encoded images to the model's input shape. `errors` holds the response status
    and code of exceptions that only the engine raises.
    """
    state = _app_state(engine, store, settings, geometry, log or make_logger(settings.log_level))
    app = FastAPI(
        title="bitta",
        version=__version__,
        docs_url=None,  # it would load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.bitta = state
    install_routes(app)
    install_error_handlers(app, {**_STORE_ERRORS, **(errors or {})})
    app.add_exception_handler(ProtocolError, _on_protocol_error)
    install_openapi(app)
    limits = settings.limits
    app.add_middleware(
        BodyLimitMiddleware,
        body_bytes=limits.body_bytes,
        other_body_bytes=limits.other_body_bytes,
        seconds=limits.read_seconds,
    )
    app.add_middleware(RequestLogMiddleware, log=state.log, metrics=state.metrics)
    return app


def install_routes(app: FastAPI) -> None:
    """Add all routes to the app."""
    app.include_router(inference_router())
    app.include_router(feedback_routes.router)
    app.include_router(operation_routes.router)
    app.include_router(operation_routes.session_router)
    app.add_api_route(
        "/metrics",
        _metrics,
        methods=["GET"],
        tags=["operation"],
        operation_id="metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses={
            200: {
                "description": "Metrics in the text format of Prometheus.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            }
        },
    )
    _install_pages(app)
    install_fast_inference_routes(app)


def _app_state(
    engine: EngineInterface,
    store: Store,
    settings: ServeSettings,
    geometry: Geometry | None,
    log: FilteringBoundLogger,
) -> AppState:
    log_watcher = LogWatcher(store)
    secret = load_session_secret(settings.data_dir)
    return AppState(
        engine=engine,
        store=store,
        settings=settings,
        geometry=geometry,
        authenticator=Authenticator(store.keys, settings, secret),
        log_watcher=log_watcher,
        health=HealthChecks(engine, store, settings, log_watcher),
        metrics=ServerMetrics(engine, store),
        summary_reader=StoreSummaryReader(store),
        inference_counter=InferenceCounter(),
        log=log,
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: AppState = app.state.bitta
    state.log_watcher.start()
    try:
        yield
    finally:
        await state.log_watcher.stop()


async def _metrics(state: AppStateDependency, _: AnyCaller) -> Response:
    return Response(await run_in_threadpool(state.metrics.text), media_type=CONTENT_TYPE)


def _on_protocol_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProtocolError)
    return error_response(request, ApiError(error.status, str(error)))


def _install_pages(app: FastAPI) -> None:
    """Add the pages and their files. They come from `PAGES`; no request path reaches the disk."""
    methods = ["GET", "HEAD"]
    pages = [address for address in PAGES if not address.startswith("/static/")]
    for address in (*pages, "/static/{name:path}"):
        app.add_api_route(address, _page, include_in_schema=False, methods=methods)
    app.add_api_route("/", _redirect_to_annotate, include_in_schema=False, methods=methods)


async def _redirect_to_annotate() -> Response:
    return RedirectResponse("/annotate")


async def _page(request: Request) -> Response:
    page = PAGES.get(request.url.path)
    if page is None:
        raise ApiError(404, "there is no such page; the pages are /annotate and /operate.")
    headers = {**HEADERS, "ETag": page.etag}
    if request.headers.get("if-none-match") == page.etag:
        return Response(status_code=304, headers=headers)
    return Response(page.body, media_type=page.content_type, headers=headers)
