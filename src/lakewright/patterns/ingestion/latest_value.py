"""Latest value: a table that holds each row as its last change left it, by one MERGE per batch of changes.

A row knows the place in the source's log of the change that made it (``_lw_position``), and a deleted one stays as a
mark (``_lw_deleted``) that holds its key and nothing else. So an older change that comes again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lakewright.connectors.cdc_changes import CHANGE_COLUMNS, OPERATIONS
from lakewright.errors import ConfigurationError, InputError, MissingColumnsError, SchemaChangeError
from lakewright.model.columns import ALIVE, DELETED_COLUMN, POSITION_COLUMN, SYSTEM_PREFIX, business_columns
from lakewright.model.outside import MergesRows
from lakewright.model.protocols import WriteContext
from lakewright.model.receipts import Commit
from lakewright.model.sql import quoted, text_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LatestValue", "latest_rows"]

_TAKEN = (*CHANGE_COLUMNS, "_before")
_RANK = "_lw_rank"
_NO_CHANGE = ("truncate", "tombstone")


@dataclass(frozen=True, slots=True)
class LatestValue:
    """The writer of the pipeline layer: below a captured table, each row as it stands there.

    What the step returns has the columns to keep, and ``_op``, ``_lsn`` and ``_not_sent`` as the capture gave them.
    """

    keys: Sequence[str]
    """The primary key of the source's table."""

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or not self.keys:
            raise ConfigurationError("LatestValue: 'keys' is a list of at least one column, such as keys=[\"id\"].")
        object.__setattr__(self, "keys", tuple(self.keys))

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
    def adds_columns(self) -> tuple[str, ...]:
        """Columns of the table that the writer makes and the step does not."""
        return POSITION_COLUMN, DELETED_COLUMN

    @property
    def takes_columns(self) -> tuple[str, ...]:
        """Columns of the step that tell the writer what to do, and are not kept."""
        return _TAKEN

    @property
    def table_properties(self) -> dict[str, str]:
        """Few scattered rows change at a time: marked in their files, these need not be written anew."""
        return {"delta.enableDeletionVectors": "true"}

    def publish(self, frame: DataFrame, ctx: WriteContext) -> Commit | None:
        if isinstance(ctx.table, MergesRows):
            raise ConfigurationError(f"{ctx.dataset}: LatestValue keeps its marks in the lake only.")
        if moving := [name for name in ctx.partition_by if name not in self.keys]:
            raise ConfigurationError(
                f"{ctx.dataset}: LatestValue cannot be laid out by {moving[0]}, of which a deleted row tells nothing. "
                "Nothing was written.",
                hint=f"Lay it out by the keys ({', '.join(self.keys)}), or not at all.",
            )
        columns = _columns(frame, self.keys, ctx.dataset)
        known = ctx.table.exists()
        if known and (strangers := [name for name in columns if name not in ctx.table.schema().names]):
            raise SchemaChangeError(
                f"{ctx.dataset}: the changes have a column {', '.join(strangers)} that the table lacks. Nothing was "
                "written.",
                hint="Add it to the table first (ALTER TABLE ... ADD COLUMNS), or drop it from the changes.",
            )
        others = [name for name in columns if name not in self.keys]
        told = _facts(frame, self.keys, others, ctx.dataset)
        rows = _latest(frame, columns, self.keys, told)
        if not known:  # the table is made with the columns of the rows: what is not known of a new row is NULL
            rows = rows.drop(*[_at(place) for place in range(len(told.not_sent))])
            told = told._replace(not_sent=())
        on = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in self.keys)
        clauses = _clauses(self.keys, others, told)
        return ctx.table.merge(rows, on=on, clauses=clauses, partition_by=ctx.partition_by)


def latest_rows(df: DataFrame) -> DataFrame:
    """The rows of a table of latest values as readers see them: no marks of deleted rows, no system columns."""
    columns = df.columns
    alive = df.where(ALIVE) if DELETED_COLUMN in columns else df
    return alive.select(*[quoted(name) for name in business_columns(columns)])


class _Facts(NamedTuple):
    """What a batch tells as a whole."""

    not_sent: tuple[str, ...]
    """The columns that some change left out."""
    emptied_at: int | None
    """The position of the last TRUNCATE."""


def _columns(frame: DataFrame, keys: Sequence[str], who: str) -> list[str]:
    """The columns to keep; refused where the frame has no changes, or lacks a key."""
    present = frame.columns
    if missing := [name for name in (*keys, "_op", "_lsn") if name not in present]:
        raise MissingColumnsError(pattern=f"{who} (Change Data Capture)", missing=missing, present=present)
    return [name for name in business_columns(present) if name not in _TAKEN]


