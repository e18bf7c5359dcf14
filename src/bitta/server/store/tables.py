"""The tables, the same on SQLite and PostgreSQL. Times are microseconds, JSON is text."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_SEQ = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts only in a column that is called INTEGER."""
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
    Column("step", BigInteger, nullable=False),
    Column("row", Integer, nullable=False),
    Column("uncertainty", Float(53), nullable=False),
    Column("reason", String(20), nullable=False),
    Column("status", String(20), nullable=False),
    Column("overlap", Integer, nullable=False),
    Column("asked_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index("ix_questions_status_step", "status", "step"),
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
    Column("taken_at", BigInteger),
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
