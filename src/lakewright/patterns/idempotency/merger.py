"""Merger: apply a feed of changes to a table by key, so that applying it twice changes nothing more.

Problem:
    Only changes arrive, never the whole dataset, and each may arrive again.
Guarantee:
    One MERGE per batch: a key that is new is inserted, a known one updated, one flagged as deleted removed
    (or kept and marked), and a flagged row for an unknown key is not inserted. The same batch twice leaves
    the same table. An input with NULL keys, or with several changes of one key and nothing that orders
    them, is refused before the write.
Consequences:
    - Keys must be immutable: a changed key is a new row, and the old one stays.
    - A row that is missing from the feed means nothing: deletes need a flag column. A NULL flag is read as
      "not deleted".
    - Replaying an old batch alone shows an older state until the later ones are replayed too, as a pipeline does;
      to restore the table first is what Stateful Merger does.
    - In the lake ``sequence`` orders the changes of one batch; a table outside of it (``PostgresTable``) also keeps a
      row that is newer than the change.
    - A MERGE reads the target. Where partition columns belong to the key, only the partitions that the batch
      names are read, at the price of a pass over those columns of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, MissingColumnsError, SchemaChangeError
from lakewright.model.columns import taken_names
from lakewright.model.outside import KeyedChanges, MergesRows
from lakewright.model.protocols import Table, WriteContext
from lakewright.model.receipts import Commit
from lakewright.model.sql import text_literal
from lakewright.patterns.idempotency.content_order import content_order
from lakewright.patterns.idempotency.delta_paths import DeltaPath, add_missing_columns, partition_columns
from lakewright.patterns.idempotency.refusals import refuse_ambiguous_keys, refuse_null_keys
from lakewright.patterns.idempotency.scd2 import Scd2, chain_versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Merger", "keep_last_change", "merge_changes", "refuse_ambiguous_keys"]

_MOST_PARTITIONS = 1_000
"""A longer list of values costs more to plan than it saves."""


@dataclass(frozen=True, slots=True)
class Merger:
    """The writer of the pipeline layer.

    ``sequence`` orders several changes of one key within a batch (the last one counts); ``deleted`` names a
    boolean column of the feed; ``history=Scd2(...)`` keeps every version of a row instead of the last one.
    """

    keys: Sequence[str]
    sequence: str | None = None
    deleted: str | None = None
    delete: Literal["hard", "soft"] = "hard"
    history: Scd2 | None = None

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or not self.keys:
            raise ConfigurationError("Merger: 'keys' is a list of at least one column, such as keys=[\"user_id\"].")
        if self.delete not in ("hard", "soft"):
            raise ConfigurationError(f"Merger: delete is 'hard' or 'soft', not {self.delete!r}.")
        if self.history is not None and self.deleted is not None:
            raise ConfigurationError("Merger: with history=Scd2(...), deletes are ended versions; leave 'deleted' out.")
        own = () if self.history is None else (self.history.valid_from, *self.history.adds_columns)
        if taken := taken_names(own, self.keys):
            raise ConfigurationError(f"Merger: the key {taken[0]} is a column of the history. Name another one.")
        object.__setattr__(self, "keys", tuple(self.keys))

    @property
    def streams(self) -> bool:
        """Not with a history: the changes of a micro-batch are applied by key, without their versions."""
        return self.history is None

    @property
    def replaces_slice(self) -> bool:
        return False

    @property
    def table_properties(self) -> dict[str, str]:
        """Few scattered rows change at a time: marked in their files, these need not be written anew."""
        return {"delta.enableDeletionVectors": "true"}

    @property
    def validity(self) -> tuple[str, str] | None:
        """The columns that tell when a version was valid, where versions are kept."""
        return (self.history.valid_from, self.history.valid_to) if self.history else None

    @property
    def adds_columns(self) -> tuple[str, ...]:
        """Columns of the table that the writer makes and the step does not."""
        return self.history.adds_columns if self.history else ()

    def refuse_columns(self, columns: Sequence[str], what: str) -> None:
        """Refuse changes without a column that they are applied by, or with one that the history makes."""
        told = (self.sequence, self.deleted, self.history.valid_from if self.history else None)
        if missing := [name for name in (*self.keys, *told) if name is not None and name not in columns]:
            raise MissingColumnsError(pattern=f"{what} (Merger)", missing=missing, present=columns)
        if self.history is not None:
            self.history.refuse_taken_columns(columns, what)

    def publish(self, frame: DataFrame, ctx: WriteContext) -> Commit | None:
        self.check(frame, ctx.dataset)
        return self.apply(frame, ctx)

    def check(self, frame: DataFrame, what: str) -> None:
        """Runs a job over the keys: refuses what cannot be merged, whatever the table is like."""
        self.refuse_columns(frame.columns, what)
        if self.history is not None:
            refuse_ambiguous_keys(frame, keys=[*self.keys, self.history.valid_from], what=what)
        elif self.sequence is not None:
            refuse_null_keys(frame, keys=self.keys, what=what)
        else:
            refuse_ambiguous_keys(frame, keys=self.keys, what=what)

    def apply(self, frame: DataFrame, ctx: WriteContext) -> Commit | None:
        """Runs the MERGE of changes that were checked."""
        if self.history is not None:
            return self._publish_history(frame, ctx, self.history)
        columns = frame.columns
        if self.sequence is not None:
            frame = keep_last_change(frame, keys=self.keys, sequence=self.sequence)
        if isinstance(ctx.table, MergesRows):
            return ctx.table.merge_rows(frame, KeyedChanges(self.keys, self.sequence, self.deleted, self.delete))
        clauses = merge_clauses(self._stored(columns, ctx), deleted=self.deleted, delete=self.delete)
        on = _match(self.keys) + self._prune(frame, ctx)
        return ctx.table.merge(frame, on=on, clauses=clauses, partition_by=ctx.partition_by)

    def _publish_history(self, frame: DataFrame, ctx: WriteContext, history: Scd2) -> Commit | None:
        if isinstance(ctx.table, MergesRows):
            raise ConfigurationError(f"{ctx.dataset}: a history (Scd2) is kept in the lake only. Nothing was written.")
        self._stored(frame.columns, ctx)
        known = ctx.table.read() if ctx.table.exists() else None
        chain = chain_versions(frame, known, keys=self.keys, history=history)
        columns = [name for name in chain.columns if name not in (*self.keys, history.valid_from)]
        changed = " OR ".join(f"NOT (t.`{name}` <=> s.`{name}`)" for name in columns)
        clauses = f"WHEN MATCHED AND ({changed}) THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        on = _match([*self.keys, history.valid_from]) + self._prune(frame, ctx)
        return ctx.table.merge(chain, on=on, clauses=clauses, partition_by=ctx.partition_by)

    def _prune(self, frame: DataFrame, ctx: WriteContext) -> str:
        # A column that may change for a key would hide the old row from the match, and the key would be doubled.
        safe = [name for name in ctx.partition_by if name in self.keys]
        return "".join(_one_of(frame, name) for name in safe) if ctx.table.exists() else ""

    def _stored(self, columns: Sequence[str], ctx: WriteContext) -> list[str]:
        """The columns of the feed that the target keeps."""
        if not ctx.table.exists():
            return list(columns)
        kept = [field.name for field in ctx.table.schema()]
        return stored_columns(columns, kept, deleted=self.deleted, delete=self.delete, what=ctx.dataset)


def merge_changes(
    df: DataFrame,
    target: str | Table,
    *,
    keys: Sequence[str],
    sequence: str | None = None,
    deleted: str | None = None,
    delete: Literal["hard", "soft"] = "hard",
    history: Scd2 | None = None,
    new_columns: Literal["refuse", "add"] = "refuse",
) -> Commit | None:
    """Runs a MERGE that applies the changes to a Delta table (a path, made if it is not there); the checks run
    before anything is written. A column that the table lacks is refused, or added first (rows that are not changed
    read NULL there).

    >>> users = spark.createDataFrame([(1, "FR"), (2, "PL")], "user int, country string")
    >>> merge_changes(users, folder, keys=["user"]).rows
    2
    >>> moved = spark.createDataFrame([(1, "DE")], "user int, country string")
    >>> merge_changes(moved, folder, keys=["user"]).metrics["numTargetRowsUpdated"]
    1
    """
    from lakewright.model.runs import Run
    from lakewright.model.slices import WHOLE
    from lakewright.model.times import utc_now

    writer = Merger(keys=keys, sequence=sequence, deleted=deleted, delete=delete, history=history)
    if isinstance(target, str):
        table: Table = DeltaPath(target, df.sparkSession, properties=writer.table_properties)
    else:
        table = target
    laid_out = partition_columns(table.spark, table.path) if table.exists() else ()
    writer.check(df, table.path)
    if new_columns == "add" and table.exists():
        applied_only = (deleted,) if deleted and delete == "hard" else ()
        add_missing_columns(table.spark, table.path, df.schema, but=applied_only)
    run = Run(run_id="library", pipeline="library", time=utc_now())
    context = WriteContext(dataset=table.path, slice=WHOLE, table=table, run=run, partition_by=laid_out)
    return writer.apply(df, context)


def keep_last_change(df: DataFrame, *, keys: Sequence[str], sequence: str) -> DataFrame:
    """Keep the newest change of each key; ties are broken by the content, so the result is always the same."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    ties = content_order(df, but=[*keys, sequence])
    of_key = Window.partitionBy(*[f"`{key}`" for key in keys])
    newest_first = of_key.orderBy(F.col(f"`{sequence}`").desc_nulls_last(), *ties)
    return df.withColumn("_lw_rank", F.row_number().over(newest_first)).where("_lw_rank = 1").drop("_lw_rank")


