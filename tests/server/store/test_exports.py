"""Tests that exports hold every answer, in the formats that other tools read."""

import csv
import io
import json
from dataclasses import fields

import pytest

from bitta.errors import SettingError
from bitta.records import FeedbackRecord
from bitta.server.store import reader
from bitta.server.store.exports import COLUMNS, MEDIA_TYPES, export_records
from server.store.factories import new_answer, new_question, prediction_id, served_batch


@pytest.fixture
def answered(store):
    store.log_served_batch(served_batch(range(3)))
    store.add_questions([new_question(0, reason="audit")])
    store.add_answer(new_answer(0, by="anna@example.org", key="a", lead_time_ms=1500))
    store.add_answer(
        new_answer(0, "skip", by="bert", key="b", comment="=HYPERLINK(1)", metadata={"x": 1})
    )
    store.add_answer(new_answer(1, by="bert", key="c"))
    store.add_answer(new_answer(1, "incorrect", by="bert", key="d", comment='a "b",\nc')).result()
    return store


def written(store, form):
    return "".join(export_records(form, store.all_feedback()))


def labelstudio_tasks(store):
    names = store.keys.names()
    pieces = export_records("labelstudio", store.all_feedback(), annotator_names=names)
    return json.loads("".join(pieces))


def test_jsonl_has_every_field_of_every_answer(answered):
    rows = [json.loads(line) for line in written(answered, "jsonl").splitlines()]
    assert [row["idempotency_key"] for row in rows] == ["a", "b", "c", "d"]
    assert all(tuple(row) == COLUMNS for row in rows)
    assert set(COLUMNS) == {field.name for field in fields(FeedbackRecord)} - {"repeated"}
    assert rows[0]["selection_reason"] == "audit"
    assert rows[1]["metadata"] == {"x": 1}
    assert (rows[2]["status"], rows[2]["standing"]) == ("superseded", False)
    assert rows[3]["supersedes_id"] == rows[2]["id"]


def test_csv_is_read_back_without_formulas(answered):
    rows = list(csv.DictReader(io.StringIO(written(answered, "csv"))))
    assert [row["idempotency_key"] for row in rows] == ["a", "b", "c", "d"]
    assert rows[1]["comment"] == "'=HYPERLINK(1)"
    assert rows[1]["metadata"] == '{"x": 1}'
    assert rows[3]["comment"] == 'a "b",\nc'
    assert (rows[0]["comment"], rows[2]["standing"]) == ("", "false")


def test_labelstudio_has_a_task_per_prediction_with_standing_answers(answered):
    first, second = json.loads(written(answered, "labelstudio"))
    assert first["data"]["prediction_id"] == prediction_id(0)
    assert first["data"]["image"] == f"/v1/predictions/{prediction_id(0)}/image"
    verdict, skip = first["annotations"]
    assert verdict["result"][0]["value"] == {"choices": ["correct"]}
    assert (verdict["was_cancelled"], verdict["lead_time"]) == (False, 1.5)
    assert verdict["completed_by"] == {"email": "anna@example.org"}
    assert (skip["was_cancelled"], skip["result"]) == (True, [])
    assert "completed_by" not in skip
    assert first["meta"]["answers"][1]["annotator_id"] == "bert"
    assert first["predictions"][0]["score"] == 0.5
    (only,) = second["annotations"]
    assert only["result"][0]["value"] == {"choices": ["incorrect"]}


@pytest.mark.parametrize(
    ("owner", "completed_by"),
    [
        ("anna@example.org", {"email": "anna@example.org"}),
        ("Anna", None),
        ("night shift @ plant 2.1", None),
        ("anna@plant", None),
        ("a@b@example.org", None),
    ],
)
def test_labelstudio_names_annotators_by_the_names_of_their_keys(store, owner, completed_by):
    """An annotator that answers over HTTP is identified by the id of the key."""
    key = store.keys.create("annotator", owner).record
    store.log_served_batch(served_batch(range(1)))
    store.add_answer(new_answer(0, by=key.id, key="a")).result()
    store.keys.revoke(key.id)
    (task,) = labelstudio_tasks(store)
    (annotation,) = task["annotations"]
    assert annotation.get("completed_by") == completed_by
    (choice,) = annotation["result"]
    assert task["meta"]["answers"] == [choice["meta"]]
    assert choice["meta"]["annotator_id"] == key.id
    assert choice["meta"]["annotator_name"] == owner


def test_labelstudio_lists_skips_in_the_metadata(store):
    key = store.keys.create("annotator", "Bert").record
    store.log_served_batch(served_batch(range(1)))
    store.add_answer(new_answer(0, "skip", by=key.id, key="a", comment="too dark")).result()
    (task,) = labelstudio_tasks(store)
    assert task["annotations"][0]["result"] == []
    (said,) = task["meta"]["answers"]
    assert (said["annotator_id"], said["annotator_name"]) == (key.id, "Bert")
    assert (said["verdict"], said["comment"]) == ("skip", "too dark")


@pytest.mark.parametrize(("form", "empty"), [("jsonl", ""), ("labelstudio", "[]\n")])
def test_export_without_answers_is_empty(store, form, empty):
    assert written(store, form) == empty


def test_export_reads_all_pages(answered, monkeypatch):
    whole = written(answered, "jsonl")
    for page in (1, 2, 3, 4):
        monkeypatch.setattr(reader, "_PAGE_ROWS", page)
        assert written(answered, "jsonl") == whole


def test_unknown_format_raises():
    assert set(MEDIA_TYPES) == {"jsonl", "csv", "labelstudio"}
    with pytest.raises(SettingError, match="unknown export format 'jsn'; did you mean 'jsonl'"):
        export_records("jsn", [])
