"""The events that triggers got."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("trigger", WORDS, nullable=False),
        sa.Column("event_id", WORDS, nullable=False),
        sa.Column("place", WORDS, nullable=False),
        sa.Column("state", WORDS, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.Column("runs", sa.Text(), nullable=False),
        sa.Column("error", WORDS, nullable=True),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("trigger", "event_id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_trigger_state"), "events", ["trigger", "state"], unique=False)