def merge_clauses(
    columns: Sequence[str], *, deleted: str | None, delete: Literal["hard", "soft"], removed: str | None = None
) -> str:
    """The branches of the MERGE: matched and flagged, matched, not matched and not flagged.

    ``removed`` names a further flag of the changes, which is not stored: such a row goes whatever ``delete`` says.
    """
    # A NULL flag is read as "not deleted": it fulfils no branch otherwise, and the row would be lost.
    flags = {name: f"coalesce(s.`{name}`, false)" for name in (deleted, removed) if name is not None}
    values = {f"`{name}`": flags[name] if name == deleted else f"s.`{name}`" for name in columns}
    update = "UPDATE SET " + ", ".join(f"t.{name} = {value}" for name, value in values.items())
    insert = f"INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    goes = " OR ".join(flag for name, flag in flags.items() if name == removed or delete == "hard")
    first = f"WHEN MATCHED AND ({goes}) THEN DELETE " if goes else ""
    known = "".join(f" AND NOT {flag}" for flag in flags.values())
    return f"{first}WHEN MATCHED THEN {update} WHEN NOT MATCHED{known} THEN {insert}"


def stored_columns(
    columns: Sequence[str],
    kept: Sequence[str],
    *,
    deleted: str | None,
    delete: Literal["hard", "soft"],
    what: str,
) -> list[str]:
    """The columns of a feed that a table keeps: all of them, but a flag that it never had, where deletes are hard.

    A name in other letters is the same column, as it is for Delta.
    """
    there = {name.lower() for name in kept}
    if strangers := [name for name in columns if name.lower() not in there and name != deleted]:
        raise SchemaChangeError(
            f"{what}: the changes have a column {', '.join(strangers)} that the table lacks. Nothing was written.",
            hint='Drop it from the changes, or let it be added: new_columns="add" of merge_changes, or ALTER TABLE ... '
            "ADD COLUMNS.",
        )
    if delete == "soft" and deleted is not None and deleted.lower() not in there:
        raise SchemaChangeError(
            f"{what}: the table has no column {deleted}, by which deleted rows would be marked. Nothing was written.",
            hint=f'Let it be added: new_columns="add", or ALTER TABLE ... ADD COLUMNS ({deleted} boolean); or use '
            'delete="hard".',
        )
    return [name for name in columns if name.lower() in there]


def _one_of(frame: DataFrame, name: str) -> str:
    """A condition that lets Delta skip the partitions that no change names; empty where there are too many."""
    from pyspark.sql import functions as F

    kind = frame.schema[name].dataType.simpleString()
    found = frame.select(F.col(f"`{name}`").cast("string")).distinct().limit(_MOST_PARTITIONS + 1).collect()
    if not found or len(found) > _MOST_PARTITIONS:
        return ""
    listed = ", ".join(f"CAST({text_literal(row[0])} AS {kind})" for row in found)
    return f" AND t.`{name}` IN ({listed})"


def _match(keys: Sequence[str]) -> str:
    # A change whose key is NULL was refused, and plain equality joins faster than the one by which NULL equals itself.
    return " AND ".join(f"t.`{key}` = s.`{key}`" for key in keys)
