"""Tests that the OpenAPI document is complete, and that the routes conform to it."""

from itertools import product

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from pydantic import BaseModel
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from bitta.server.api import create_app, schemas
from bitta.server.api.app import install_routes
from bitta.server.settings import load_settings
from bitta.server.store import Store
from server.api.fakes import EngineOverloadedError, FakeEngine, running, silent_log

load_all_checks()
STREAM = "/v1/events"  # never ends, so a generated case would wait forever
EXAMPLES = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "NONSENSE")
UNKNOWN_QUERIES = (
    "",
    "=&&=",
    "limit=-1",
    "last_event_id=x",
    "a[]=1&a[]=",
    "%00=%ff%fe",
    "%",
    "x" * 4000,
)
"""Queries that the event stream has to ignore."""
EXCLUDED_CHECKS = CHECKS.get_by_names(["ignored_auth"])  # tested in test_authentication.py


@pytest.fixture(scope="module")
def app_and_token(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app_and_token")
    chosen = {"data_dir": folder, "max_poll_seconds": 0, "limits": {"burst": 100_000}}
    with Store.open(None, folder) as store:
        engine = FakeEngine(store)
        engine.ask(3)
        engine.snapshot("asked").result()
        app = create_app(
            engine,
            store,
            load_settings(chosen, environment={}),
            errors={EngineOverloadedError: (503, "unavailable")},
            log=silent_log(),
        )
        yield app, store.keys.create("operator", "Everybody").token


@pytest.fixture(scope="module")
def document(app_and_token):
    return schemathesis.openapi.from_asgi("/openapi.json", app_and_token[0])


def operations(document):
    return [(method.upper(), path) for path, item in document["paths"].items() for method in item]


def finite_operations():
    """Return all operations but the event stream. Parametrisation needs them before the app."""
    bare = FastAPI()
    install_routes(bare)
    return [(method, path) for method, path in operations(bare.openapi()) if path != STREAM]


@pytest.mark.full
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", finite_operations(), ids=" ".join)
def test_route_conforms_to_the_document(document, app_and_token, operation, mode):
    method, path = operation
    headers = {"Authorization": f"Bearer {app_and_token[1]}", "X-Bitta": "1"}

    @EXAMPLES
    @given(case=document[path][method].as_strategy(generation_mode=mode))
    def holds(case):
        case.call_and_validate(headers=headers, excluded_checks=EXCLUDED_CHECKS)

    try:
        holds()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # every request to this route is valid


def test_all_routes_but_the_event_stream_are_generated(app_and_token):
    assert set(operations(app_and_token[0].openapi())) == {*finite_operations(), ("GET", STREAM)}


def test_event_stream_accepts_any_query_and_only_get(app, settings, tokens):
    headers = {"Authorization": f"Bearer {tokens['operator']}", "X-Bitta": "1"}
    with (
        running(app, settings) as port,  # the test client would wait for the end of the stream
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client,
    ):
        for method, query in product(METHODS, UNKNOWN_QUERIES):
            with client.stream(method, f"{STREAM}?{query}") as response:
                expected = 200 if method == "GET" else 405
                assert response.status_code == expected, (method, query)
                if method == "GET":
                    assert next(response.iter_lines()) == "event: status", query


def test_every_operation_and_response_is_described(app_and_token):
    openapi = app_and_token[0].openapi()
    names = []
    for path, item in openapi["paths"].items():
        for method, operation in item.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            names.append(operation["operationId"])
            assert "500" in operation["responses"], where
            for status, response in operation["responses"].items():
                assert response["description"], (where, status)
                assert "X-Request-Id" in response["headers"], (where, status)
                assert "HTTPValidationError" not in str(response), (where, status)
    assert len(set(names)) == len(names)
    assert "HTTPValidationError" not in openapi["components"]["schemas"]


def test_errors_under_v2_have_the_body_of_the_protocol(app_and_token):
    paths = app_and_token[0].openapi()["paths"]
    for path in paths:
        for operation in paths[path].values():
            refusal = str(operation["responses"]["500"]["content"])
            assert ("ErrorBody" in refusal) == (not path.startswith("/v2")), path


def test_only_health_and_sign_in_need_no_key(app_and_token):
    paths = app_and_token[0].openapi()["paths"]
    free = {
        f"{method} {path}"
        for path, item in paths.items()
        for method, operation in item.items()
        if not operation.get("security")
    }
    assert free == {"get /v2/health/live", "get /v2/health/ready", "post /v1/session"}


def test_examples_of_schemas_are_valid(app_and_token):
    checked = 0
    for kind in vars(schemas).values():
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not BaseModel:
            extra = kind.model_config.get("json_schema_extra") or {}
            for example in extra.get("examples", []):
                kind.model_validate(example)
                checked += 1
    assert checked >= 10
