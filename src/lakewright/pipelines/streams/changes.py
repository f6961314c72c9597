"""A stream below a replaced or merged table: the step on old and new images apart, and one MERGE of the outcome.

Guarantee:
    After each micro-batch the dataset holds what the step makes of the table as it stood: a row that only an old image
    gave is removed, one that a new image gives is inserted or updated. Within a version the old goes first, and then
    the writer's ``sequence`` counts; of several versions the last one counts. A new image that is flagged as deleted
    does what it does in a batch.
Consequences:
    - The step must be row-wise, and its writer must have keys: a row is told by them, however it came about.
    - The versions within a micro-batch are asked for by a small job, and the step is applied to each of them.
    - A row that is judged has a letter while the table holds it as it is: see ``streams.letters``.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from lakewright.lake.schemas import fit_to_table
from lakewright.model.references import SameSlice
from lakewright.patterns.idempotency.merger import Merger, keep_last_change, merge_clauses
from lakewright.patterns.idempotency.refusals import refuse_ambiguous_keys, refuse_null_keys
from lakewright.pipelines.definitions import Input
from lakewright.pipelines.filtering import count_filters
from lakewright.pipelines.inputs import InputFrame, judged_input, open_input, rows_for_limits
from lakewright.pipelines.make import call_step, check_result, lay_out, refuse_other_layout, set_aside
from lakewright.pipelines.properties import properties_of
from lakewright.pipelines.streams.letters import withdraw_letters
from lakewright.pipelines.streams.skew import refuse_skipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.streams.batches import BatchAttempt

__all__ = ["apply_to_images", "new_images"]

_GONE = "_lw_gone"
_ORDER = "_lw_order"
_SAME = "_lw_same"
_LATER = "_lw_later"
_OLD = "_change_type IN ('delete', 'update_preimage')"
_NEW = "_change_type IN ('insert', 'update_postimage')"
_FEED = ("_change_type", "_commit_version", "_commit_timestamp")


def new_images(rows: DataFrame) -> DataFrame:
    """The rows of a change feed as they came or became, without its own columns."""
    return rows.where(_NEW).drop(*_FEED)


def apply_to_images(attempt: BatchAttempt, streamed: Input, rows: DataFrame) -> None:
    """Runs the jobs of one micro-batch of a change feed."""
    dataset = attempt.dataset
    writer = dataset.writer
    assert isinstance(writer, Merger)
    others = {one.parameter: open_input(attempt, one) for one in dataset.inputs if one is not streamed}

    def judged(images: DataFrame, number: int | None = None) -> InputFrame:
        plain = images.drop(*_FEED)
        return judged_input(attempt, streamed, SameSlice(), plain, plain.columns, number, None)

    def inputs(images: InputFrame) -> list[InputFrame]:
        return [others.get(one.parameter, images) for one in dataset.inputs]

    kinds = {tuple(row) for row in rows.selectExpr("_commit_version", _OLD).distinct().collect()}
    versions = sorted({version for version, _ in kinds})
    new = rows.where(_NEW)
    if any(is_old for _, is_old in kinds):
        withdraw_letters(attempt, judged(rows.where(_OLD)))
        new = _still_there(rows) if len(versions) > 1 and streamed.guards else new
    news = inputs(judged(new, rows_for_limits(streamed, new)))
    set_aside(attempt, news)
    count_filters(attempt, news)
    outcomes = []
    for place, version in enumerate(versions):
        for newer, kind in enumerate((_OLD, _NEW)):
            images = rows.where(f"_commit_version = {version} AND {kind}")
            made = check_result(attempt, call_step(attempt, inputs(judged(images)))[dataset.name])
            outcomes.append(
                made.selectExpr("*", f"{str(not newer).lower()} AS {_GONE}", f"{2 * place + newer} AS {_ORDER}")
            )
    if not outcomes:
        return
    changes: DataFrame = reduce(lambda one, other: one.unionByName(other), outcomes)
    _merge(attempt, writer, _last_of_each(changes, writer, dataset.name))


def _still_there(rows: DataFrame) -> DataFrame:
    """The new images that no later version of the micro-batch took away again."""
    from pyspark.sql import functions as F

    held = [F.col(f"`{name}`") for name in rows.columns if name not in _FEED]
    told = rows.withColumn(_SAME, F.xxhash64(F.to_json(F.struct(*held))))
    gone = told.where(_OLD).groupBy(_SAME).agg(F.max("_commit_version").alias(_LATER))
    known = told.where(_NEW).join(gone, _SAME, "left")
    return known.where(f"{_LATER} IS NULL OR {_LATER} <= _commit_version").drop(_SAME, _LATER)


def _last_of_each(changes: DataFrame, writer: Merger, what: str) -> DataFrame:
    """Runs a job over the keys; refuses changes of which nothing tells the last one."""
    from pyspark.sql import functions as F

    writer.refuse_columns(changes.columns, what)
    new = changes.where(f"NOT {_GONE}")  # several old images of a key say the same
    if writer.sequence is None:
        refuse_ambiguous_keys(new, keys=writer.keys, what=what, within=(_ORDER,))
        return keep_last_change(changes, keys=writer.keys, sequence=_ORDER).drop(_ORDER)
    refuse_null_keys(new, keys=writer.keys, what=what)
    ordered = changes.withColumn(_ORDER, F.struct(_ORDER, F.col(f"`{writer.sequence}`")))
    return keep_last_change(ordered, keys=writer.keys, sequence=_ORDER).drop(_ORDER)


def _merge(attempt: BatchAttempt, writer: Merger, last: DataFrame) -> None:
    dataset = attempt.dataset
    table = attempt.shop.lake.open(
        dataset.name,
        attempt.identity(),
        properties=properties_of(attempt.shop.graph, dataset),
        still_mine=attempt.still_mine,
    )
    last, partitions = lay_out(attempt, last, writer, dataset.layout, dataset.name)
    refuse_other_layout(attempt, table, partitions, dataset.name)
    kept = fit_to_table(last.drop(_GONE), table, dataset=dataset.name)
    if not table.exists():
        table.create(kept.schema, partition_by=partitions)
    on = " AND ".join(f"t.`{key}` <=> s.`{key}`" for key in writer.keys)
    clauses = merge_clauses(kept.columns, deleted=writer.deleted, delete=writer.delete, removed=_GONE)
    refuse_skipped(attempt, table.merge(last, on=on, clauses=clauses))
