"""Routes of the inference protocol: requests, errors, health and statistics."""

import base64
import gzip
import json
import random
from concurrent.futures import Future

import numpy as np
import pytest
from PIL import Image

from bitta.errors import BittaError, InputError
from bitta.server.store import StoreFull
from made_pictures import N_BROKEN, broken, encoded, originals
from server.api.fakes import EngineOverloadedError

URL = "/v2/models/toy/infer"


def tensor(n=1, value=0.75):
    return {
        "name": "image", "datatype": "FP32", "shape": [n, 3, 4, 4], "data": [value] * (48 * n)
    }  # fmt: skip


def picture(content):
    return {
        "name": "image",
        "datatype": "BYTES",
        "shape": [1],
        "data": [base64.b64encode(content).decode()],
        "parameters": {"content_type": "base64"},
    }


def outputs(response):
    """Return the data of each output of a JSON response, by name."""
    return {each["name"]: each["data"] for each in response.json()["outputs"]}


def test_json_request_returns_the_requested_outputs(call, engine):
    body = {
        "id": "7",
        "inputs": [tensor(2)],
        "outputs": [{"name": "label"}, {"name": "prediction_id"}, {"name": "model_version"}],
    }
    response = call("client", "POST", URL, json=body, headers={"X-Request-Id": "req-9"})
    assert response.status_code == 200
    assert response.json()["id"] == "7"
    assert response.json()["model_name"] == "toy"
    got = outputs(response)
    assert set(got) == {"label", "prediction_id", "model_version"}
    assert got["label"] == ["dog", "dog"]
    assert len(set(got["prediction_id"])) == 2
    assert got["model_version"] == ["1.0", "1.0"]
    assert engine.requests == ["req-9"]


def test_request_without_outputs_returns_all_as_binary(call):
    content = json.dumps({"inputs": [tensor()]}).encode()
    response = call("client", "POST", URL, content=content)
    length = int(response.headers["inference-header-content-length"])
    described = json.loads(response.content[:length])["outputs"]
    assert {"logits", "label", "confidence", "prediction_id", "model_version"} <= {
        each["name"] for each in described
    }
    sizes = [each["parameters"]["binary_data_size"] for each in described]
    assert length + sum(sizes) == len(response.content)


def test_prediction_is_stored_under_its_returned_id(call, store, answer):
    body = {"inputs": [tensor()], "outputs": [{"name": "prediction_id"}]}
    (name,) = outputs(call("client", "POST", URL, json=body))["prediction_id"]
    assert answer("client", name, "incorrect", key="k").status_code == 201
    assert store.find_prediction(name).label == "dog"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_encoded_picture_is_decoded(call, form):
    white = Image.new("RGB", (40, 30), (250, 250, 250))
    body = {"inputs": [picture(encoded(white, form))], "outputs": [{"name": "label"}]}
    assert outputs(call("client", "POST", URL, json=body))["label"] == ["dog"]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("extra_settings", [{"limits": {"burst": N_BROKEN + 100}}])
def test_broken_pictures_are_predicted_or_refused(call):
    rng = random.Random(0)
    wholes = originals()
    statuses = set()
    for number in range(N_BROKEN):
        content = broken(wholes[number % len(wholes)], rng)
        response = call("client", "POST", URL, json={"inputs": [picture(content)]})
        assert response.status_code in (200, 400, 413, 422), (number, response.text)
        assert response.status_code == 200 or set(response.json()) == {"error"}
        statuses.add(response.status_code)
    assert statuses >= {200, 400}


def test_gzip_request_gets_gzip_response(call):
    content = gzip.compress(json.dumps({"inputs": [tensor()]}).encode())
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    response = call("client", "POST", URL, content=content, headers=headers)
    assert response.status_code == 200
    assert response.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize("extra_settings", [{"limits": {"body_bytes": 20_000}}])
def test_gzip_bomb_is_refused(call):
    content = gzip.compress(b" " * 3_000_000)
    assert len(content) < 20_000
    response = call("client", "POST", URL, content=content, headers={"Content-Encoding": "gzip"})
    assert response.status_code == 413
    assert set(response.json()) == {"error"}


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"", {}, 400),
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"{}", {}, 400),
        (b"\xff", {}, 400),
        (b"{}", {"Inference-Header-Content-Length": "x"}, 400),
        (b"{}", {"Inference-Header-Content-Length": "99"}, 400),
        (b"{}", {"Content-Encoding": "br"}, 400),
        (b"{}", {"Content-Encoding": "gzip"}, 400),
        (json.dumps({"inputs": [tensor(0)]}).encode(), {}, 400),
        (json.dumps({"inputs": [tensor(129)]}).encode(), {}, 413),
        (json.dumps({"inputs": [tensor() | {"name": "img"}]}).encode(), {}, 400),
        (json.dumps({"inputs": [tensor() | {"datatype": "INT4"}]}).encode(), {}, 400),
        (json.dumps({"inputs": [tensor()], "outputs": [{"name": "x"}]}).encode(), {}, 400),
        (json.dumps({"inputs": [tensor(value=float("nan"))]}).encode(), {}, 400),
    ],
)
def test_invalid_request_gets_error_body_of_the_protocol(call, content, headers, status):
    response = call("client", "POST", URL, content=content, headers=headers)
    assert response.status_code == status
    assert set(response.json()) == {"error"}


