"""Tables of the database, and conversion of their rows to records.

The tables are the same on SQLite and PostgreSQL. Times are microseconds, JSON is stored as text.
"""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    select,
    text,
)

from bitta.records import FeedbackRecord
from bitta.server.store.records import StoredQuestion

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_SEQ = BigInteger().with_variant(Integer, "sqlite")
"""SQLite increments only columns of the type INTEGER."""
_ID = String(26)

events = Table(
    "events",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("body", Text, nullable=False),
    Index("ix_events_kind_seq", "kind", "seq"),
    sqlite_autoincrement=True,
)

predictions = Table(
    "predictions",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("event_seq", _SEQ, ForeignKey("events.seq"), nullable=False),
    Column("position", BigInteger, nullable=False, index=True),
    Column("request_id", Text, nullable=False),
    Column("model_name", Text, nullable=False),
    Column("model_version", String(40), nullable=False),
    Column("input_sha256", String(64), nullable=False, index=True),
    Column("class_index", Integer, nullable=False),
    Column("label", Text, nullable=False),
    Column("confidence", Float(53), nullable=False),
    Column("served_at", BigInteger, nullable=False),
)

questions = Table(
    "questions",
    metadata,
    Column("prediction_id", _ID, ForeignKey("predictions.id"), primary_key=True),
    Column("asked_seq", _SEQ, ForeignKey("events.seq"), nullable=False),
    Column("window", BigInteger, nullable=False),
    Column("row", Integer, nullable=False),
    Column("uncertainty", Float(53), nullable=False),
    Column("reason", String(20), nullable=False),
    Column("status", String(20), nullable=False),
    Column("overlap", Integer, nullable=False),
    Column("asked_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index("ix_questions_status_window", "status", "window"),
)

leases = Table(
    "leases",
    metadata,
    Column("prediction_id", _ID, ForeignKey("questions.prediction_id"), primary_key=True),
    Column("annotator_id", String(200), primary_key=True),
    Column("token", String(64), nullable=False),
    Column("until", BigInteger, nullable=False),
)

feedback = Table(
    "feedback",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("idempotency_key", String(200), nullable=False, unique=True),
    Column("seq", _SEQ, ForeignKey("events.seq"), nullable=False, unique=True),
    Column("prediction_id", _ID, ForeignKey("predictions.id"), nullable=False),
    Column("uncertainty", Float(53)),
    Column("selection_reason", String(20)),
    Column("verdict", String(20), nullable=False),
    Column("annotator_id", String(200), nullable=False),
    Column("annotator_kind", String(20), nullable=False),
    Column("comment", Text),
    Column("metadata", Text),
    Column("shown_at", BigInteger),
    Column("answered_at", BigInteger, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    Column("lead_time_ms", BigInteger),
    Column("status", String(20), nullable=False),
    Column("supersedes_id", _ID, ForeignKey("feedback.id")),
    Column("applied_in_version", String(40)),
    Column("weight", Float(53), nullable=False),
    Column("standing", Boolean, nullable=False),
    Column("undone_seq", _SEQ, ForeignKey("events.seq")),
    Column("claimed_at", BigInteger),
    Column("applied_lineage", Integer),
    Column("applied_step", BigInteger),
    Index("ix_feedback_status_seq", "status", "seq"),
    Index("ix_feedback_selection_reason_seq", "selection_reason", "seq"),
    Index("ix_feedback_annotator_id_seq", "annotator_id", "seq"),
    Index("ix_feedback_applied_lineage_applied_step", "applied_lineage", "applied_step"),
    Index("ix_feedback_prediction_id_annotator_id", "prediction_id", "annotator_id"),
    Index(
        "uq_feedback_standing",
        "prediction_id",
        "annotator_id",
        unique=True,
        sqlite_where=text("standing"),
        postgresql_where=text("standing"),
    ),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("seq", _SEQ, ForeignKey("events.seq"), nullable=False, unique=True),
    Column("model_version", String(40), nullable=False),
    Column("lineage", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("path", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("weights_hash", String(64), nullable=False),
    Column("reason", String(20), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("dropped_at", BigInteger),
)

keys = Table(
    "keys",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("role", String(20), nullable=False),
    Column("name", String(200), nullable=False),
    Column("token_hash", String(64), nullable=False, unique=True),
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
)

images = Table(
    "images",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("n_bytes", BigInteger, nullable=False),
    Column("shape", Text, nullable=False),
    Column("dtype", String(20), nullable=False),
    Column("kept_at", BigInteger, nullable=False),
    Column("deleted_at", BigInteger),
)

_PREDICTION_COLUMNS = (
    "request_id",
    "model_name",
    "model_version",
    "input_sha256",
    "confidence",
)
"""Columns of a prediction in the record of an answer."""
_INTERNAL_FEEDBACK_COLUMNS = (
    "metadata",
    "standing",
    "undone_seq",
    "claimed_at",
    "applied_lineage",
    "applied_step",
)
"""Columns of an answer that its record does not show, or shows in another form."""
_QUESTION_PREDICTION_COLUMNS = (
    "class_index",
    "label",
    "confidence",
    "model_version",
    "input_sha256",
)
"""Columns of a prediction in `StoredQuestion`."""


def select_feedback() -> Select[Any]:
    """Select answers with their predictions. `to_feedback` reads the rows."""
    return select(
        *(column for column in feedback.c if column.name not in _INTERNAL_FEEDBACK_COLUMNS),
        *(predictions.c[name] for name in _PREDICTION_COLUMNS),
        predictions.c.class_index.label("predicted_class"),
        predictions.c.label.label("predicted_label"),
        feedback.c["metadata"],
        feedback.c.standing,
        feedback.c.undone_seq.is_not(None).label("undone"),
    ).select_from(feedback.join(predictions))


def to_feedback(row: Mapping[Any, Any]) -> FeedbackRecord:
    """Convert a row of `select_feedback`."""
    json_text = row["metadata"]
    fields = dict(row) | {
        "metadata": None if json_text is None else json.loads(json_text),
        "standing": bool(row["standing"]),
        "undone": bool(row["undone"]),
    }
    return FeedbackRecord(**fields)


def question_columns() -> list[ColumnElement[Any]]:
    """Return the columns of `StoredQuestion`, for a join of questions and predictions."""
    return [*questions.c, *(predictions.c[name] for name in _QUESTION_PREDICTION_COLUMNS)]


def to_question(row: Mapping[Any, Any]) -> StoredQuestion:
    """Convert a row of `question_columns`. Other columns are ignored."""
    return StoredQuestion(**{name: row[name] for name in StoredQuestion.__dataclass_fields__})
