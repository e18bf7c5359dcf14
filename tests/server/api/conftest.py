"""Fixtures of the API tests: an app with a real store and a fake engine."""

import shutil

import pytest
from starlette.testclient import TestClient

from bitta.server.api import create_app
from bitta.server.settings import load_settings
from bitta.server.store import Store
from server.api.fakes import EngineOverloadedError, FakeEngine, silent_log


@pytest.fixture(scope="session")
def empty_data_dir(tmp_path_factory):
    """Return a data folder with an empty database. Tests copy it: creating tables is slow."""
    folder = tmp_path_factory.mktemp("empty") / "data"
    Store.open(None, folder).close()
    return folder


@pytest.fixture
def data_dir(tmp_path, empty_data_dir):
    return shutil.copytree(empty_data_dir, tmp_path / "data")


@pytest.fixture
def store(data_dir):
    with Store.open(None, data_dir) as opened:
        yield opened


@pytest.fixture
def engine(store):
    return FakeEngine(store)


@pytest.fixture
def extra_settings():
    """Return settings of a test. Override this fixture by parametrisation."""
    return {}


@pytest.fixture
def settings(data_dir, extra_settings):
    return load_settings({"data_dir": data_dir, "port": 0, **extra_settings}, environment={})


@pytest.fixture
def log():
    return silent_log()


@pytest.fixture
def app(engine, store, settings, log):
    return create_app(
        engine, store, settings, errors={EngineOverloadedError: (503, "unavailable")}, log=log
    )


@pytest.fixture
def tokens(store):
    return {role: store.keys.create(role, role.title()).token
            for role in ("client", "annotator", "operator")}  # fmt: skip


@pytest.fixture
def http(app):
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def call(http, tokens):
    """Return a function that sends a request: call("operator", "GET", "/v1/status")."""

    def send(role, method, path, **options):
        headers = dict(options.pop("headers", {}))
        if role is not None:
            headers["Authorization"] = f"Bearer {tokens[role]}"
        return http.request(method, path, headers=headers, **options)

    return send


@pytest.fixture
def answer(call):
    """Return a function that gives a verdict: answer("annotator", id, "correct", key="1")."""

    def give(role, prediction_id, verdict="correct", *, key, **fields):
        return call(
            role,
            "POST",
            "/v1/feedback",
            json={"prediction_id": prediction_id, "verdict": verdict, **fields},
            headers={"Idempotency-Key": key},
        )

    return give
