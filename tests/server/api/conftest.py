"""An app around a store that is real and an engine that is not."""

import shutil

import pytest
from starlette.testclient import TestClient

from bitta.server.api import create_app
from bitta.server.settings import load_settings
from bitta.server.store import Store
from server.api.fakes import FakeEngine, Overloaded, quiet


@pytest.fixture(scope="session")
def empty(tmp_path_factory):
    """A data folder whose database has its tables, since making them takes longest."""
    folder = tmp_path_factory.mktemp("empty") / "data"
    Store.open(None, folder).close()
    return folder


@pytest.fixture
def data_dir(tmp_path, empty):
    return shutil.copytree(empty, tmp_path / "data")


@pytest.fixture
def store(data_dir):
    with Store.open(None, data_dir) as opened:
        yield opened


@pytest.fixture
def engine(store):
    return FakeEngine(store)


@pytest.fixture
def more():
    """Settings that a test wants otherwise; overridden by parametrisation."""
    return {}


@pytest.fixture
def settings(data_dir, more):
    return load_settings({"data_dir": data_dir, "port": 0, **more}, environment={})


@pytest.fixture
def log():
    return quiet()


@pytest.fixture
def app(engine, store, settings, log):
    return create_app(engine, store, settings, errors={Overloaded: (503, "unavailable")}, log=log)


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
    """Call as somebody: call("operator", "GET", "/v1/status")."""

    def called(role, method, path, **more):
        headers = dict(more.pop("headers", {}))
        if role is not None:
            headers["Authorization"] = f"Bearer {tokens[role]}"
        return http.request(method, path, headers=headers, **more)

    return called


@pytest.fixture
def answer(call):
    """Give a verdict: answer("annotator", prediction_id, "correct", key="1")."""

    def answered(role, prediction_id, verdict="correct", *, key, **fields):
        return call(
            role,
            "POST",
            "/v1/feedback",
            json={"prediction_id": prediction_id, "verdict": verdict, **fields},
            headers={"Idempotency-Key": key},
        )

    return answered
