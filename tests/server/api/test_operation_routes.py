"""Routes for operation and the pages, and the form of errors."""

import asyncio
from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bitta.server.store import StoreUnavailable


def test_snapshots_are_listed_and_rolled_back_to(call, engine):
    first = call("operator", "POST", "/v1/snapshots", json={})
    assert first.status_code == 201
    assert first.json()["model_version"] == "1.0"
    engine.learn()
    call("operator", "POST", "/v1/snapshots")
    listed = call("operator", "GET", "/v1/snapshots").json()["snapshots"]
    assert [each["model_version"] for each in listed] == ["1.1", "1.0"]
    body = {"snapshot_id": first.json()["id"], "reason": "worse"}
    assert call("operator", "POST", "/v1/rollback", json=body).json() == {"model_version": "2.0"}
    newest = call("operator", "GET", "/v1/snapshots").json()["snapshots"][0]
    assert (newest["model_version"], newest["reason"]) == ("2.0", "rollback")


def test_unknown_snapshot_is_not_found(call):
    refused = call("operator", "POST", "/v1/rollback", json={"snapshot_id": "none"})
    assert refused.status_code == 404
    assert "no snapshot 'none'" in refused.json()["error"]


def test_learning_pauses_with_reason_and_resumes(call):
    paused = call("operator", "POST", "/v1/adaptation/pause", json={"reason": "<i>night</i>"})
    assert paused.json() == {"state": "paused"}
    learning = call("operator", "GET", "/v1/status").json()["learning"]
    assert (learning["state"], learning["reason"]) == ("paused", "<i>night</i>")
    assert call("operator", "POST", "/v1/adaptation/resume", json={}).json() == {"state": "on"}


def test_status_has_model_counts_and_caller(call, engine, answer):
    first, second = engine.ask(2)
    answer("annotator", first, key="a")
    answer("annotator", second, "skip", key="b")
    response = call("annotator", "GET", "/v1/status").json()
    assert response["model"] == {
        "name": "toy", "classes": ["cat", "dog", "<b>bird</b>"], "version": "1.0", "weights": None
    }  # fmt: skip
    assert response["questions"] == {
        "open": 1, "asked": 2, "answered": 1, "skipped": 1, "expired": 0
    }  # fmt: skip
    assert response["audits"]["accuracy"] == 0.75
    assert response["history"]["at"] == [10_500_000]
    assert response["history"]["latency_ms"] == [None]
    assert response["me"]["answered"] == response["me"]["answered_today"] == 1
    assert [each["name"] for each in response["annotators"]] == ["Annotator"]


@pytest.mark.parametrize("path", ["/v1/status", "/metrics"])
def test_engine_status_is_read_outside_the_event_loop(call, engine, monkeypatch, path):
    read, waiting = engine.status, []

    def status():
        with suppress(RuntimeError):
            waiting.append(asyncio.get_running_loop())
        return read()

    monkeypatch.setattr(engine, "status", status)
    assert call("operator", "GET", path).status_code == 200
    assert waiting == []


def test_only_operators_see_other_annotators(call, engine, answer):
    (asked,) = engine.ask()
    answer("annotator", asked, key="a")
    assert call("client", "GET", "/v1/status").json()["annotators"] == []
    (shown,) = call("operator", "GET", "/v1/status").json()["annotators"]
    assert (shown["name"], shown["answered"], shown["agreement"]) == ("Annotator", 1, None)


def test_status_shows_rollback_by_the_guard(call, engine, store):
    snapshot = engine.snapshot("asked").result()
    engine.rollback(snapshot.id, by="guard", reason="entropy fell")
    response = call("operator", "GET", "/v1/status").json()["collapse"]
    assert response == {"state": "rolled back", "reasons": ["entropy fell"]}


def test_questions_are_listed_with_their_reason(call, engine):
    engine.ask(reason="audit")
    (shown,) = call("operator", "GET", "/v1/questions?status=open").json()["questions"]
    assert (shown["reason"], shown["status"]) == ("audit", "open")
    assert call("operator", "GET", "/v1/questions?status=closed").json()["questions"] == []


