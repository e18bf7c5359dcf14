"""The Open Inference Protocol, version 2: what Triton's clients speak."""

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

from bitta.server.api.errors import Refused
from bitta.server.api.parts import Clients, Own, Parts, parts_of
from bitta.server.api.ports import Served
from bitta.server.api.v2_documents import extra_of, responses_of
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
_SMALL = 64 * 1024
"""Bytes up to which a request is read in the event loop: a thread would cost more."""


def v2_router() -> APIRouter:
    """Routes under /v2: one model, whose version is the one that serves."""
    router = APIRouter(prefix="/v2", tags=["inference"])
    _add(router, "GET", "", _server)
    _add(router, "GET", "/health/live", _live)
    _add(router, "GET", "/health/ready", _ready)
    _add(router, "GET", "/models/stats", _all_stats)
    _add(router, "POST", "/repository/index", _index)
    for path in ("/models/{model}", "/models/{model}/versions/{version}"):
        _add(router, "GET", path, _model)
        _add(router, "GET", f"{path}/ready", _model_ready)
        _add(router, "GET", f"{path}/config", _config)
        _add(router, "GET", f"{path}/stats", _stats)
        _add(router, "POST", f"{path}/infer", _infer)
    return router


def straight_to_inference(app: FastAPI) -> None:
    """Serve the busiest route first, without the search and the ceremony that others can afford.

    What it does is what the route of `v2_router`, which stays for the document, would do.
    """
    for path in reversed(("/models/{model}/infer", "/models/{model}/versions/{version}/infer")):
        app.router.routes.insert(0, _Told(f"/v2{path}", _infer_straight, methods=["POST"]))


class _Told(Route):
    """A route that the log knows by its pattern, as it knows those of FastAPI."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return match, {**found, "route": self} if found else found


def _add(router: APIRouter, method: str, path: str, endpoint: Endpoint) -> None:
    name = endpoint.__name__.lstrip("_")
    suffix = "_of_version" if "{version}" in path else ""
    router.add_api_route(
        path,
        endpoint,
        methods=[method],
        operation_id=f"v2_{name}{suffix}",
        summary=(endpoint.__doc__ or "").rstrip("."),
        response_class=Response,
        responses=responses_of(name),
        openapi_extra=extra_of(name, path),
    )


async def _live(parts: Own) -> Response:
    """Whether the worker that owns the model runs."""
    return _probe(parts.health.live(), {"live": True})


async def _ready(parts: Own) -> Response:
    """Whether the server can serve and store."""
    return _probe(await parts.health.ready(), {"ready": True})


async def _server(_: Clients) -> Response:
    """What this server is."""
    return JSONResponse(server_metadata())


async def _index(parts: Own, _: Clients) -> Response:
    """Which models are served."""
    problem = await parts.health.ready()
    return JSONResponse(repository_index(_spec(parts), is_ready=not problem, reason=problem))


async def _model(request: Request, parts: Own, _: Clients) -> Response:
    """What the model reads and answers."""
    return JSONResponse(model_metadata(_named(request, parts)))


async def _model_ready(request: Request, parts: Own, _: Clients) -> Response:
    """Whether the model can serve."""
    name = _named(request, parts).name
    return _probe(await parts.health.ready(), {"name": name, "ready": True})


async def _config(request: Request, parts: Own, _: Clients) -> Response:
    """How the model is set up."""
    return JSONResponse(model_config(_named(request, parts)))


async def _stats(request: Request, parts: Own, _: Clients) -> Response:
    """How much the model has served."""
    return _told(_named(request, parts), parts)


async def _all_stats(parts: Own, _: Clients) -> Response:
    """How much has been served."""
    return _told(_spec(parts), parts)


async def _infer(request: Request, parts: Own, _: Clients) -> Response:
    """Predict, and remember each prediction under an id that answers can name."""
    began = perf_counter_ns()
    try:
        response, n_images = await _inferred(request, parts)
    except BaseException:
        parts.tally.failed(perf_counter_ns() - began)
        raise
    parts.tally.succeeded(n_images, perf_counter_ns() - began)
    parts.metrics.predictions.inc(n_images)
    return response


async def _infer_straight(request: Request) -> Response:
    parts = parts_of(request)
    return await _infer(request, parts, await parts.auth.caller(request, ("client", "operator")))


async def _inferred(request: Request, parts: Parts) -> tuple[Response, int]:
    spec = _named(request, parts)
    body = await request.body()
    headers = request.headers
    length = parse_header_length(headers.get(JSON_LENGTH_HEADER))
    encoding = headers.get("content-encoding")

    def read() -> tuple[InferRequest, np.ndarray]:
        limits = parts.settings.limits
        asked = parse_request(body, length, encoding, limits)
        spec.check_request(asked)
        given = asked.inputs[INPUT_NAME]
        return asked, read_images(
            given, parts.engine.input_shape, geometry=parts.geometry, limits=limits
        )

    small = len(body) <= _SMALL and not encoding and b"BYTES" not in body[: length or None]
    asked, images = read() if small else await asyncio.to_thread(read)
    request_id: str = request.scope["state"]["request_id"]
    served = await parts.wait(parts.engine.predict(images, request_id=request_id))
    return _answer(parts, asked, served, headers.get("accept-encoding")), len(images)


def _answer(
    parts: Parts, asked: InferRequest, served: Served, accept_encoding: str | None
) -> Response:
    classes = parts.engine.classes
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
        asked,
        model_name=parts.engine.model_name,
        model_version=served.model_version,
        classes=classes,
        accept_encoding=accept_encoding,
    )
    return Response(body, headers=headers)


def _spec(parts: Parts) -> ModelSpec:
    engine = parts.engine
    return _described(
        engine.model_name,
        engine.model_version,
        engine.input_shape,
        len(engine.classes),
        parts.settings.limits.images,
    )


@lru_cache(maxsize=8)
def _described(
    name: str, version: str, input_shape: tuple[int, ...], n_classes: int, max_rows: int
) -> ModelSpec:
    return classifier_spec(
        name, [version], input_shape=input_shape, n_classes=n_classes, max_rows=max_rows
    )


def _named(request: Request, parts: Parts) -> ModelSpec:
    """The model that the path names; its version, where given, is the one served or its lineage."""
    spec = _spec(parts)
    model, version = request.path_params["model"], request.path_params.get("version")
    if model != spec.name:
        raise Refused(404, f"there is no model {model[:60]!r}; {spec.name!r} is served here.")
    served = spec.versions[0]
    if version is not None and version not in (served, served.partition(".")[0]):
        raise Refused(
            404,
            f"version {version[:60]!r} is not served; {served!r} is, and as it moves while it "
            "learns, leave the version out.",
        )
    return spec


def _told(spec: ModelSpec, parts: Parts) -> Response:
    return JSONResponse(model_statistics(spec, spec.versions[0], parts.tally.statistics))


def _probe(problem: str, fine: dict[str, Any]) -> Response:
    if problem:
        raise Refused(503, problem, headers={"Retry-After": "1"})
    return JSONResponse(fine)
