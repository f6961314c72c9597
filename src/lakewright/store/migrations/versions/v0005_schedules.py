"""Pauses of pipelines, what dataset-driven schedules have seen, and a quick way to the last scheduled run."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("pipeline", WORDS, nullable=False),
        sa.Column("paused_at", sa.BigInteger(), nullable=True),
        sa.Column("because", WORDS, nullable=True),
        sa.Column("seen", sa.Text(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline", name=op.f("pk_schedules")),
    )
    op.create_index(
        op.f("ix_runs_reason_state_pipeline_run_time"),
        "runs",
        ["reason", "state", "pipeline", "run_time"],
        unique=False,
    )
