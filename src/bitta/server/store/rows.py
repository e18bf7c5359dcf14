"""Rows of the tables as records."""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, select

from bitta.records import FeedbackRecord
from bitta.server.store.records import (
    LearnableAnswer,
    StoredQuestion,
    StoredSnapshot,
)
from bitta.server.store.tables import feedback, predictions, questions

_OF_PREDICTION = ("request_id", "model_name", "model_version", "input_sha256", "confidence")
_INNER = (
    *("standing", "undone_seq", "taken_at", "applied_lineage", "applied_step"),
    "metadata",
)
_OF_QUESTION = ("class_index", "label", "confidence", "model_version", "input_sha256")


def feedback_records() -> Select[Any]:
    """Select answers with what they are about; for `as_feedback`."""
    own = [column for column in feedback.c if column.name not in _INNER]
    return select(
        *own,
        *(predictions.c[name] for name in _OF_PREDICTION),
        predictions.c.class_index.label("predicted_class"),
        predictions.c.label.label("predicted_label"),
        feedback.c["metadata"],
        feedback.c.standing,
        feedback.c.undone_seq.is_not(None).label("undone"),
    ).select_from(feedback.join(predictions))


def as_feedback(row: Mapping[Any, Any]) -> FeedbackRecord:
    """Read a row of `feedback_records`."""
    written = row["metadata"]
    fields = dict(row) | {
        "metadata": None if written is None else json.loads(written),
        "standing": bool(row["standing"]),
        "undone": bool(row["undone"]),
    }
    return FeedbackRecord(**fields)


def learnable() -> Select[Any]:
    """Select verdicts (no skips) with what the learner needs, by seq; for `as_answer`."""
    own = ("seq", "prediction_id", "verdict", "annotator_id", "weight", "status")
    return (
        select(
            feedback.c.id.label("feedback_id"),
            *(feedback.c[name] for name in own),
            feedback.c.applied_in_version,
            feedback.c.standing,
            predictions.c.class_index,
            predictions.c.position,
            predictions.c.input_sha256,
            questions.c.step,
            questions.c.row,
        )
        .select_from(
            feedback.join(predictions, predictions.c.id == feedback.c.prediction_id).outerjoin(
                questions, questions.c.prediction_id == feedback.c.prediction_id
            )
        )
        .where(feedback.c.verdict != "skip")
        .order_by(feedback.c.seq)
    )


def as_answer(row: Mapping[Any, Any]) -> LearnableAnswer:
    """Read a row of `learnable`."""
    return LearnableAnswer(**dict(row) | {"standing": bool(row["standing"])})


def question_columns() -> list[ColumnElement[Any]]:
    """Name the columns that `as_question` reads, of questions joined with predictions."""
    return [*questions.c, *(predictions.c[name] for name in _OF_QUESTION)]


def as_question(row: Mapping[Any, Any]) -> StoredQuestion:
    """Read a row of `question_columns`; further columns are left."""
    return StoredQuestion(**{name: row[name] for name in StoredQuestion.__dataclass_fields__})


def as_snapshot(row: Mapping[Any, Any]) -> StoredSnapshot:
    """Read a row of snapshots."""
    return StoredSnapshot(**row)
