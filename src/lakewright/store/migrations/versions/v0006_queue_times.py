"""Since when a run has waited before it began."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("asked_at", sa.BigInteger(), nullable=True))
