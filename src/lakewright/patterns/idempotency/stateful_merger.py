"""Stateful Merger: take the table back to what it was before the execution that is repeated, then merge.

Problem:
    A merged table is found to be wrong for a week. Repeating Wednesday's changes on top of Friday's table shows a state
    that never was, until every later day is repeated too; and what Wednesday wrongly added never leaves.
Guarantee:
    After an execution the table equals one built from scratch up to it: whatever the table holds of this execution and
    of later ones is taken away first, by a RESTORE of the version that the execution found (the compacted one, where
    the table was compacted in between). The table is emptied only where no earlier execution is known and it held no
    rows before the first one; a gap empties nothing. What was decided is logged (``lakewright.stateful_merger``). Which
    execution made which version is told by the commits themselves: killed between any two of them, a repeat of the
    execution leaves the same table.
Consequences:
    - A restored table lacks the later executions until they are repeated, in order, one at a time. A pipeline does
      that by itself, on to the newest; with the function it is the caller's to do.
    - A version is there as long as the table keeps it (``history`` of the dataset, by default 7 days): an execution
      that is older is refused before anything is changed, with the earliest that can still be repeated.
    - In a pipeline no restore crosses an erase: what was erased must not come back. The function knows of no erasures:
      do not repeat what lies before one.
    - A RESTORE takes back what others wrote to the table since then, too.
    - One execution at a time. In a pipeline its lease covers the whole dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, MissingColumnsError, SchemaChangeError, TargetError
from lakewright.failpoints import failpoint
from lakewright.model.outside import KeyedChanges, RestoresRows
from lakewright.model.protocols import WriteContext
from lakewright.model.receipts import Commit
from lakewright.model.runs import Run
from lakewright.model.slices import WHOLE
from lakewright.model.times import parse_time
from lakewright.patterns.idempotency.delta_paths import partition_columns, table_exists
from lakewright.patterns.idempotency.going_back import LOG, Execution, GoingBack, decide_going_back
from lakewright.patterns.idempotency.merge_history import (
    MergeHistory,
    StampedPath,
    read_merges,
    restore_to,
    shown,
    truncate,
)
from lakewright.patterns.idempotency.merger import Merger, keep_last_change, stored_columns
from lakewright.patterns.idempotency.refusals import refuse_ambiguous_keys, refuse_null_keys
from lakewright.patterns.idempotency.versions import read_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["RestoredMerge", "StatefulMerger", "merge_restoring"]

_GROUPS = {
    **dict.fromkeys(("byte", "short", "integer", "long", "float", "double", "decimal"), "number"),
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), "time"),
    "string": "text",
    "boolean": "boolean",
    "binary": "bytes",
}


@dataclass(frozen=True, slots=True)
class StatefulMerger:
    """The writer of the pipeline layer: one MERGE per slice, in order; a repeated slice takes the table back first.

    ``sequence``, ``deleted`` and ``delete`` are those of Merger.
    """

    keys: Sequence[str]
    sequence: str | None = None
    deleted: str | None = None
    delete: Literal["hard", "soft"] = "hard"

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "keys", tuple(self.merger.keys))
        except ConfigurationError as error:
            raise ConfigurationError(f"Stateful {error.message}", hint=error.hint) from None

    @property
    def merger(self) -> Merger:
        """How the changes are applied once the table is where it should be."""
        return Merger(self.keys, self.sequence, self.deleted, self.delete)

    @property
    def streams(self) -> bool:
        """A micro-batch is never an earlier one again: there is nothing to go back to."""
        return False

    @property
    def replaces_slice(self) -> bool:
        return False

    @property
    def table_properties(self) -> dict[str, str]:
        return self.merger.table_properties

    @property
    def restores(self) -> bool:
        """A repeated slice takes away what later ones made, so that they are made again after it."""
        return True

    def check(self, frame: DataFrame, what: str) -> None:
        """Runs a job over the keys: refuses what could not be merged, before the table goes back."""
        columns = frame.columns
        needed = [*self.keys, *[name for name in (self.sequence, self.deleted) if name]]
        if missing := [name for name in needed if name not in columns]:
            raise MissingColumnsError(pattern=f"{what} (Stateful Merger)", missing=missing, present=columns)
        refuse = refuse_ambiguous_keys if self.sequence is None else refuse_null_keys
        refuse(frame, keys=self.keys, what=what)

    def refuse_misfit(self, changes: StructType, kept: StructType, what: str) -> None:
        """Refuse columns that the table cannot take, before it goes back."""
        names = stored_columns(changes.names, kept.names, deleted=self.deleted, delete=self.delete, what=what)
        kinds = {field.name.lower(): field.dataType for field in kept}
        for name in names:
            new, old = changes[name].dataType, kinds[name.lower()]
            if _group(new) != _group(old) and "" not in (_group(new), _group(old)) and _group(old) != "text":
                raise SchemaChangeError(
                    f"{what}: the column {name} is {old.simpleString()} in the table and {new.simpleString()} in the "
                    "changes. Nothing was written.",
                    hint=f'Cast it: F.col("{name}").cast("{old.simpleString()}").',
                )

    def publish(self, frame: DataFrame, ctx: WriteContext) -> Commit | None:
        if not isinstance(ctx.table, RestoresRows):
            return self.merger.publish(frame, ctx)
        self.check(frame, ctx.dataset)
        rows = frame if self.sequence is None else keep_last_change(frame, keys=self.keys, sequence=self.sequence)
        # In order of execution the later change counts, whatever its sequence: so it is in the lake.
        changes = KeyedChanges(self.keys, None, self.deleted, self.delete)
        place = f"arrival-{ctx.slice.number:012d}" if ctx.slice.kind == "arrival" else ctx.slice.id
        return ctx.table.merge_rows_restoring(rows, changes, execution=place, back_to=ctx.back_to)


def _group(kind: DataType) -> str:
    """Types whose values Spark stores for each other; empty where it takes a closer look to know."""
    return _GROUPS.get(kind.typeName(), "")


@dataclass(frozen=True, slots=True)
class RestoredMerge:
    """What an execution did to the table: what was decided, and the version that its MERGE made."""

    execution: str
    decision: GoingBack
    version: int

    repeat: tuple[str, ...] = ()
    """The other executions that the table lacks now, in order: they have to be repeated, too. The log tells them, also
    to a call that begins again where another one died.
    """


def merge_restoring(
    df: DataFrame,
    path: str,
    *,
    keys: Sequence[str],
    execution_time: str | date | datetime,
    sequence: str | None = None,
    deleted: str | None = None,
    delete: Literal["hard", "soft"] = "hard",
) -> RestoredMerge:
    """Runs the jobs that merge the changes of one execution into a Delta table (made if it is not there), after the
    table was taken back where the execution repeats the past.

    >>> def merged(day, name):
    ...     changes = spark.createDataFrame([(1, name)], "device int, name string")
    ...     return merge_restoring(changes, folder, keys=["device"], execution_time=day)
    >>> [merged("2024-10-05", "a").decision.action, merged("2024-10-06", "b").decision.action]
    ['go on', 'go on']
    >>> merged("2024-10-06", "c").decision.reason
    '2024-10-06T00:00:00+00:00: repeats the past: the table goes back to version 1 and no longer holds
    2024-10-06T00:00:00+00:00.'
    """
    writer = StatefulMerger(keys, sequence, deleted, delete)
    at, spark = parse_time(execution_time), df.sparkSession
    there = table_exists(spark, path)
    history = read_merges(spark, path) if there else MergeHistory()
    decision = decide_going_back(shown(at), at, history.executions, held=partial(_held_rows, spark, path, history))
    LOG.info("%s: %s", path, decision.reason)
    if decision.action != "go on":
        writer.check(df, path)
        writer.refuse_misfit(df.schema, _found(spark, path, at, decision, history).schema, path)
        if decision.version is None:
            truncate(spark, path, at)
        else:
            restore_to(spark, path, decision.version, at)
        failpoint("went_back")
    context = WriteContext(
        dataset=path,
        slice=WHOLE,
        table=StampedPath(path, spark, at, writer.table_properties),
        run=Run(run_id="library", pipeline="library", time=at),
        partition_by=partition_columns(spark, path) if there else (),
    )
    commit = writer.publish(df, context)
    assert commit is not None
    failpoint("merged")
    lacking = {*history.lacking, *(one.name for one in decision.undone)} - {shown(at)}
    return RestoredMerge(shown(at), decision, commit.version, tuple(sorted(lacking, key=parse_time)))


def _held_rows(spark: SparkSession, path: str, history: MergeHistory, version: int) -> bool:
    """Runs a job: whether there were rows in the table before the first execution, which an emptied one would lose."""
    if not history.complete or version == history.emptied:
        return False  # nobody knows, which is refused; or it had just been emptied
    try:
        return bool(read_version(spark, path, version).take(1))
    except TargetError:
        return True  # an empty version has no files that could be gone


def _found(spark: SparkSession, path: str, at: datetime, decision: GoingBack, history: MergeHistory) -> DataFrame:
    """The table that the changes will be merged into; refused where it cannot be had back."""
    if decision.version is not None:
        return _refuse_gone(spark, path, at, decision, decision.version)
    if not history.complete:
        raise TargetError(
            f"Stateful Merger: {shown(at)} is the earliest execution that the log of {path} still tells of, and there "
            "may have been earlier ones. The table was not emptied.",
            hint="Keep the log for longer (delta.logRetentionDuration); to begin anew, write to another path.",
        )
    return spark.read.format("delta").load(path)


def _refuse_gone(spark: SparkSession, path: str, at: datetime, decision: GoingBack, version: int) -> DataFrame:
    try:
        return read_version(spark, path, version)
    except TargetError as error:
        raise TargetError(
            f"Stateful Merger: {shown(at)} cannot be repeated: version {version} of {path}, which the table would go "
            f"back to, is no longer there. Nothing was changed. {_earliest(spark, path, decision.undone)}",
            hint=f"{error.message} Repeat from that execution on, or build the table anew elsewhere.",
        ) from error


def _earliest(spark: SparkSession, path: str, executions: Sequence[Execution]) -> str:
    for one in executions:
        try:
            read_version(spark, path, one.found)
        except TargetError:
            continue
        return f"The earliest execution that can be repeated is {one.name}."
    return "No execution that the table holds can be repeated."
