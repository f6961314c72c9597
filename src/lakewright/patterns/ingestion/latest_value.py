"""Latest value: a table that holds each row as its last change left it, by one MERGE per batch of changes.

A row knows the place in the source's log of the change that made it (``_lw_position``), and a deleted one stays as a
mark (``_lw_deleted``) that holds its key and nothing else. So an older change that comes again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError
from lakewright.model.columns import ALIVE, DELETED_COLUMN, POSITION_COLUMN, SYSTEM_PREFIX, business_columns
from lakewright.model.protocols import WriteContext
from lakewright.model.receipts import Commit
from lakewright.model.sql import quoted, text_literal
from lakewright.patterns.ingestion.captured_changes import (
    IS_ROW,
    ChangeFacts,
    ChangeWriter,
    change_columns,
    change_facts,
    check_columns,
    check_target,
    within_partitions,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LatestValue", "latest_rows"]

_RANK = "_lw_rank"


@dataclass(frozen=True, slots=True)
class LatestValue(ChangeWriter):
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
    def adds_columns(self) -> tuple[str, ...]:
        """Columns of the table that the writer makes and the step does not."""
        return POSITION_COLUMN, DELETED_COLUMN

    def publish(self, frame: DataFrame, ctx: WriteContext) -> Commit | None:
        check_target(ctx, self.keys, "LatestValue")
        columns = change_columns(frame, self.keys, ctx.dataset)
        known = ctx.table.exists()
        if known:
            check_columns(ctx, columns)
        others = [name for name in columns if name not in self.keys]
        told = change_facts(frame, self.keys, others, ctx.partition_by, ctx.dataset)
        rows = _latest(frame, columns, self.keys, told)
        if not known:  # the table is made with the columns of the rows: what is not known of a new row is NULL
            rows = rows.drop(*[_at(place) for place in range(len(told.not_sent))])
            told = told._replace(not_sent=())
        # No key of a change is NULL, and equality joins faster than what NULL is equal to itself by.
        on = [f"t.{quoted(key)} = s.{quoted(key)}" for key in self.keys]
        on += within_partitions(frame, told) if known else []  # they are keys: no row of another one can be meant
        clauses = _clauses(self.keys, others, told)
        return ctx.table.merge(rows, on=" AND ".join(on), clauses=clauses, partition_by=ctx.partition_by)


def latest_rows(df: DataFrame) -> DataFrame:
    """The rows of a table of latest values as readers see them: no marks of deleted rows, no system columns."""
    columns = df.columns
    alive = df.where(ALIVE) if DELETED_COLUMN in columns else df
    return alive.select(*[quoted(name) for name in business_columns(columns)])


def _latest(frame: DataFrame, columns: Sequence[str], keys: Sequence[str], told: ChangeFacts) -> DataFrame:
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
    ranked = frame.where(IS_ROW).selectExpr("*", f"row_number() OVER ({by}) AS {_RANK}", *newest).where(f"{_RANK} = 1")
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


def _clauses(keys: Sequence[str], others: Sequence[str], told: ChangeFacts) -> str:
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
