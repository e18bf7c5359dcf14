"""The app with the real engine: windows, questions, learning, rollback."""

import time

import pytest
from starlette.testclient import TestClient

from bitta.server.api import create_app
from bitta.server.engine import EngineOverloadedError
from bitta.server.settings import load_settings
from server.api.fakes import silent_log
from small_engine import CLASSES, WINDOW, images, running


@pytest.fixture
def client(tmp_path):
    settings = load_settings({"data_dir": tmp_path}, environment={})
    with running(tmp_path) as (engine, store):
        app = create_app(
            engine,
            store,
            settings,
            errors={EngineOverloadedError: (503, "unavailable")},
            log=silent_log(),
        )
        token = store.keys.create("operator", "Ada").token
        with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as opened:
            yield opened


def infer(client, number):
    batch = images(number)
    body = {
        "inputs": [
            {
                "name": "image",
                "datatype": "FP32",
                "shape": list(batch.shape),
                "data": batch.ravel().tolist(),
            }
        ],
        "outputs": [{"name": "prediction_id"}, {"name": "label"}],
    }
    response = client.post("/v2/models/toy/infer", json=body)
    assert response.status_code == 200, response.text
    return {each["name"]: each["data"] for each in response.json()["outputs"]}


def test_answer_to_a_question_is_learned_from(client):
    served = infer(client, 0)
    assert len(served["prediction_id"]) == WINDOW
    assert set(served["label"]) <= set(CLASSES)
    question = client.get("/v1/queue/next?wait=25").json()["question"]
    assert question["prediction_id"] in served["prediction_id"]
    assert client.get(question["image_url"]).headers["content-type"] == "image/png"
    body = {"prediction_id": question["prediction_id"], "verdict": "incorrect",
            "lease": question["lease"]["token"]}  # fmt: skip
    given = client.post("/v1/feedback", json=body, headers={"Idempotency-Key": "k"})
    assert given.status_code == 201
    for number in range(1, 100):
        if client.get("/v1/feedback").json()["feedback"][0]["status"] == "applied":
            break
        infer(client, number)
        time.sleep(0.5)  # Otherwise images wait to be stored, and the update waits behind them.
    else:
        pytest.fail("the answer was not applied")
    undone = client.post(f"/v1/feedback/{given.json()['id']}/undo").json()
    assert undone["applied"] is True


def test_rollback_and_pause_change_the_status(client):
    infer(client, 0)
    snapshot = client.post("/v1/snapshots").json()
    body = {"snapshot_id": snapshot["id"], "reason": "to see"}
    assert client.post("/v1/rollback", json=body).json()["model_version"].startswith("2.")
    assert client.get("/v1/status").json()["model"]["version"].startswith("2.")
    client.post("/v1/adaptation/pause", json={"reason": "night"})
    assert client.get("/v1/status").json()["learning"]["reason"] == "night"
    assert client.post("/v1/adaptation/resume").json() == {"state": "on"}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert "bitta_model_distance" in client.get("/metrics").text