def test_deleted_image_is_gone_from_disk_and_memory(call, engine, store):
    (asked,) = engine.ask()
    name = store.find_prediction(asked).input_sha256
    assert call("operator", "DELETE", f"/v1/images/{name}").json() == {"deleted": name}
    assert engine.forgotten_hashes == [name]
    assert store.images.read(name) is None
    assert call("operator", "GET", f"/v1/predictions/{asked}/image").status_code == 404
    assert call("operator", "DELETE", f"/v1/images/{name}").status_code == 404
    assert call("operator", "DELETE", "/v1/images/..%2f..%2fkeys").status_code in (404, 422)
    assert call("annotator", "GET", "/v1/queue/next").json()["question"]["image_url"] is None


def test_metrics_are_in_prometheus_format(call, engine, answer):
    (asked,) = engine.ask()
    answer("annotator", asked, "incorrect", key="a")
    image = {"name": "image", "datatype": "FP32", "shape": [1, 3, 4, 4], "data": [0.5] * 48}
    call("client", "POST", "/v2/models/toy/infer", json={"inputs": [image]})
    text = call("client", "GET", "/metrics").text
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values[("bitta_answers_total", "incorrect")] == 1
    assert values[("bitta_requests_total", "POST", "/v1/feedback", "201")] == 1
    assert values[("bitta_request_seconds_count", "/v1/feedback")] == 1
    assert values[("bitta_model_distance",)] == 0.125
    assert values[("bitta_questions_total",)] == 1
    assert values[("bitta_served_total",)] == 2
    assert values[("bitta_images_failed_total",)] == 0
    assert values[("bitta_predictions_total",)] == 1
    assert values[("bitta_requests_total", "POST", "/v2/models/{model}/infer", "200")] == 1
    assert values[("bitta_audit_accuracy_low",)] == 0.3


def test_unavailable_store_gives_503(call, store, monkeypatch, answer):
    def full(_):
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(store, "add_answer", full)
    refused = answer("annotator", "x", key="a")
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert refused.headers["retry-after"] == "1"


def test_unexpected_error_gives_500_without_details(call, store, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("secret path /etc")

    monkeypatch.setattr(store, "snapshots", broken)
    failed = call("operator", "GET", "/v1/snapshots", headers={"X-Request-Id": "r-1"})
    assert failed.status_code == 500
    assert "secret" not in failed.text
    assert "r-1" in failed.json()["error"]
    assert failed.headers["x-request-id"] == "r-1"


@pytest.mark.parametrize("path", ["/v1/status", "/v2", "/annotate", "/nothing"])
def test_response_has_request_id_and_security_headers(call, path):
    first, second = call("operator", "GET", path), call("operator", "GET", path)
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert first.headers["x-content-type-options"] == "nosniff"
    assert "default-src" in first.headers["content-security-policy"]
    own = call("operator", "GET", path, headers={"X-Request-Id": "mine:1"})
    assert own.headers["x-request-id"] == "mine:1"
    evil = call("operator", "GET", path, headers={"X-Request-Id": "a" * 65})
    assert evil.headers["x-request-id"] != "a" * 65


@pytest.mark.parametrize("path", ["/annotate", "/operate"])
def test_page_has_strict_policy_and_needs_no_key(http, path):
    page = http.get(path)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'")
    assert "unsafe" not in policy
    again = http.get(path, headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize(
    "path",
    [
        "/static/../__init__.py",
        "/static/..%2f__init__.py",
        "/static/%2e%2e/%2e%2e/settings.py",
        "/static//etc/passwd",
        "/static/....//style.css",
        "/static/style.css%00.js",
        "/static/",
        "/static/annotate.html",
        "/static/style.css/",
    ],
)
def test_path_outside_the_pages_is_not_found(http, path):
    assert http.get(path).status_code == 404


def test_static_files_have_content_types(http):
    assert http.get("/static/style.css").headers["content-type"].startswith("text/css")
    assert http.get("/static/api.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("path", ["/v1/nothing", "/v2/nothing", "/v2/models/toy/nothing", "/x"])
def test_unknown_path_is_not_found(call, path):
    missed = call("operator", "GET", path)
    assert missed.status_code == 404
    assert set(missed.json()) == ({"error"} if path.startswith("/v2") else {"error", "code"})


def test_wrong_method_lists_the_allowed_ones(call):
    refused = call("operator", "PUT", "/v1/rollback", json={})
    assert refused.status_code == 405
    assert refused.headers["allow"] == "POST"
    assert "allowed: POST" in refused.json()["error"]
    assert set(call("client", "GET", "/v2/repository/index").json()) == {"error"}