def _facts(frame: DataFrame, keys: Sequence[str], others: Sequence[str], who: str) -> _Facts:
    """Runs a job over the keys and what the changes tell of themselves; refuses what cannot be applied."""
    from pyspark.sql import functions as F

    ops = ", ".join(text_literal(word) for word in (*OPERATIONS.values(), "tombstone"))
    no_key = " OR ".join(f"{quoted(key)} IS NULL" for key in keys)
    is_row = f"_op NOT IN ({', '.join(text_literal(word) for word in _NO_CHANGE)})"
    names = "array()" if "_not_sent" not in frame.columns else "_not_sent"
    row = frame.agg(
        F.expr(f"count_if(coalesce(_op NOT IN ({ops}), true))"),
        F.expr(f"count_if({is_row} AND (_lsn IS NULL OR {no_key}))"),
        F.expr("max(CASE WHEN _op = 'truncate' THEN _lsn END)"),
        F.expr(f"array_sort(array_distinct(flatten(collect_set(CAST({names} AS ARRAY<STRING>)))))"),
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
    return _Facts(tuple(name for name in row[3] or () if name in others), row[2])


def _latest(frame: DataFrame, columns: Sequence[str], keys: Sequence[str], told: _Facts) -> DataFrame:
    """The last change of each key with its position; lazy.

    A column that some change left out has the last value that was sent of it, with the position of that one beside it.
    """
    others = [name for name in columns if name not in keys]
    # Two of one key at one position are the same change, come twice.
    by = f"PARTITION BY {', '.join(quoted(key) for key in keys)} ORDER BY _lsn DESC, _op DESC"
    newest = [
        f"first_value(CASE WHEN NOT array_contains(_not_sent, {text_literal(name)}) "
        f"THEN named_struct('value', {quoted(name)}, 'at', _lsn) END, true) OVER ({by} "
        f"ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS {_known(place)}"
        for place, name in enumerate(told.not_sent)
    ]
    rows = frame.where(f"_op NOT IN ({', '.join(text_literal(word) for word in _NO_CHANGE)})")
    ranked = rows.selectExpr("*", f"row_number() OVER ({by}) AS {_RANK}", *newest).where(f"{_RANK} = 1")
    emptied = f"{told.emptied_at or 0}L"
    is_older = "false" if told.emptied_at is None else f"_lsn < {emptied}"
    position, gone = f"CASE WHEN {is_older} THEN {emptied} ELSE _lsn END", f"(_op = 'delete' OR {is_older})"
    values, places = {name: quoted(name) for name in others}, dict[str, str]()
    for place, name in enumerate(told.not_sent):
        known = _known(place)
        values[name], places[_at(place)] = f"{known}.value", f"{known}.at"
        if told.emptied_at is not None:  # what was known before the table was emptied belongs to another row
            values[name] = f"CASE WHEN {known}.at >= {emptied} THEN {known}.value END"
            places[_at(place)] = f"greatest({known}.at, {emptied})"
    return ranked.selectExpr(
        *[quoted(key) for key in keys],
        *[f"CASE WHEN NOT {gone} THEN {sql} END AS {quoted(name)}" for name, sql in values.items()],
        f"{position} AS {POSITION_COLUMN}",
        f"{gone} AS {DELETED_COLUMN}",
        *[f"CASE WHEN {gone} THEN {position} ELSE {sql} END AS {name}" for name, sql in places.items()],
    )


def _known(place: int) -> str:
    return f"{SYSTEM_PREFIX}known_{place}"


def _at(place: int) -> str:
    return f"{SYSTEM_PREFIX}at_{place}"


def _clauses(keys: Sequence[str], others: Sequence[str], told: _Facts) -> str:
    """The branches of the MERGE. A delete of a row that is not known is kept too: an older change may still come."""
    values = {name: f"s.{quoted(name)}" for name in others}
    for place, name in enumerate(told.not_sent):
        # What the batch knows of the column may be older than what the table knows, where it was delivered again.
        newer = f"s.{_at(place)} > coalesce(t.{POSITION_COLUMN}, -1)"
        values[name] = f"CASE WHEN {newer} THEN s.{quoted(name)} ELSE t.{quoted(name)} END"
    own = {name: f"s.{name}" for name in (POSITION_COLUMN, DELETED_COLUMN)}
    update = [f"t.{quoted(name)} = {sql}" for name, sql in {**values, **own}.items()]
    inserted = [quoted(name) for name in (*keys, *others, POSITION_COLUMN, DELETED_COLUMN)]
    newer = f"t.{POSITION_COLUMN} IS NULL OR s.{POSITION_COLUMN} > t.{POSITION_COLUMN}"
    clauses = (
        f"WHEN MATCHED AND ({newer}) THEN UPDATE SET {', '.join(update)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(inserted)}) VALUES ({', '.join(f's.{name}' for name in inserted)})"
    )
    if told.emptied_at is None:
        return clauses
    marked = [f"t.{quoted(name)} = NULL" for name in others]
    marked += [f"t.{POSITION_COLUMN} = {told.emptied_at}L", f"t.{DELETED_COLUMN} = true"]
    older = f"t.{POSITION_COLUMN} IS NULL OR t.{POSITION_COLUMN} < {told.emptied_at}L"
    return f"{clauses} WHEN NOT MATCHED BY SOURCE AND ({older}) THEN UPDATE SET {', '.join(marked)}"
