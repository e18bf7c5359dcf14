"""Routes of the Open Inference Protocol, version 2, which Triton's clients use."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache
from time import perf_counter_ns
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from bitta.server.api.dependencies import AppState, AppStateDependency, ClientCaller, app_state
from bitta.server.api.engine_interface import ServedInterface
from bitta.server.api.errors import ApiError
from bitta.server.api.openapi import inference_parameters, inference_responses
from bitta.server.protocol import (
    INPUT_NAME,
    JSON_LENGTH_HEADER,
    InferRequest,
    ModelSpec,
    classifier_spec,
    encode_response,
    model_config,
    model_metadata,
    model_statistics,
    parse_header_length,
    parse_request,
    prediction_outputs,
    read_images,
    repository_index,
    server_metadata,
)

Endpoint = Callable[..., Coroutine[Any, Any, Response]]
_MAX_INLINE_BYTES = 64 * 1024
"""Size up to which a request is parsed in the event loop. A thread would cost more time."""


def inference_router() -> APIRouter:
    """Return the routes under /v2. The server has one model with one version."""
    router = APIRouter(prefix="/v2", tags=["inference"])
    _add_route(router, "GET", "", _server)
    _add_route(router, "GET", "/health/live", _live)
    _add_route(router, "GET", "/health/ready", _ready)
    _add_route(router, "GET", "/models/stats", _all_stats)
    _add_route(router, "POST", "/repository/index", _index)
    for path in ("/models/{model}", "/models/{model}/versions/{version}"):
        _add_route(router, "GET", path, _model)
        _add_route(router, "GET", f"{path}/ready", _model_ready)
        _add_route(router, "GET", f"{path}/config", _config)
        _add_route(router, "GET", f"{path}/stats", _stats)
        _add_route(router, "POST", f"{path}/infer", _infer)
    return router


def install_fast_inference_routes(app: FastAPI) -> None:
    """Insert inference routes before all others. They skip FastAPI's routing and dependencies.

    They do the same as the `_infer` routes of `inference_router`, which remain for the OpenAPI
    document. Inference is by far the most frequent request.
    """
    for path in reversed(("/models/{model}/infer", "/models/{model}/versions/{version}/infer")):
        app.router.routes.insert(0, _NamedRoute(f"/v2{path}", _fast_infer, methods=["POST"]))


class _NamedRoute(Route):
    """Starlette route that puts itself into the scope, as FastAPI's do. The log needs it."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        return match, {**child_scope, "route": self} if child_scope else child_scope


def _add_route(router: APIRouter, method: str, path: str, endpoint: Endpoint) -> None:
    name = endpoint.__name__.lstrip("_")
    suffix = "_of_version" if "{version}" in path else ""
    router.add_api_route(
        path,
        endpoint,
        methods=[method],
        operation_id=f"v2_{name}{suffix}",
        summary=(endpoint.__doc__ or "").rstrip("."),
        response_class=Response,
        responses=inference_responses(name),
        openapi_extra=inference_parameters(name, path),
    )


async def _live(state: AppStateDependency) -> Response:
    """Check that the worker thread runs."""
    return _health_response(state.health.liveness_problem(), {"live": True})


async def _ready(state: AppStateDependency) -> Response:
    """Check that the server can serve and store."""
    return _health_response(await state.health.readiness_problem(), {"ready": True})


async def _server(_: ClientCaller) -> Response:
    """Return the name, version and extensions of the server."""
    return JSONResponse(server_metadata())


async def _index(state: AppStateDependency, _: ClientCaller) -> Response:
    """List the models."""
    problem = await state.health.readiness_problem()
    return JSONResponse(repository_index(_model_spec(state), is_ready=not problem, reason=problem))


async def _model(request: Request, state: AppStateDependency, _: ClientCaller) -> Response:
    """Return the inputs and outputs of the model."""
    return JSONResponse(model_metadata(_requested_model(request, state)))


async def _model_ready(request: Request, state: AppStateDependency, _: ClientCaller) -> Response:
    """Check that the model can serve."""
    name = _requested_model(request, state).name
    return _health_response(await state.health.readiness_problem(), {"name": name, "ready": True})


async def _config(request: Request, state: AppStateDependency, _: ClientCaller) -> Response:
    """Return the configuration of the model."""
    return JSONResponse(model_config(_requested_model(request, state)))


