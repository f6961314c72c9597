"""The generations of a stream's checkpoint."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "streams",
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("start", sa.Text(), nullable=True),
        sa.Column("first", sa.BigInteger(), nullable=True),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.Column("run_id", WORDS, nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("dataset", "generation", name=op.f("pk_streams")),
    )
