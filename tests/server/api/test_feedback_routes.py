"""Routes for questions, feedback, exports and pictures."""

import io
import json
import threading
import time
from dataclasses import MISSING, fields

import numpy as np
import pytest
from PIL import Image

from bitta.records import MAX_COMMENT_LENGTH, SubmittedAnswer
from bitta.server.api.schemas import FeedbackRequest
from bitta.server.store import NewImage, now
from bitta.server.store.exports import parse_exported_answer


def test_question_has_lease_and_its_answer_is_stored(call, answer, engine, store):
    (asked,) = engine.ask()
    response = call("annotator", "GET", "/v1/queue/next").json()
    question = response["question"]
    assert response["left"] == 1
    assert question["prediction_id"] == asked
    assert question["label"] in ("cat", "dog")
    assert question["reason_shown"] is None
    assert question["image_url"] == f"/v1/predictions/{asked}/image"
    assert question["input_sha256"] == store.find_prediction(asked).input_sha256
    assert question["asked_at"] < question["lease"]["until"] <= question["expires_at"]
    record = answer("annotator", asked, "incorrect", key="a", lease=question["lease"]["token"])
    assert record.status_code == 201
    assert record.json()["verdict"] == "incorrect"
    assert record.json()["selection_reason"] == "uncertain"
    assert call("annotator", "GET", "/v1/queue/next").status_code == 204


def test_two_annotators_get_different_questions(call, engine, store, tokens):
    engine.ask(2)
    tokens["other"] = store.keys.create("annotator", "Other").token
    first = call("annotator", "GET", "/v1/queue/next").json()["question"]["prediction_id"]
    second = call("other", "GET", "/v1/queue/next").json()["question"]["prediction_id"]
    assert first != second


def test_next_question_leaves_out_excluded_ones(call, engine):
    engine.ask(2)
    first = call("annotator", "GET", "/v1/queue/next").json()["question"]["prediction_id"]
    again = call("annotator", "GET", "/v1/queue/next").json()["question"]["prediction_id"]
    other = call("annotator", "GET", f"/v1/queue/next?exclude={first}").json()
    assert again == first
    assert other["question"]["prediction_id"] != first


def test_wait_ends_when_a_question_is_asked(call, engine):
    began = time.monotonic()
    threading.Timer(0.3, engine.ask).start()
    response = call("annotator", "GET", "/v1/queue/next?wait=25")
    assert response.status_code == 200
    assert 0.2 < time.monotonic() - began < 20


def test_wait_without_question_times_out(call):
    began = time.monotonic()
    assert call("annotator", "GET", "/v1/queue/next?wait=0.3").status_code == 204
    assert 0.3 <= time.monotonic() - began < 20


def test_question_without_image_has_no_image_url(call, engine):
    (asked,) = engine.ask(keep=False)
    question = call("annotator", "GET", "/v1/queue/next").json()["question"]
    assert question["image_url"] is None
    assert call("annotator", "GET", f"/v1/predictions/{asked}/image").status_code == 404


def test_repeated_request_returns_the_stored_record(answer, engine, call):
    (asked,) = engine.ask()
    first = answer("annotator", asked, key="same")
    again = answer("annotator", asked, key="same")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert len(call("annotator", "GET", "/v1/feedback").json()["feedback"]) == 1


def test_idempotency_key_with_other_body_is_refused(answer, engine):
    (asked,) = engine.ask()
    answer("annotator", asked, "correct", key="same")
    refused = answer("annotator", asked, "incorrect", key="same")
    assert refused.status_code == 422
    assert refused.json()["code"] == "conflict"


@pytest.mark.parametrize("verdict", ["yes", 1, True, "on", "Correct", None, ["correct"], ""])
def test_invalid_verdict_is_refused(answer, engine, verdict):
    (asked,) = engine.ask()
    refused = answer("annotator", asked, verdict, key="a")
    assert refused.status_code == 422
    assert refused.json()["code"] == "invalid"
    assert "'correct', 'incorrect' or 'skip'" in refused.json()["error"]


def test_request_has_the_fields_and_defaults_of_a_submitted_answer():
    request = {
        name: MISSING if field.is_required() else field.default
        for name, field in FeedbackRequest.model_fields.items()
    }
    assert request == {field.name: field.default for field in fields(SubmittedAnswer)}


def test_export_of_the_longest_comment_can_be_imported(answer, engine, call):
    (asked,) = engine.ask()
    comment = "\N{GRINNING FACE}" * MAX_COMMENT_LENGTH
    assert answer("annotator", asked, key="a", comment=comment).status_code == 201
    exported = call("operator", "GET", "/v1/feedback/export").text
    assert parse_exported_answer(exported).answer.comment == comment


