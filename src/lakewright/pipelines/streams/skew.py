"""The skew buffer of a stream: rows above a partition's quota wait in a table, and come with later micro-batches.

Guarantee:
    Each row is delivered once, in the order of its partition, whatever dies at whatever moment. A micro-batch commits
    its surplus before its rows; that commit leaves in the buffer what the micro-batch itself takes out of it, and tells
    by which rule the line was drawn. A repeat therefore has the same rows and draws the same line.
Consequences:
    - A micro-batch is counted by partition, from a cached copy of its rows; only where one is above the quota are they
      ranked, and the surplus written.
    - What waits is written anew by each micro-batch. Files that no state needs are removed from time to time.
    - Rows also go out without a micro-batch (see ``drain``), so a batch's place in its generation is Spark's number
      plus how often that happened before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import TargetError
from lakewright.failpoints import failpoint
from lakewright.lake.lake import SYSTEM_FOLDER, Lake
from lakewright.lake.log import own_commits
from lakewright.lake.schemas import fit_to_table
from lakewright.model.receipts import Commit
from lakewright.model.slices import ARRIVAL_COLUMN
from lakewright.model.streams import batch_number
from lakewright.patterns.storage.skew_buffer import SkewBuffer, split_by_quota
from lakewright.pipelines.definitions import Dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.streams.batches import BatchAttempt

__all__ = [
    "PART",
    "Kept",
    "Standing",
    "buffer_of",
    "is_delivered",
    "last_delivered",
    "last_kept",
    "newer_at_work",
    "refuse_skipped",
    "standing_of",
    "waiting_rows",
    "within_quota",
]

PART = "skew_buffer"
_STATE = "_lw_batch"
"""The arrival whose surplus a row is."""
_FIRST = "_lw_first"
"""The arrival that first read it: what has waited longest goes first."""
_PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.logRetentionDuration": "interval 1 days",
}
_CLEAN_EVERY = 100
"""Commits: only the newest state is ever read."""


def buffer_of(name: str) -> str:
    """The table in which a stream's surplus waits."""
    return f"{SYSTEM_FOLDER}/skew_buffers/{name}"


@dataclass(frozen=True, slots=True)
class Kept:
    """The newest state of a buffer, as its commit tells."""

    place: int
    """The place in the generation of the batch that left it."""
    rows: int
    after: int | None
    """The place of the state that the same batch took out of the buffer; None: there was nothing in it."""
    rule: SkewBuffer | None
    drain: bool
    drains: int
    """How many batches of buffered rows alone the generation has had."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the micro-batches of a query must know of the buffer: it holds while the query runs."""

    in_use: bool = False
    drains: int = 0


def standing_of(lake: Lake, dataset: Dataset, generation: int) -> Standing:
    """How a stream stands when its query begins. Reads logs only.

    A buffer that is no longer declared is in use until it is empty.
    """
    declared = dataset.skew_buffer is not None
    kept = last_kept(lake, dataset.name, generation)
    if kept is None:
        return Standing(in_use=declared)
    # An empty one may be that of a micro-batch that has to be repeated.
    waits = kept.rows > 0 or not is_delivered(lake, dataset.name, generation, kept.place)
    return Standing(in_use=declared or waits, drains=kept.drains)


def last_kept(lake: Lake, name: str, generation: int, *, given_up: bool = False) -> Kept | None:
    """The newest state that a generation left; None: nothing has been set aside. A new one begins empty.

    One that was ``given_up`` is fenced, so that nothing of it is delivered any more.
    """
    for commit, identity in own_commits(lake.delta_log(buffer_of(name))):
        if identity.kind == "schema" or (given_up and identity.kind == "fence"):
            continue
        told = identity.details
        if identity.kind == "fence" or told.get("generation") != generation:
            return None
        after, rule = told["after"], told["rule"]
        return Kept(
            place=int(str(told["batch"])),
            rows=1 if commit.rows is None else commit.rows,  # a log that does not tell: some
            after=None if after is None else int(str(after)),
            rule=SkewBuffer.from_json(rule) if isinstance(rule, dict) else None,
            drain=bool(told.get("drain")),
            drains=int(str(told["drains"])),
        )
    return None


def last_delivered(lake: Lake, name: str, generation: int) -> int | None:
    """The place of the last batch of a generation whose rows are in the dataset, as the log tells."""
    for _, identity in own_commits(lake.delta_log(name)):
        if identity.kind not in ("data", "rewind", "restore"):
            continue
        if identity.kind != "data" or identity.details.get("generation") != generation:
            return None
        return int(str(identity.details["batch"]))
    return None


def waiting_rows(lake: Lake, name: str, generation: int, *, given_up: bool = False) -> DataFrame | None:
    """What waits in a stream's buffer, each row under the arrival that first read it; None: nothing.

    What a batch has taken out waits until that batch is delivered; beside it lies what is new of its surplus. Of a
    generation that was ``given_up`` it is what waited then.
    """
    kept = last_kept(lake, name, generation, given_up=given_up)
    if kept is None:
        return None
    state = batch_number(generation, kept.place)
    waiting = f"{_STATE} = {state}"
    if kept.after is not None and not is_delivered(lake, name, generation, kept.place):
        taken = batch_number(generation, kept.after)
        waiting = f"{_STATE} = {taken} OR ({waiting} AND {_FIRST} = {state})"
    elif not kept.rows:
        return None
    stored = lake.read(buffer_of(name), system_columns=True)
    return stored.where(waiting).withColumnRenamed(_FIRST, ARRIVAL_COLUMN)