async def _stats(request: Request, state: AppStateDependency, _: ClientCaller) -> Response:
    """Return the inference statistics of the model."""
    return _statistics_response(_requested_model(request, state), state)


async def _all_stats(state: AppStateDependency, _: ClientCaller) -> Response:
    """Return the inference statistics of all models."""
    return _statistics_response(_model_spec(state), state)


async def _infer(request: Request, state: AppStateDependency, _: ClientCaller) -> Response:
    """Predict, and store each prediction under an id for later feedback."""
    start = perf_counter_ns()
    try:
        response, n_images = await _predict(request, state)
    except BaseException:
        state.inference_counter.count_failure(perf_counter_ns() - start)
        raise
    state.inference_counter.count_success(n_images, perf_counter_ns() - start)
    state.metrics.predictions.inc(n_images)
    return response


async def _fast_infer(request: Request) -> Response:
    state = app_state(request)
    caller = await state.authenticator.authorize(request, ("client", "operator"))
    return await _infer(request, state, caller)


async def _predict(request: Request, state: AppState) -> tuple[Response, int]:
    """Return the response and the number of images."""
    spec = _requested_model(request, state)
    body = await request.body()
    headers = request.headers
    json_length = parse_header_length(headers.get(JSON_LENGTH_HEADER))
    encoding = headers.get("content-encoding")

    def parse_images() -> tuple[InferRequest, np.ndarray]:
        limits = state.settings.limits
        infer_request = parse_request(body, json_length, encoding, limits)
        spec.check_request(infer_request)
        images = read_images(
            infer_request.inputs[INPUT_NAME],
            state.engine.input_shape,
            geometry=state.geometry,
            limits=limits,
        )
        return infer_request, images

    is_small = len(body) <= _MAX_INLINE_BYTES
    if is_small and not encoding and b"BYTES" not in body[: json_length or None]:
        infer_request, images = parse_images()
    else:
        infer_request, images = await asyncio.to_thread(parse_images)
    request_id: str = request.scope["state"]["request_id"]
    served = await state.wait(state.engine.predict(images, request_id=request_id))
    response = _infer_response(state, infer_request, served, headers.get("accept-encoding"))
    return response, len(images)


def _infer_response(
    state: AppState,
    infer_request: InferRequest,
    served: ServedInterface,
    accept_encoding: str | None,
) -> Response:
    classes = state.engine.classes
    outputs = prediction_outputs(
        logits=served.log_probs,
        class_index=served.class_indices,
        classes=classes,
        confidence=served.confidence,
        prediction_ids=served.prediction_ids,
        model_version=served.model_version,
    )
    body, headers = encode_response(
        outputs,
        infer_request,
        model_name=state.engine.model_name,
        model_version=served.model_version,
        classes=classes,
        accept_encoding=accept_encoding,
    )
    return Response(body, headers=headers)


def _model_spec(state: AppState) -> ModelSpec:
    engine = state.engine
    return _cached_model_spec(
        engine.model_name,
        engine.model_version,
        engine.input_shape,
        len(engine.classes),
        state.settings.limits.images,
    )


@lru_cache(maxsize=8)
def _cached_model_spec(
    name: str, version: str, input_shape: tuple[int, ...], n_classes: int, max_rows: int
) -> ModelSpec:
    return classifier_spec(
        name, [version], input_shape=input_shape, n_classes=n_classes, max_rows=max_rows
    )


def _requested_model(request: Request, state: AppState) -> ModelSpec:
    """Return the model of the path. A version in the path must be the served one or its lineage."""
    spec = _model_spec(state)
    model, version = request.path_params["model"], request.path_params.get("version")
    if model != spec.name:
        raise ApiError(404, f"there is no model {model[:60]!r}; {spec.name!r} is served here.")
    served_version = spec.versions[0]
    lineage = served_version.partition(".")[0]
    if version is not None and version not in (served_version, lineage):
        raise ApiError(
            404,
            f"version {version[:60]!r} is not served; {served_version!r} is. The version changes "
            "with each learning step, so leave it out.",
        )
    return spec


def _statistics_response(spec: ModelSpec, state: AppState) -> Response:
    statistics = state.inference_counter.statistics
    return JSONResponse(model_statistics(spec, spec.versions[0], statistics))


def _health_response(problem: str, body: dict[str, Any]) -> Response:
    if problem:
        raise ApiError(503, problem, headers={"Retry-After": "1"})
    return JSONResponse(body)
