"""What each writer of captured changes asks of a batch, and of its table, before it writes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from lakewright.connectors.cdc_changes import CHANGE_COLUMNS, OPERATIONS
from lakewright.errors import ConfigurationError, InputError, MissingColumnsError, SchemaChangeError
from lakewright.model.columns import business_columns
from lakewright.model.outside import MergesRows
from lakewright.model.protocols import WriteContext
from lakewright.model.sql import quoted, text_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "IS_ROW",
    "TAKEN",
    "ChangeFacts",
    "ChangeWriter",
    "change_columns",
    "change_facts",
    "check_columns",
    "check_target",
    "within_partitions",
]

TAKEN = (*CHANGE_COLUMNS, "_before")
"""What tells a writer of the change, and is not kept."""
_NO_ROW = ("truncate", "tombstone")
IS_ROW = f"_op NOT IN ({', '.join(text_literal(word) for word in _NO_ROW)})"
"""SQL for the changes that name a row."""
_MOST_PARTITIONS = 1_000
"""A longer list of values costs more to plan than it saves."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ChangeWriter:
    """What writers that follow captured changes are like, whatever they keep of them."""

    __slots__ = ()

    @property
    def streams(self) -> bool:
        return True

    @property
    def replaces_slice(self) -> bool:
        return False

    @property
    def by_position(self) -> bool:
        """It takes new images alone: what was taken back above it and comes again is known by its position."""
        return True

    @property
    def takes_columns(self) -> tuple[str, ...]:
        """Columns of the step that tell the writer what to do, and are not kept."""
        return TAKEN

    @property
    def table_properties(self) -> dict[str, str]:
        """Few scattered rows change at a time: marked in their files, these need not be written anew."""
        return {"delta.enableDeletionVectors": "true"}


class ChangeFacts(NamedTuple):
    """What a batch tells as a whole."""

    not_sent: tuple[str, ...]
    """The columns that some change left out."""
    emptied_at: int | None
    """The position of the last TRUNCATE."""
    partitions: Mapping[str, tuple[str, ...]]
    """The values of each partition column that the changes name, as texts; left out where there are too many."""
    since: datetime | None = None
    """The earliest time of a change, where it was asked for."""


def check_target(ctx: WriteContext, keys: Sequence[str], writer: str) -> None:
    """Refuse a table that cannot hold marks of deleted rows."""
    if isinstance(ctx.table, MergesRows):
        raise ConfigurationError(f"{ctx.dataset}: {writer} keeps its marks in the lake only.")
    if moving := [name for name in ctx.partition_by if name not in keys]:
        raise ConfigurationError(
            f"{ctx.dataset}: {writer} cannot be laid out by {moving[0]}, of which a deleted row tells nothing. "
            "Nothing was written.",
            hint=f"Lay it out by the keys ({', '.join(keys)}), or not at all.",
        )


def check_columns(ctx: WriteContext, columns: Sequence[str]) -> None:
    """Refuse columns that the table, which is there, does not have."""
    present = set(ctx.table.schema().names)
    if strangers := [name for name in columns if name not in present]:
        raise SchemaChangeError(
            f"{ctx.dataset}: the changes have a column {', '.join(strangers)} that the table lacks. Nothing was "
            "written.",
            hint="Add it to the table first (ALTER TABLE ... ADD COLUMNS), or drop it from the changes.",
        )


def change_columns(frame: DataFrame, needed: Sequence[str], who: str) -> list[str]:
    """The columns to keep; refused where the frame has no changes, or lacks a column that is needed."""
    present = frame.columns
    if missing := [name for name in (*needed, "_op", "_lsn") if name not in present]:
        raise MissingColumnsError(pattern=f"{who} (Change Data Capture)", missing=missing, present=present)
    return [name for name in business_columns(present) if name not in TAKEN]


def change_facts(
    frame: DataFrame,
    keys: Sequence[str],
    others: Sequence[str],
    partition_by: Sequence[str],
    who: str,
    *,
    time: str | None = None,
) -> ChangeFacts:
    """Runs a job over the keys and what the changes tell of themselves; refuses what cannot be applied.

    The partition columns are keys. ``time`` is SQL for when a change was made, where each needs one.
    """
    from pyspark.sql import functions as F

    ops = ", ".join(text_literal(word) for word in (*OPERATIONS.values(), "tombstone"))
    no_key = " OR ".join(f"{quoted(key)} IS NULL" for key in keys)
    names = "array()" if "_not_sent" not in frame.columns else "_not_sent"
    when = "CAST(NULL AS TIMESTAMP)" if time is None else f"CASE WHEN _op <> 'tombstone' THEN {time} END"
    row = frame.agg(
        F.expr(f"count_if(coalesce(_op NOT IN ({ops}), true))"),
        F.expr(f"count_if({IS_ROW} AND (_lsn IS NULL OR {no_key}))"),
        F.expr("max(CASE WHEN _op = 'truncate' THEN _lsn END)"),
        F.expr(f"array_sort(array_distinct(flatten(collect_set(CAST({names} AS ARRAY<STRING>)))))"),
        F.expr(f"count_if(_op <> 'tombstone' AND ({when}) IS NULL)"),
        F.expr(f"unix_micros(min({when}))"),
        *[F.expr(f"slice(collect_set({_text_of_row(name)}), 1, {_MOST_PARTITIONS + 1})") for name in partition_by],
    ).first()
    assert row is not None
    if row[0]:
        raise InputError(
            f"{who}: {row[0]:,} rows are no changes: their _op is none of {ops}. Nothing was written.",
            hint="What could not be read has its text in _lw_raw: set such rows aside first, where _op IS NULL.",
        )
    if row[1]:
        raise InputError(
            f"{who}: {row[1]:,} changes have no {' or no '.join(keys)}, or no _lsn. Nothing was written.",
            hint="The keys are the primary key of the source's table; without one its rows cannot be told apart.",
        )
    if time is not None and row[4]:
        raise InputError(
            f"{who}: {row[4]:,} changes do not tell when they were committed. Nothing was written.",
            hint="Keep _committed_at as the capture gives it.",
        )
    since = None if row[5] is None else _EPOCH + timedelta(microseconds=row[5])
    named = {name: tuple(row[6 + place]) for place, name in enumerate(partition_by)}
    return ChangeFacts(
        not_sent=tuple(name for name in row[3] or () if name in others),
        emptied_at=row[2],
        partitions={name: values for name, values in named.items() if 0 < len(values) <= _MOST_PARTITIONS},
        since=since,
    )


def within_partitions(frame: DataFrame, told: ChangeFacts, table: str = "t") -> list[str]:
    """Conditions by which Delta skips the partitions that no change names; none where a TRUNCATE names no row."""
    if told.emptied_at is not None:
        return []
    kinds = {name: frame.schema[name].dataType.simpleString() for name in told.partitions}
    return [
        f"{table}.{quoted(name)} IN ({', '.join(f'CAST({text_literal(value)} AS {kinds[name]})' for value in values)})"
        for name, values in told.partitions.items()
    ]


def _text_of_row(name: str) -> str:
    return f"CASE WHEN {IS_ROW} THEN CAST({quoted(name)} AS STRING) END"