@pytest.mark.parametrize(
    "changes",
    [
        {"verdct": "correct"},
        {"comment": 3},
        {"comment": "a" * (MAX_COMMENT_LENGTH + 1)},
        {"comment": "nul \x00"},
        {"metadata": []},
        {"metadata": {"deep": [[[[[[[[[[1]]]]]]]]]]}},
        {"shown_at": "today"},
        {"shown_at": 1.5},
        {"shown_at": -1},
        {"answered_at": "now"},
        {"answered_at": -1},
        {"lead_time_ms": 2**60},
        {"annotator_kind": "human"},
    ],
)
def test_invalid_field_is_refused(answer, engine, changes):
    (asked,) = engine.ask()
    refused = answer("annotator", asked, key="a", **changes)
    assert refused.status_code == 422
    assert refused.json()["error"].endswith(".")


def test_late_answer_keeps_its_answered_at(answer, engine):
    (asked,) = engine.ask()
    earlier = now() - 3_600_000_000
    stored = answer("annotator", asked, key="a", answered_at=earlier)
    assert stored.status_code == 201
    assert stored.json()["answered_at"] == earlier
    assert stored.json()["received_at"] >= earlier + 3_600_000_000
    assert answer("annotator", asked, key="a", answered_at=earlier).status_code == 200


def test_answered_at_in_the_future_counts_as_now(answer, engine):
    (asked,) = engine.ask()
    ahead = now() + 3_600_000_000
    stored = answer("annotator", asked, key="a", answered_at=ahead)
    assert stored.status_code == 201
    assert stored.json()["answered_at"] == stored.json()["received_at"]
    assert answer("annotator", asked, key="a", answered_at=ahead).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000, b"NaN"])
def test_body_that_is_no_object_is_refused(call, body):
    headers = {"Idempotency-Key": "a", "Content-Type": "application/json"}
    refused = call("annotator", "POST", "/v1/feedback", content=body, headers=headers)
    assert refused.status_code in (400, 422)
    assert set(refused.json()) == {"error", "code"}


@pytest.mark.parametrize("body", [b'{"a": NaN}', b'{"a": Infinity}', b'{"a": "\\ud800"}'])
def test_metadata_with_invalid_values_is_refused(call, engine, body):
    (asked,) = engine.ask()
    content = b'{"prediction_id": "%s", "verdict": "correct", "metadata": %s}' % (
        asked.encode(),
        body,
    )
    headers = {"Idempotency-Key": "a", "Content-Type": "application/json"}
    refused = call("annotator", "POST", "/v1/feedback", content=content, headers=headers)
    assert refused.status_code == 422


@pytest.mark.parametrize("key", [None, "", "a" * 201, "with space", "ümlaut".encode()])
def test_missing_or_invalid_idempotency_key_is_refused(call, engine, key):
    (asked,) = engine.ask()
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {"prediction_id": asked, "verdict": "correct"}
    refused = call("annotator", "POST", "/v1/feedback", json=body, headers=headers)
    assert refused.status_code == 422
    assert "dempotency" in refused.json()["error"]


def test_html_in_a_comment_is_returned_unchanged(answer, engine, call):
    (asked,) = engine.ask()
    script = "<script>alert(1)</script>"
    record = answer("annotator", asked, key="a", comment=script, metadata={script: script})
    assert record.json()["comment"] == script
    listed = call("annotator", "GET", "/v1/feedback")
    assert listed.headers["content-type"] == "application/json"
    assert listed.headers["x-content-type-options"] == "nosniff"
    assert listed.json()["feedback"][0]["metadata"] == {script: script}


def test_unknown_prediction_is_not_found(answer):
    refused = answer("annotator", "nothing", key="a")
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")


def test_answer_to_expired_question_is_gone(answer, engine):
    (asked,) = engine.ask(expires_in=0.05)
    time.sleep(0.1)
    refused = answer("annotator", asked, key="a")
    assert (refused.status_code, refused.json()["code"]) == (410, "expired")


def test_undo_tells_if_the_model_had_learned(answer, engine, call):
    first, second = engine.ask(2)
    kept = answer("annotator", first, key="a").json()["id"]
    learned = answer("annotator", second, key="b").json()["id"]
    engine.learn(learned)
    undone = call("annotator", "POST", f"/v1/feedback/{kept}/undo").json()
    assert (undone["undone"], undone["applied"]) == (kept, False)
    late = call("annotator", "POST", f"/v1/feedback/{learned}/undo").json()
    assert late["applied"] is True
    assert "already learned" in late["note"]
    assert call("annotator", "POST", f"/v1/feedback/{kept}/undo").status_code == 200


