"""The inference protocol over HTTP, byte by byte."""

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
from server.api.fakes import Overloaded

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
    """By name, of a response in JSON."""
    return {each["name"]: each["data"] for each in response.json()["outputs"]}


def test_json_inference_answers_what_is_asked(call, engine):
    body = {
        "id": "7",
        "inputs": [tensor(2)],
        "outputs": [{"name": "label"}, {"name": "prediction_id"}, {"name": "model_version"}],
    }
    said = call("client", "POST", URL, json=body, headers={"X-Request-Id": "req-9"})
    assert said.status_code == 200
    assert said.json()["id"] == "7"
    assert said.json()["model_name"] == "toy"
    got = outputs(said)
    assert set(got) == {"label", "prediction_id", "model_version"}
    assert got["label"] == ["dog", "dog"]
    assert len(set(got["prediction_id"])) == 2
    assert got["model_version"] == ["1.0", "1.0"]
    assert engine.requests == ["req-9"]


def test_no_content_type_is_needed_and_everything_comes_in_binary(call):
    content = json.dumps({"inputs": [tensor()]}).encode()
    said = call("client", "POST", URL, content=content)
    length = int(said.headers["inference-header-content-length"])
    described = json.loads(said.content[:length])["outputs"]
    assert {"logits", "label", "confidence", "prediction_id", "model_version"} <= {
        each["name"] for each in described
    }
    sizes = [each["parameters"]["binary_data_size"] for each in described]
    assert length + sum(sizes) == len(said.content)


def test_a_prediction_is_stored_under_the_id_that_was_answered(call, store, answer):
    body = {"inputs": [tensor()], "outputs": [{"name": "prediction_id"}]}
    (name,) = outputs(call("client", "POST", URL, json=body))["prediction_id"]
    assert answer("client", name, "incorrect", key="k").status_code == 201
    assert store.find_prediction(name).label == "dog"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_pictures_are_decoded(call, form):
    white = Image.new("RGB", (40, 30), (250, 250, 250))
    body = {"inputs": [picture(encoded(white, form))], "outputs": [{"name": "label"}]}
    assert outputs(call("client", "POST", URL, json=body))["label"] == ["dog"]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("more", [{"limits": {"burst": N_BROKEN + 100}}])
def test_pictures_with_bytes_changed_are_answered_or_refused(call):
    chance = random.Random(0)
    wholes = originals()
    statuses = set()
    for number in range(N_BROKEN):
        content = broken(wholes[number % len(wholes)], chance)
        said = call("client", "POST", URL, json={"inputs": [picture(content)]})
        assert said.status_code in (200, 400, 413, 422), (number, said.text)
        assert said.status_code == 200 or set(said.json()) == {"error"}
        statuses.add(said.status_code)
    assert statuses >= {200, 400}


def test_gzip_is_read_and_written(call):
    content = gzip.compress(json.dumps({"inputs": [tensor()]}).encode())
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    said = call("client", "POST", URL, content=content, headers=headers)
    assert said.status_code == 200
    assert said.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize("more", [{"limits": {"body_bytes": 20_000}}])
def test_a_bomb_is_refused(call):
    content = gzip.compress(b" " * 3_000_000)
    assert len(content) < 20_000
    said = call("client", "POST", URL, content=content, headers={"Content-Encoding": "gzip"})
    assert said.status_code == 413
    assert set(said.json()) == {"error"}


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
def test_what_cannot_be_read_is_refused_in_the_protocols_form(call, content, headers, status):
    said = call("client", "POST", URL, content=content, headers=headers)
    assert said.status_code == status
    assert set(said.json()) == {"error"}


@pytest.mark.parametrize("version", ["1.0", "1"])
def test_the_version_that_serves_may_be_named(call, version):
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


def test_an_engine_that_has_too_much_to_do_is_told_as_such(call, engine):
    engine.failing = Overloaded("too many images wait to be served; try again in a moment.")
    said = call("client", "POST", URL, json={"inputs": [tensor()]})
    assert said.status_code == 503
    assert said.headers["retry-after"] == "1"
    assert said.json() == {"error": str(engine.failing)}
    stats = call("client", "GET", "/v2/models/stats").json()["model_stats"][0]
    assert stats["inference_stats"]["fail"]["count"] == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BittaError("the server is shutting down; try again soon."), 503),
        (InputError("the images are too small."), 422),
    ],
)
def test_what_the_engine_refuses_is_told_in_its_words(call, engine, error, status):
    engine.failing = error
    said = call("client", "POST", URL, json={"inputs": [tensor()]})
    assert (said.status_code, said.json()) == (status, {"error": str(error)})


@pytest.mark.parametrize("more", [{"limits": {"answer_seconds": 0.2}}])
def test_a_request_does_not_wait_for_ever(call, engine):
    engine.stuck = True
    said = call("client", "POST", URL, json={"inputs": [tensor()]})
    assert said.status_code == 503
    assert "too busy" in said.json()["error"]


def test_a_failure_is_told_in_the_protocols_form(call, engine):
    engine.failing = RuntimeError("inside")
    said = call("client", "POST", URL, json={"inputs": [tensor()]})
    assert said.status_code == 500
    assert set(said.json()) == {"error"}
    assert "inside" not in said.text


def test_live_means_that_the_worker_goes_round(call, engine):
    assert call(None, "GET", "/v2/health/live").json() == {"live": True}
    engine.alive = False
    assert call(None, "GET", "/v2/health/live").status_code == 503
    assert call(None, "GET", "/v2/health/ready").status_code == 503


def test_ready_means_that_the_worker_answers(call, engine, monkeypatch):
    monkeypatch.setattr("bitta.server.api.health._FRESH", 0.0)
    assert call(None, "GET", "/v2/health/ready").json() == {"ready": True}
    monkeypatch.setattr("bitta.server.api.health._PATIENCE", 0.1)
    engine.stuck = True
    said = call(None, "GET", "/v2/health/ready")
    assert said.status_code == 503
    assert "not come round" in said.json()["error"]
    assert call("client", "GET", "/v2/models/toy/ready").status_code == 503
    index = call("client", "POST", "/v2/repository/index").json()
    assert index[0]["state"] == "UNAVAILABLE"


def test_ready_holds_inside_a_long_step_in_which_requests_are_served(call, engine, monkeypatch):
    monkeypatch.setattr("bitta.server.api.health._PATIENCE", 2.0)
    engine.stuck, engine.idle = True, 0.0
    assert call(None, "GET", "/v2/health/ready").json() == {"ready": True}


def test_ready_means_that_the_store_can_be_written(call, store, monkeypatch):
    def full(_):
        failed = Future()
        failed.set_exception(StoreFull("there is no room left."))
        return failed

    monkeypatch.setattr(store, "expire_questions", full)
    said = call(None, "GET", "/v2/health/ready")
    assert said.status_code == 503
    assert "cannot be written" in said.json()["error"]


def test_statistics_count_images(call):
    call("client", "POST", URL, json={"inputs": [tensor(3)]})
    stats = call("client", "GET", "/v2/models/toy/stats").json()["model_stats"][0]
    assert stats["inference_count"] == 3
    assert stats["execution_count"] == 1
    assert stats["inference_stats"]["success"]["ns"] > 0


def test_logits_are_in_the_order_of_the_classes(call):
    body = {"inputs": [tensor(value=0.0)], "outputs": [{"name": "logits"}]}
    said = call("client", "POST", URL, json=body)
    np.testing.assert_allclose(outputs(said)["logits"], [-0.1, -3, -3], rtol=1e-6)