def is_delivered(lake: Lake, name: str, generation: int, place: int) -> bool:
    """Whether the rows of a batch are in the dataset."""
    reached = last_delivered(lake, name, generation)
    return reached is not None and reached >= place


@contextmanager
def within_quota(attempt: BatchAttempt, fresh: DataFrame | None) -> Iterator[DataFrame]:
    """Runs the jobs that set a batch's surplus aside, and gives the rows to deliver; None as rows: the buffer's alone.

    The rows are cached until the batch is done.
    """
    lake, dataset = attempt.shop.lake, attempt.dataset
    kept = last_kept(lake, dataset.name, attempt.generation)
    again = kept is not None and kept.place == attempt.batch
    if kept is not None and (kept.place > attempt.batch or (again and kept.drain != attempt.drain)):
        raise newer_at_work(attempt)
    rule, after = dataset.skew_buffer, None
    if kept is not None and again:
        rule, after = kept.rule, kept.after
    elif kept is not None and kept.rows:
        after = kept.place
    rows = _rows(attempt, fresh, after)
    if rule is not None:
        rows.persist()
    try:
        if after is None and not again and not _is_above(rows, rule):
            yield rows.drop(_FIRST)
            return
        within, surplus = rows, rows.where("false")
        if rule is not None:
            assert rule.by
            assert rule.order
            within, surplus = split_by_quota(
                rows, by=rule.by, order=(_FIRST, *rule.order), quota=rule.quota, limit=rule.limit
            )
        if not again:
            _keep(attempt, surplus, after, rule)
        failpoint("surplus_kept")
        yield within.drop(_FIRST)
    finally:
        if rule is not None:
            rows.unpersist()


def _rows(attempt: BatchAttempt, fresh: DataFrame | None, after: int | None) -> DataFrame:
    """What a batch has to deliver from: the rows that wait, and those that it brings itself."""
    from pyspark.sql import functions as F

    waiting = None
    if after is not None:
        stored = attempt.shop.lake.read(buffer_of(attempt.dataset.name), system_columns=True)
        waiting = stored.where(f"{_STATE} = {batch_number(attempt.generation, after)}").drop(_STATE)
    if fresh is None:
        assert waiting is not None
        return waiting
    new = fresh.withColumn(_FIRST, F.expr(f"{attempt.slice.number}L"))
    # A column that the source has gained since is NULL in what waits.
    return new if waiting is None else new.unionByName(waiting, allowMissingColumns=True)


def _is_above(rows: DataFrame, rule: SkewBuffer | None) -> bool:
    """Runs a job that counts the rows of each partition; whether one has more than its quota."""
    from pyspark.sql import functions as F

    if rule is None:
        return False
    assert rule.by
    sizes = rows.groupBy(*[f"`{name}`" for name in rule.by]).agg(F.count(F.lit(1)).alias("rows"))
    return sizes.where(F.col("rows") > rule.quota).limit(1).count() > 0


def _keep(attempt: BatchAttempt, surplus: DataFrame, after: int | None, rule: SkewBuffer | None) -> None:
    """Runs the job that replaces the buffer by this batch's surplus, beside what the batch takes out of it."""
    from pyspark.sql import functions as F

    name = attempt.dataset.name
    identity = attempt.identity(
        after=after, drains=attempt.drains, rule=None if rule is None else rule.to_json()
    ).as_part(PART)
    table = attempt.shop.lake.open(buffer_of(name), identity, properties=_PROPERTIES, still_mine=attempt.still_mine)
    marked = surplus.withColumn(_STATE, F.expr(f"{attempt.slice.number}L"))
    fitted = fit_to_table(marked, table, dataset=f"{name} (skew buffer)")
    taken = 0 if after is None else batch_number(attempt.generation, after)
    commit = table.replace(fitted, where=f"{_STATE} <> {taken}", partition_by=(_STATE,), within=True)
    if commit is None:
        raise newer_at_work(attempt)
    if commit.version % _CLEAN_EVERY == _CLEAN_EVERY - 1:
        table.spark.sql(f"VACUUM delta.`{table.path}`")


def refuse_skipped(attempt: BatchAttempt, commit: Commit | None) -> None:
    """Refuse a batch that left no commit, unless its rows are there: somebody has fenced this one's generation.

    Going on, it would read record after record, and none of them would ever be in the dataset.
    """
    if commit is None and last_delivered(attempt.shop.lake, attempt.dataset.name, attempt.generation) != attempt.batch:
        raise newer_at_work(attempt)


def newer_at_work(attempt: BatchAttempt) -> TargetError:
    name = attempt.dataset.name
    return TargetError(
        f"{name}: another process is further than micro-batch {attempt.batch}. Nothing was written.",
        hint="That process goes on. Where there is none, the stream's checkpoint is older than its table: put the "
        f"newer one back, or begin a new one by `lakewright stream rewind {name} --all`.",
    )
