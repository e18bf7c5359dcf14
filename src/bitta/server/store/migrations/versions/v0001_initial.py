"""Initial schema: all tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create all tables."""
    _events()
    _images()
    _keys()
    _predictions()
    _snapshots()
    _feedback()
    _questions()
    _leases()


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_kind_seq", "events", ["kind", "seq"])


def _images() -> None:
    op.create_table(
        "images",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("n_bytes", sa.BigInteger, nullable=False),
        sa.Column("shape", sa.Text, nullable=False),
        sa.Column("dtype", sa.String(20), nullable=False),
        sa.Column("kept_at", sa.BigInteger, nullable=False),
        sa.Column("deleted_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("sha256", name="pk_images"),
    )


def _keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("revoked_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("token_hash", name="uq_keys_token_hash"),
    )


def _predictions() -> None:
    op.create_table(
        "predictions",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("event_seq", _SEQ, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("model_name", sa.Text, nullable=False),
        sa.Column("model_version", sa.String(40), nullable=False),
        sa.Column("input_sha256", sa.String(64), nullable=False),
        sa.Column("class_index", sa.Integer, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("confidence", sa.Float(53), nullable=False),
        sa.Column("served_at", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["event_seq"], ["events.seq"], name="fk_predictions_event_seq"),
        sa.PrimaryKeyConstraint("id", name="pk_predictions"),
    )
    op.create_index("ix_predictions_input_sha256", "predictions", ["input_sha256"])
    op.create_index("ix_predictions_position", "predictions", ["position"])


def _snapshots() -> None:
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("seq", _SEQ, nullable=False),
        sa.Column("model_version", sa.String(40), nullable=False),
        sa.Column("lineage", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("weights_hash", sa.String(64), nullable=False),
        sa.Column("reason", sa.String(20), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("dropped_at", sa.BigInteger),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"], name="fk_snapshots_seq"),
        sa.PrimaryKeyConstraint("id", name="pk_snapshots"),
        sa.UniqueConstraint("seq", name="uq_snapshots_seq"),
    )


def _feedback() -> None:
    op.create_table(
        "feedback",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("idempotency_key", sa.String(200), nullable=False),
        sa.Column("seq", _SEQ, nullable=False),
        sa.Column("prediction_id", sa.String(26), nullable=False),
        sa.Column("uncertainty", sa.Float(53)),
        sa.Column("selection_reason", sa.String(20)),
        sa.Column("verdict", sa.String(20), nullable=False),
        sa.Column("annotator_id", sa.String(200), nullable=False),
        sa.Column("annotator_kind", sa.String(20), nullable=False),
        sa.Column("comment", sa.Text),
        sa.Column("metadata", sa.Text),
        sa.Column("shown_at", sa.BigInteger),
        sa.Column("answered_at", sa.BigInteger, nullable=False),
        sa.Column("received_at", sa.BigInteger, nullable=False),
        sa.Column("lead_time_ms", sa.BigInteger),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("supersedes_id", sa.String(26)),
        sa.Column("applied_in_version", sa.String(40)),
        sa.Column("weight", sa.Float(53), nullable=False),
        sa.Column("standing", sa.Boolean, nullable=False),
        sa.Column("undone_seq", _SEQ),
        sa.Column("claimed_at", sa.BigInteger),
        sa.Column("applied_lineage", sa.Integer),
        sa.Column("applied_step", sa.BigInteger),
        sa.ForeignKeyConstraint(
            ["prediction_id"], ["predictions.id"], name="fk_feedback_prediction_id"
        ),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"], name="fk_feedback_seq"),
        sa.ForeignKeyConstraint(
            ["supersedes_id"], ["feedback.id"], name="fk_feedback_supersedes_id"
        ),
        sa.ForeignKeyConstraint(["undone_seq"], ["events.seq"], name="fk_feedback_undone_seq"),
        sa.PrimaryKeyConstraint("id", name="pk_feedback"),
        sa.UniqueConstraint("idempotency_key", name="uq_feedback_idempotency_key"),
        sa.UniqueConstraint("seq", name="uq_feedback_seq"),
    )
    op.create_index("ix_feedback_annotator_id_seq", "feedback", ["annotator_id", "seq"])
    op.create_index(
        "ix_feedback_applied_lineage_applied_step", "feedback", ["applied_lineage", "applied_step"]
    )
    op.create_index(
        "ix_feedback_prediction_id_annotator_id", "feedback", ["prediction_id", "annotator_id"]
    )
    op.create_index("ix_feedback_status_seq", "feedback", ["status", "seq"])
    op.create_index("ix_feedback_selection_reason_seq", "feedback", ["selection_reason", "seq"])
    op.create_index(
        "uq_feedback_standing",
        "feedback",
        ["prediction_id", "annotator_id"],
        unique=True,
        sqlite_where=sa.text("standing"),
        postgresql_where=sa.text("standing"),
    )


def _questions() -> None:
    op.create_table(
        "questions",
        sa.Column("prediction_id", sa.String(26), nullable=False),
        sa.Column("asked_seq", _SEQ, nullable=False),
        sa.Column("window", sa.BigInteger, nullable=False),
        sa.Column("row", sa.Integer, nullable=False),
        sa.Column("uncertainty", sa.Float(53), nullable=False),
        sa.Column("reason", sa.String(20), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("overlap", sa.Integer, nullable=False),
        sa.Column("asked_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["asked_seq"], ["events.seq"], name="fk_questions_asked_seq"),
        sa.ForeignKeyConstraint(
            ["prediction_id"], ["predictions.id"], name="fk_questions_prediction_id"
        ),
        sa.PrimaryKeyConstraint("prediction_id", name="pk_questions"),
    )
    op.create_index("ix_questions_status_window", "questions", ["status", "window"])


def _leases() -> None:
    op.create_table(
        "leases",
        sa.Column("prediction_id", sa.String(26), nullable=False),
        sa.Column("annotator_id", sa.String(200), nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(
            ["prediction_id"], ["questions.prediction_id"], name="fk_leases_prediction_id"
        ),
        sa.PrimaryKeyConstraint("prediction_id", "annotator_id", name="pk_leases"),
    )
