"""Audits are found by an index; a repeated answer is told by what is stored, not by a hash."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INDEX = "ix_feedback_selection_reason_seq"


def upgrade() -> None:
    """Change the answers' table."""
    op.drop_column("feedback", "body_hash")
    op.create_index(_INDEX, "feedback", ["selection_reason", "seq"])


def downgrade() -> None:
    """Answers of before have no hash any more, so every repeat of one is refused."""
    op.drop_index(_INDEX, "feedback")
    hashed = sa.Column("body_hash", sa.String(64), nullable=False, server_default="")
    op.add_column("feedback", hashed)