def test_only_operators_undo_answers_of_others(answer, engine, call):
    (asked,) = engine.ask()
    record = answer("annotator", asked, key="a").json()["id"]
    assert call("client", "POST", f"/v1/feedback/{record}/undo").status_code == 404
    assert call("operator", "POST", f"/v1/feedback/{record}/undo").status_code == 200


def test_second_answer_supersedes_the_first(answer, engine):
    (asked,) = engine.ask()
    first = answer("annotator", asked, "correct", key="a").json()
    second = answer("annotator", asked, "incorrect", key="b").json()
    assert second["supersedes_id"] == first["id"]


def test_list_has_pages_of_own_feedback(answer, engine, call):
    ids = engine.ask(3)
    for number, asked in enumerate(ids):
        answer("annotator", asked, key=f"a{number}")
    page = call("annotator", "GET", "/v1/feedback?limit=2").json()
    assert [each["prediction_id"] for each in page["feedback"]] == [ids[2], ids[1]]
    rest = call("annotator", "GET", f"/v1/feedback?limit=2&before={page['next']}").json()
    assert [each["prediction_id"] for each in rest["feedback"]] == [ids[0]]
    assert rest["next"] is None
    assert call("operator", "GET", "/v1/feedback?mine=true").json()["feedback"] == []
    assert len(call("operator", "GET", "/v1/feedback?mine=false").json()["feedback"]) == 3
    assert call("annotator", "GET", "/v1/feedback?mine=false").status_code == 403


def test_client_answers_about_its_own_prediction(answer, engine, call):
    image = np.zeros((1, 3, 4, 4), np.float32)
    served = engine.predict(image, request_id="r").result()
    record = answer("client", served.prediction_ids[0], "incorrect", key="a")
    assert record.status_code == 201
    assert record.json()["selection_reason"] is None


def test_image_is_png_of_the_model_input(call, engine, store):
    (asked,) = engine.ask()
    got = call("annotator", "GET", f"/v1/predictions/{asked}/image")
    assert got.headers["content-type"] == "image/png"
    assert got.headers["cache-control"] == "private, no-store"
    pixels = np.asarray(Image.open(io.BytesIO(got.content)))
    kept = store.images.read(store.find_prediction(asked).input_sha256)
    expected = np.frombuffer(kept, np.float32).reshape(3, 4, 4).transpose(1, 2, 0)
    np.testing.assert_array_equal(pixels, (expected * 255).round())


def test_annotator_gets_images_of_questions_only(call, engine, store):
    image = np.full((1, 3, 4, 4), 0.25, np.float32)
    served = engine.predict(image, request_id="r").result()
    store.keep_images([NewImage(image[0].tobytes(), (3, 4, 4), "float32")]).result()
    path = f"/v1/predictions/{served.prediction_ids[0]}/image"
    assert call("annotator", "GET", path).status_code == 404
    assert call("operator", "GET", path).status_code == 200


@pytest.mark.parametrize("name", ["..", "%2e%2e", "a/b", "a%00b", "é", "a" * 101])
def test_invalid_prediction_id_is_refused(call, name):
    got = call("operator", "GET", f"/v1/predictions/{name}/image")
    assert got.status_code in (404, 422)


def test_export_has_three_formats(answer, engine, call):
    first, second = engine.ask(2)
    answer("annotator", first, "correct", key="a", comment="=1+1")
    answer("annotator", second, "skip", key="b")
    lines = call("operator", "GET", "/v1/feedback/export").text.splitlines()
    assert [json.loads(line)["verdict"] for line in lines] == ["correct", "skip"]
    table = call("operator", "GET", "/v1/feedback/export?format=csv")
    assert table.headers["content-disposition"] == 'attachment; filename="feedback.csv"'
    assert table.text.splitlines()[0].startswith("id,idempotency_key,seq")
    tasks = call("operator", "GET", "/v1/feedback/export?format=labelstudio").json()
    assert sorted(task["annotations"][0]["was_cancelled"] for task in tasks) == [False, True]
    assert {task["meta"]["answers"][0]["annotator_name"] for task in tasks} == {"Annotator"}
    assert call("operator", "GET", "/v1/feedback/export?format=xml").status_code == 422


def test_image_of_answer_without_question_is_kept(call, engine):
    engine.ask(1)
    question = call("annotator", "GET", "/v1/queue/next").json()["question"]
    asked = {"prediction_id": question["prediction_id"], "verdict": "correct"}
    leased = asked | {"lease": question["lease"]["token"]}
    for number, body in enumerate([leased, asked]):
        headers = {"Idempotency-Key": f"k{number}"}
        assert call("annotator", "POST", "/v1/feedback", json=body, headers=headers).is_success
        assert engine.kept_answered_ids == [question["prediction_id"]] * number
