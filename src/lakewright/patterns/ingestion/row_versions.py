"""Row versions: a table that holds every version of a row with the time it was valid (SCD 2), from the changes alone.

Guarantee:
    After each batch, which is one MERGE, the versions of a key are one chain in the order of the source's log: each is
    valid until the next one begins, without gap or overlap, and the last one is current, or none where the row was
    deleted. A change that comes late is put where it belongs, and what its neighbours are is mended; one that comes
    again changes nothing. A value that a change left out is that of the version before it, also where that one comes
    later.
Consequences:
    - A row that is deleted and comes again has a gap between: it was not there.
    - Two changes in one transaction have one time: the first of them is there with a validity of no length.
    - An update that changes nothing is a version, and so is a row of a snapshot that was taken again.
    - The end of a row is a mark in the table, which `read_row_versions`, steps and ``lakewright show`` leave out.
    - A batch reads what is known of its keys, not of others; the longer their chains, the more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.columns import DELETED_COLUMN, POSITION_COLUMN, taken_names
from lakewright.model.protocols import TellsMore, WriteContext
from lakewright.model.receipts import Commit
from lakewright.model.sql import quoted
from lakewright.patterns.ingestion.captured_changes import (
    ChangeWriter,
    change_columns,
    change_facts,
    check_columns,
    check_target,
    within_partitions,
)
from lakewright.patterns.ingestion.row_chains import NOT_SENT_COLUMN, Chain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RowVersions"]

_COMMITTED = "_committed_at"
_TIMES = ("timestamp", "timestamp_ntz", "date")


@dataclass(frozen=True, slots=True)
class RowVersions(ChangeWriter):
    """The writer of the pipeline layer: below a captured table, each version of each row.

    What the step returns has the columns to keep, and ``_op``, ``_lsn``, ``_committed_at`` and ``_not_sent`` as the
    capture gave them.
    """

    keys: Sequence[str]
    """The primary key of the source's table."""
    at: str = _COMMITTED
    """When a version begins: when its change was committed, or a column of the row, such as ``updated_at``."""
    valid_from: str = "valid_from"
    valid_to: str = "valid_to"
    current: str = "is_current"

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or not self.keys:
            raise ConfigurationError("RowVersions: 'keys' is a list of at least one column, such as keys=[\"id\"].")
        own = (self.valid_from, self.valid_to, self.current)
        if len({*own, *self.keys, self.at}) < len(own) + len(self.keys) + 1:
            raise ConfigurationError(
                "RowVersions: the keys, at, valid_from, valid_to and current are different columns.",
                hint="valid_from is made by the writer; at says which column of the changes it is made of.",
            )
        object.__setattr__(self, "keys", tuple(self.keys))

    @property
    def validity(self) -> tuple[str, str]:
        """The columns that tell when a version was valid."""
        return self.valid_from, self.valid_to

    @property
    def adds_columns(self) -> tuple[str, ...]:
        """Columns of the table that the writer makes and the step does not."""
        return self.valid_from, self.valid_to, self.current, POSITION_COLUMN, DELETED_COLUMN, NOT_SENT_COLUMN

    def publish(self, frame: DataFrame, ctx: WriteContext) -> Commit | None:
        check_target(ctx, self.keys, "RowVersions")
        chain = self._chain(frame, ctx.dataset)
        exists = ctx.table.exists()
        if exists:
            check_columns(ctx, [*chain.keys, *chain.others])
        told = change_facts(frame, self.keys, chain.others, ctx.partition_by, ctx.dataset, time=chain.time)
        near = within_partitions(frame, told) if exists else []  # they are keys: no version of another one is meant
        known = ctx.table.read().alias("t").where(" AND ".join(near or ["true"])) if exists else None
        rows = chain.changed(frame, known, emptied=told.emptied_at is not None)
        on = [f"t.{quoted(name)} = s.{quoted(name)}" for name in (*self.keys, POSITION_COLUMN)]
        table = ctx.table
        if isinstance(table, TellsMore) and told.since is not None:  # what was read as of a later time is stale
            table = table.telling(valid_from=told.since.isoformat())
        return table.merge(rows, on=" AND ".join([*on, *near]), clauses=_clauses(chain), partition_by=ctx.partition_by)

    def _chain(self, frame: DataFrame, who: str) -> Chain:
        needed = dict.fromkeys((*self.keys, _COMMITTED, self.at))
        columns = change_columns(frame, list(needed), who)
        if taken := taken_names(self.adds_columns, columns):
            raise InputError(
                f"{who}: the changes have a column {taken[0]}, which RowVersions makes itself. Nothing was written.",
                hint="Rename it in the step, or choose other names for valid_from, valid_to and current.",
            )
        return Chain(
            keys=self.keys,
            others=[name for name in columns if name not in self.keys],
            valid_from=self.valid_from,
            valid_to=self.valid_to,
            current=self.current,
            time=self._time(frame, who),
        )

    def _time(self, frame: DataFrame, who: str) -> str:
        """SQL for when a change was made. A deleted row tells its key alone, so that its commit's time counts."""
        kinds = {
            field.name: field.dataType.simpleString() for field in frame.schema if field.name in (self.at, _COMMITTED)
        }
        if wrong := [name for name, kind in kinds.items() if kind not in _TIMES]:
            raise InputError(
                f"{who}: {wrong[0]} is {kinds[wrong[0]]}, no time. Nothing was written.",
                hint="A version begins at a TIMESTAMP or a DATE: cast it in the step, or name another column in at.",
            )
        committed = f"CAST({_COMMITTED} AS TIMESTAMP)"
        if self.at == _COMMITTED:
            return committed
        own = f"CASE WHEN _op NOT IN ('delete', 'truncate') THEN CAST({quoted(self.at)} AS TIMESTAMP) END"
        return f"coalesce({own}, {committed})"


def _clauses(chain: Chain) -> str:
    """The branches of the MERGE: all that comes to it is new, or differs."""
    columns = chain.columns
    changing = [quoted(name) for name in (*chain.others, chain.valid_from, chain.valid_to, chain.current)]
    return (
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in changing)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{name}' for name in columns)})"
    )