@pytest.mark.parametrize("version", ["1.0", "1"])
def test_served_version_may_be_in_the_path(call, version):
    path = f"/v2/models/toy/versions/{version}"
    assert call("client", "GET", path).json()["versions"] == ["1.0"]
    assert call("client", "POST", f"{path}/infer", json={"inputs": [tensor()]}).status_code == 200
    assert call("client", "GET", f"{path}/ready").status_code == 200
    assert call("client", "GET", f"{path}/config").json()["max_batch_size"] == 128
    assert call("client", "GET", f"{path}/stats").status_code == 200


@pytest.mark.parametrize("path", ["/v2/models/other", "/v2/models/toy/versions/2"])
@pytest.mark.parametrize("end", ["", "/ready", "/config", "/stats"])
def test_other_models_and_versions_are_not_found(call, path, end):
    missed = call("client", "GET", path + end)
    assert missed.status_code == 404
    assert set(missed.json()) == {"error"}


def test_overloaded_engine_gives_503_and_counts_as_failure(call, engine):
    engine.error = EngineOverloadedError(
        "too many images wait to be served; try again in a moment."
    )
    response = call("client", "POST", URL, json={"inputs": [tensor()]})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json() == {"error": str(engine.error)}
    stats = call("client", "GET", "/v2/models/stats").json()["model_stats"][0]
    assert stats["inference_stats"]["fail"]["count"] == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BittaError("the server is shutting down; try again soon."), 503),
        (InputError("the images are too small."), 422),
    ],
)
def test_error_of_the_engine_keeps_its_message(call, engine, error, status):
    engine.error = error
    response = call("client", "POST", URL, json={"inputs": [tensor()]})
    assert (response.status_code, response.json()) == (status, {"error": str(error)})


@pytest.mark.parametrize("extra_settings", [{"limits": {"response_seconds": 0.2}}])
def test_slow_engine_gives_504_after_timeout(call, engine):
    engine.is_stuck = True
    response = call("client", "POST", URL, json={"inputs": [tensor()]})
    assert response.status_code == 504  # not 503, after which a client sends a prediction again
    assert "too busy" in response.json()["error"]


def test_unexpected_error_gets_error_body_of_the_protocol(call, engine):
    engine.error = RuntimeError("inside")
    response = call("client", "POST", URL, json={"inputs": [tensor()]})
    assert response.status_code == 500
    assert set(response.json()) == {"error"}
    assert "inside" not in response.text


def test_live_fails_when_the_worker_ended(call, engine):
    assert call(None, "GET", "/v2/health/live").json() == {"live": True}
    engine.is_alive = False
    assert call(None, "GET", "/v2/health/live").status_code == 503
    assert call(None, "GET", "/v2/health/ready").status_code == 503


def test_ready_fails_when_the_worker_does_not_respond(call, engine, monkeypatch):
    monkeypatch.setattr("bitta.server.api.status._HEALTH_SECONDS", 0.0)
    assert call(None, "GET", "/v2/health/ready").json() == {"ready": True}
    monkeypatch.setattr("bitta.server.api.status._CHECK_TIMEOUT_SECONDS", 0.1)
    engine.is_stuck = True
    response = call(None, "GET", "/v2/health/ready")
    assert response.status_code == 503
    assert "not responded" in response.json()["error"]
    assert call("client", "GET", "/v2/models/toy/ready").status_code == 503
    index = call("client", "POST", "/v2/repository/index").json()
    assert index[0]["state"] == "UNAVAILABLE"


def test_ready_succeeds_during_a_long_step_that_serves(call, engine, monkeypatch):
    monkeypatch.setattr("bitta.server.api.status._CHECK_TIMEOUT_SECONDS", 2.0)
    engine.is_stuck, engine.idle_seconds = True, 0.0
    assert call(None, "GET", "/v2/health/ready").json() == {"ready": True}


def test_ready_fails_when_the_store_cannot_write(call, store, monkeypatch):
    def full(_):
        failed = Future()
        failed.set_exception(StoreFull("there is no room left."))
        return failed

    monkeypatch.setattr(store, "expire_questions", full)
    response = call(None, "GET", "/v2/health/ready")
    assert response.status_code == 503
    assert "cannot be written" in response.json()["error"]


def test_statistics_count_images(call):
    call("client", "POST", URL, json={"inputs": [tensor(3)]})
    stats = call("client", "GET", "/v2/models/toy/stats").json()["model_stats"][0]
    assert stats["inference_count"] == 3
    assert stats["execution_count"] == 1
    assert stats["inference_stats"]["success"]["ns"] > 0


def test_logits_are_in_class_order(call):
    body = {"inputs": [tensor(value=0.0)], "outputs": [{"name": "logits"}]}
    response = call("client", "POST", URL, json=body)
    np.testing.assert_allclose(outputs(response)["logits"], [-0.1, -3, -3], rtol=1e-6)
