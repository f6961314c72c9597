"""The tables of the store.

Most hold what the logs of the lake could tell again; leases, retries in flight and findings are here alone.
A change here needs a migration and a new ``HEAD`` in ``opening`` (a test compares the two schemas).
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    UniqueConstraint,
)

from lakewright.store.columns import JsonText, Moment, Told, Words

__all__ = [
    "arrivals",
    "events",
    "findings",
    "held",
    "leases",
    "markers",
    "metadata",
    "numbers",
    "origins",
    "owners",
    "receipt_inputs",
    "receipts",
    "rollbacks",
    "runs",
    "schedules",
    "source_files",
    "steps",
    "streams",
    "touched",
]

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

owners = Table(
    "owners",
    metadata,
    Column("owner_id", Words, primary_key=True),
    Column("host", Words, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("process_started", Words, nullable=False),
    Column("beat_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("dataset", Words, primary_key=True),
    Column("slice_id", Words, primary_key=True),
    # No foreign key: a lease whose owner's row is gone was not given back, and says so to its next owner.
    Column("owner_id", Words, nullable=False, index=True),
    Column("number", BigInteger, nullable=False),
    Column("granted_at", Moment, nullable=False),
    Column("run_id", Words),
    Column("parts", JsonText, nullable=False),
)

numbers = Table(
    "numbers",
    metadata,
    Column("name", Words, primary_key=True),
    Column("last", BigInteger, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", Words, primary_key=True),
    Column("pipeline", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("run_time", Moment, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("state", Words, nullable=False, index=True),
    Column("started_at", Moment, nullable=False, index=True),
    Column("ended_at", Moment),
    Column("owner_id", Words),
    Column("options", JsonText, nullable=False),
    Column("summary", JsonText),
    Column("error", Told),
    Column("cancel_requested", Boolean, nullable=False),
    Column("asked_at", Moment),
    Index(None, "pipeline", "started_at"),
    Index(None, "reason", "state", "pipeline", "run_time"),
)

# What the schedules of pipelines need beyond their runs: a pause, and what was new when a dataset's change began one.
schedules = Table(
    "schedules",
    metadata,
    Column("pipeline", Words, primary_key=True),
    Column("paused_at", Moment),
    Column("because", Told),
    Column("seen", JsonText),
    Column("updated_at", Moment, nullable=False),
)

steps = Table(
    "steps",
    metadata,
    Column("step_id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", Words, nullable=False, index=True),
    Column("dataset", Words, nullable=False),
    Column("slice_id", Words, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("reason", Told, nullable=False),
    Column("state", Words, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("outputs", JsonText, nullable=False),
    Column("error", Told),
    Column("hint", Told),
    Index(None, "state", "dataset"),
    Index(None, "dataset", "step_id"),
)

receipts = Table(
    "receipts",
    metadata,
    Column("receipt_id", Integer, primary_key=True, autoincrement=True),
    Column("dataset", Words, nullable=False),
    Column("slice_id", Words, nullable=False),
    Column("kind", Words, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("version_before", BigInteger),
    Column("number", BigInteger, nullable=False),
    Column("committed_at", Moment, nullable=False),
    Column("run_id", Words, index=True),
    Column("attempt", Integer, nullable=False),
    Column("rows", BigInteger),
    Column("bytes", BigInteger),
    Column("counters", JsonText, nullable=False),
    Column("code", Words),
    Column("state", Words, nullable=False),
    Column("valid_from", Moment),
    Column("recovered", Boolean, nullable=False),
    UniqueConstraint("dataset", "version"),
    Index(None, "dataset", "kind", "state", "slice_id", "version"),
    Index(None, "dataset", "slice_id", "version"),
)

receipt_inputs = Table(
    "receipt_inputs",
    metadata,
    Column("receipt_id", Integer, ForeignKey("receipts.receipt_id", ondelete="CASCADE"), primary_key=True),
    Column("input", Words, primary_key=True),
    Column("version", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Ordered by cell on disk: what asks for cells reads one stretch of this table and nothing else, which is why
# it repeats from the receipt whether the commit makes readers stale.
touched = Table(
    "touched",
    metadata,
    Column("dataset", Words, primary_key=True),
    Column("cell", Words, primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("staling", Boolean, nullable=False),
    Column("added", BigInteger),
    Column("removed", BigInteger),
    Index(None, "dataset", "version"),
    sqlite_with_rowid=False,
)

streams = Table(
    "streams",
    metadata,
    Column("dataset", Words, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("start", JsonText),
    Column("first", BigInteger),
    Column("recorded_at", Moment, nullable=False),
    Column("run_id", Words),
    Column("progress", JsonText),
    Column("updated_at", Moment),
)

origins = Table(
    "origins",
    metadata,
    Column("dataset", Words, primary_key=True),
    Column("place", Words, nullable=False),
)

rollbacks = Table(
    "rollbacks",
    metadata,
    Column("dataset", Words, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("target", BigInteger, nullable=False),
)

held = Table(
    "held",
    metadata,
    Column("dataset", Words, primary_key=True),
    Column("slice_id", Words, primary_key=True),
    Column("input", Words, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("rows", BigInteger),
    Column("since_run", Words),
)

arrivals = Table(
    "arrivals",
    metadata,
    Column("source", Words, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("key", Words),
    Column("window", JsonText, nullable=False),
    Column("recorded_at", Moment, nullable=False),
    Column("run_id", Words),
    Column("committed", Boolean, nullable=False),
    UniqueConstraint("source", "key"),
    Index(None, "source", "committed", "number"),
)

source_files = Table(
    "source_files",
    metadata,
    Column("source", Words, primary_key=True),
    Column("arrival", Integer, primary_key=True, autoincrement=False),
    Column("path", Words, primary_key=True),
    Column("version", Words, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("superseded_by", Integer),
    Index(None, "source", "superseded_by"),
)

markers = Table(
    "markers",
    metadata,
    Column("dataset", Words, primary_key=True),
    Column("slice_id", Words, primary_key=True),
    Column("state", Words, nullable=False),
    Column("set_at", Moment, nullable=False),
    Column("run_id", Words),
)

events = Table(
    "events",
    metadata,
    Column("trigger", Words, primary_key=True),
    Column("event_id", Words, primary_key=True),
    Column("place", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("envelope", JsonText, nullable=False),
    Column("runs", JsonText, nullable=False),
    Column("error", Told),
    Column("received_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Index(None, "trigger", "state"),
)

findings = Table(
    "findings",
    metadata,
    Column("finding_id", Integer, primary_key=True, autoincrement=True),
    Column("dataset", Words, nullable=False),
    Column("slice_id", Words),
    Column("subject", Words, nullable=False),
    Column("severity", Words, nullable=False),
    Column("message", Told, nullable=False),
    Column("cure", Told),
    Column("found_at", Moment, nullable=False),
    Column("run_id", Words, index=True),
    Index(None, "dataset", "finding_id"),
)
