"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "arrivals",
        sa.Column("source", WORDS, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key", WORDS, nullable=True),
        sa.Column("window", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.Column("run_id", WORDS, nullable=True),
        sa.Column("committed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("source", "number", name=op.f("pk_arrivals")),
        sa.UniqueConstraint("source", "key", name=op.f("uq_arrivals_source_key")),
    )
    op.create_index(
        op.f("ix_arrivals_source_committed_number"),
        "arrivals",
        ["source", "committed", "number"],
        unique=False,
    )
    op.create_table(
        "findings",
        sa.Column("finding_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("slice_id", WORDS, nullable=True),
        sa.Column("subject", WORDS, nullable=False),
        sa.Column("severity", WORDS, nullable=False),
        sa.Column("message", WORDS, nullable=False),
        sa.Column("cure", WORDS, nullable=True),
        sa.Column("found_at", sa.BigInteger(), nullable=False),
        sa.Column("run_id", WORDS, nullable=True),
        sa.PrimaryKeyConstraint("finding_id", name=op.f("pk_findings")),
    )
    op.create_index(op.f("ix_findings_dataset_finding_id"), "findings", ["dataset", "finding_id"], unique=False)
    op.create_index(op.f("ix_findings_run_id"), "findings", ["run_id"], unique=False)
    op.create_table(
        "held",
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("slice_id", WORDS, nullable=False),
        sa.Column("input", WORDS, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("since_run", WORDS, nullable=True),
        sa.PrimaryKeyConstraint("dataset", "slice_id", "input", name=op.f("pk_held")),
    )
    op.create_table(
        "leases",
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("slice_id", WORDS, nullable=False),
        sa.Column("owner_id", WORDS, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("granted_at", sa.BigInteger(), nullable=False),
        sa.Column("run_id", WORDS, nullable=True),
        sa.Column("parts", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("dataset", "slice_id", name=op.f("pk_leases")),
    )
    op.create_index(op.f("ix_leases_owner_id"), "leases", ["owner_id"], unique=False)
    op.create_table(
        "markers",
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("slice_id", WORDS, nullable=False),
        sa.Column("state", WORDS, nullable=False),
        sa.Column("set_at", sa.BigInteger(), nullable=False),
        sa.Column("run_id", WORDS, nullable=True),
        sa.PrimaryKeyConstraint("dataset", "slice_id", name=op.f("pk_markers")),
    )
    op.create_table(
        "numbers",
        sa.Column("name", WORDS, nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_numbers")),
    )
    op.create_table(
        "owners",
        sa.Column("owner_id", WORDS, nullable=False),
        sa.Column("host", WORDS, nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("process_started", WORDS, nullable=False),
        sa.Column("beat_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner_id", name=op.f("pk_owners")),
    )
    op.create_table(
        "receipts",
        sa.Column("receipt_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("slice_id", WORDS, nullable=False),
        sa.Column("kind", WORDS, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("version_before", sa.BigInteger(), nullable=True),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("committed_at", sa.BigInteger(), nullable=False),
        sa.Column("run_id", WORDS, nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("counters", sa.Text(), nullable=False),
        sa.Column("code", WORDS, nullable=True),
        sa.Column("state", WORDS, nullable=False),
        sa.Column("valid_from", sa.BigInteger(), nullable=True),
        sa.Column("recovered", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("receipt_id", name=op.f("pk_receipts")),
        sa.UniqueConstraint("dataset", "version", name=op.f("uq_receipts_dataset_version")),
    )
    op.create_index(
        op.f("ix_receipts_dataset_kind_state_slice_id_version"),
        "receipts",
        ["dataset", "kind", "state", "slice_id", "version"],
        unique=False,
    )
    op.create_index(
        op.f("ix_receipts_dataset_slice_id_version"),
        "receipts",
        ["dataset", "slice_id", "version"],
        unique=False,
    )
    op.create_index(op.f("ix_receipts_run_id"), "receipts", ["run_id"], unique=False)
    op.create_table(
        "rollbacks",
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("target", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("dataset", "version", name=op.f("pk_rollbacks")),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", WORDS, nullable=False),
        sa.Column("pipeline", WORDS, nullable=False),
        sa.Column("reason", WORDS, nullable=False),
        sa.Column("run_time", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", WORDS, nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("owner_id", WORDS, nullable=True),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=True),
        sa.Column("error", WORDS, nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_pipeline_started_at"), "runs", ["pipeline", "started_at"], unique=False)
    op.create_index(op.f("ix_runs_started_at"), "runs", ["started_at"], unique=False)
    op.create_index(op.f("ix_runs_state"), "runs", ["state"], unique=False)
    op.create_table(
        "source_files",
        sa.Column("source", WORDS, nullable=False),
        sa.Column("arrival", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("path", WORDS, nullable=False),
        sa.Column("version", WORDS, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("superseded_by", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("source", "arrival", "path", name=op.f("pk_source_files")),
    )
    op.create_index(
        op.f("ix_source_files_source_superseded_by"),
        "source_files",
        ["source", "superseded_by"],
        unique=False,
    )
    op.create_table(
        "steps",
        sa.Column("step_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run_id", WORDS, nullable=False),
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("slice_id", WORDS, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reason", WORDS, nullable=False),
        sa.Column("state", WORDS, nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("outputs", sa.Text(), nullable=False),
        sa.Column("error", WORDS, nullable=True),
        sa.Column("hint", WORDS, nullable=True),
        sa.PrimaryKeyConstraint("step_id", name=op.f("pk_steps")),
    )
    op.create_index(op.f("ix_steps_dataset_step_id"), "steps", ["dataset", "step_id"], unique=False)
    op.create_index(op.f("ix_steps_run_id"), "steps", ["run_id"], unique=False)
    op.create_index(op.f("ix_steps_state_dataset"), "steps", ["state", "dataset"], unique=False)
    op.create_table(
        "touched",
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("cell", WORDS, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("staling", sa.Boolean(), nullable=False),
        sa.Column("added", sa.BigInteger(), nullable=True),
        sa.Column("removed", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("dataset", "cell", "version", name=op.f("pk_touched")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_touched_dataset_version"), "touched", ["dataset", "version"], unique=False)
    op.create_table(
        "receipt_inputs",
        sa.Column("receipt_id", sa.Integer(), nullable=False),
        sa.Column("input", WORDS, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["receipt_id"],
            ["receipts.receipt_id"],
            name=op.f("fk_receipt_inputs_receipt_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("receipt_id", "input", name=op.f("pk_receipt_inputs")),
        sqlite_with_rowid=False,
    )
