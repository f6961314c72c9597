"""Whose log the receipts of a dataset tell of."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "origins",
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("place", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("dataset", name=op.f("pk_origins")),
    )
