"""The lake's own tables for rows that are set aside: dead letters with their life, and late rows.

Rows are replaced with the slice that set them aside, so a repeat never doubles them; those of the attempt that is
published stay until another one is. The partition columns
carry what a count is asked for (dataset, slice, input, rule): the commit's own statistics are then the account, and
no counting job runs. The life of a dead letter (``dead_letter_life``) is a list of what people did about it, by the
identity of its record, and outlives the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lakewright.lake.lake import SYSTEM_FOLDER, Lake
from lakewright.lake.letter_places import RECORD_ID, place_columns
from lakewright.lake.log import own_commits
from lakewright.lake.schemas import fit_to_table
from lakewright.model.columns import HASH_COLUMN, RAW_COLUMN, business_columns
from lakewright.model.identity import Identity
from lakewright.model.receipts import Commit
from lakewright.model.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "BESIDE",
    "DEAD_LETTERS",
    "DEAD_LETTER_LIFE",
    "LATE_ROWS",
    "REPEATS",
    "SIDE_PARTITIONS",
    "SIDE_TABLES",
    "aside_rows",
    "dead_letter_rows",
    "find_side_rows",
    "late_rows",
    "rows_per_rule",
    "write_side_rows",
]

DEAD_LETTERS = f"{SYSTEM_FOLDER}/dead_letters"
DEAD_LETTER_LIFE = f"{SYSTEM_FOLDER}/dead_letter_life"
LATE_ROWS = f"{SYSTEM_FOLDER}/late_rows"
REPEATS = f"{SYSTEM_FOLDER}/repeats"
"""Rows that a Windowed Deduplicator dropped, where it was asked to keep them."""
BESIDE = "beside"
"""Of a commit of side rows: the number of the attempt whose rows it left where they are."""
SIDE_TABLES = {"dead_letters": DEAD_LETTERS, "late_rows": LATE_ROWS, "repeats": REPEATS}
SIDE_PARTITIONS = ("dataset", "slice", "input", "rule")
_LATE = {"event_time": "timestamp", "watermark": "timestamp", "late_by_seconds": "double"}
"""What the late table tells beside the record; NULL where nobody knows it."""
_NOTHING: Mapping[str, Column] = MappingProxyType({})


def dead_letter_rows(
    broken: DataFrame,
    *,
    reasons: Column,
    identity: Identity,
    input_name: str,
    keep: Sequence[str],
    error: Column | None = None,
) -> DataFrame:
    """The rows that broke a rule, as dead letters: why, which record, who judged it and when.

    ``keep`` are the business columns to carry along; the fewer, the narrower the pass over the input. ``error`` is what
    a user's function said that raised on the row.
    """
    from pyspark.sql import functions as F

    told = {"error": F.lit(None).cast("string") if error is None else error}
    return aside_rows(broken, reasons=reasons, identity=identity, input_name=input_name, keep=keep, told=told)


def aside_rows(
    rows: DataFrame,
    *,
    reasons: Column,
    identity: Identity,
    input_name: str,
    keep: Sequence[str],
    told: Mapping[str, Column] = _NOTHING,
) -> DataFrame:
    """Rows set aside, in the form that all side tables share; ``told`` are further columns of one of them."""
    from pyspark.sql import functions as F

    return (
        _side_rows(rows.withColumn("_lw_reasons", reasons), identity, input_name, keep, told)
        .select("*", F.element_at("_lw_reasons", 1).alias("rule"), F.col("_lw_reasons").alias("rules"))
        .drop("_lw_reasons")
    )


def late_rows(
    frame: DataFrame, *, identity: Identity, input_name: str, told: Mapping[str, Column] = _NOTHING
) -> DataFrame:
    """Rows that came after their slice was done, or behind a watermark, and that policy leaves out."""
    from pyspark.sql import functions as F

    return aside_rows(
        frame,
        reasons=F.array(F.lit("late")),
        identity=identity,
        input_name=input_name,
        keep=business_columns(frame.columns),
        told={name: told.get(name, F.lit(None)).cast(kind) for name, kind in _LATE.items()},
    )


def write_side_rows(
    lake: Lake,
    table: str,
    rows: DataFrame,
    identity: Identity,
    *,
    of_input: str | None = None,
    beside: int | None = None,
    again: bool = False,
) -> Commit | None:
    """Runs a job that replaces the side rows of this dataset and slice (``of_input``: only those of one input).

    Those of the attempt ``beside``, by its number, stay: they count until this one has published. Letters of a slice
    that is made ``again`` keep when their record was first seen. What the same attempt had committed before stays, and
    is returned; None where a newer attempt was first.
    """
    if beside is not None:
        identity = replace(identity, details={**identity.details, BESIDE: beside})
    target = lake.open(table, identity)
    where = f"dataset = '{identity.dataset}' AND slice = '{identity.slice_id}'"
    if table == DEAD_LETTERS and (again or beside is not None) and target.exists():
        rows = _seen_before(rows, target.read().where(where))
    if of_input is not None:
        where += f" AND input = '{of_input}'"
    if beside is not None:
        where += f" AND number <> {beside}"
    # A table that an older release made lacks what has been told of a record since; it gains it here.
    fitted = fit_to_table(rows, target, dataset=table)
    commit = target.replace(fitted, where=where, partition_by=SIDE_PARTITIONS, within=True)
    return commit if commit is not None else find_side_rows(lake, table, identity)


def find_side_rows(lake: Lake, table: str, identity: Identity) -> Commit | None:
    """The commit of side rows under this very transaction: the newest, found from the end of the log."""
    for commit, found in own_commits(lake.delta_log(table)):
        if found.kind == identity.kind and found.transaction == identity.transaction:
            return commit
    return None


def rows_per_rule(lake: Lake, table: str, version: int, *, number: int | None = None) -> dict[str, dict[str, int]]:
    """Rows of each input that one commit set aside, by the first rule that a row broke: from the log's statistics.

    With ``number`` only files of this attempt count: what stays beside it may have been copied out of a joined file.
    """
    import json

    counts: dict[str, dict[str, int]] = {}
    for line in lake.delta_log(table)._lines(version):
        if line.startswith('{"add"'):
            add = json.loads(line)["add"]
            values, stats = add["partitionValues"], json.loads(add["stats"])
            if number is not None and stats.get("minValues", {}).get("number", number) != number:
                continue
            rules = counts.setdefault(values["input"], {})
            rules[values["rule"]] = rules.get(values["rule"], 0) + int(stats["numRecords"])
    return counts


def _seen_before(rows: DataFrame, earlier: DataFrame) -> DataFrame:
    """The letters of a slice, each with the time of the first attempt that set its record aside. Lazy."""
    from pyspark.sql import functions as F

    first = F.coalesce("seen", "run_time") if "seen" in earlier.columns else F.col("run_time")
    before = earlier.groupBy("input", F.expr(RECORD_ID).alias("_lw_id")).agg(F.min(first).alias("_lw_first"))
    known = rows.withColumn("_lw_id", F.expr(RECORD_ID)).join(before, ["input", "_lw_id"], "left")
    return known.withColumn("seen", F.least("seen", "_lw_first")).drop("_lw_id", "_lw_first")


def _side_rows(
    judged: DataFrame, identity: Identity, input_name: str, keep: Sequence[str], told: Mapping[str, Column]
) -> DataFrame:
    from pyspark.sql import functions as F

    present = set(judged.columns)
    raw = F.col(RAW_COLUMN) if RAW_COLUMN in present else F.lit(None).cast("string")
    record = F.to_json(F.struct(*[F.col(quoted(name)) for name in keep])) if keep else F.lit(None).cast("string")
    content = F.col(HASH_COLUMN) if HASH_COLUMN in present else F.xxhash64(record)
    return judged.select(
        F.lit(identity.dataset).alias("dataset"),
        F.lit(identity.slice_id).alias("slice"),
        F.lit(input_name).alias("input"),
        *map(F.expr, place_columns(present)),
        content.alias("record_hash"),
        raw.alias("raw"),
        record.alias("record"),
        F.lit(identity.number).cast("bigint").alias("number"),
        F.lit(identity.run_id).alias("run_id"),
        F.lit(identity.run_time).cast("timestamp").alias("run_time"),
        F.lit(identity.run_time).cast("timestamp").alias("seen"),
        F.lit(identity.code).alias("code"),
        "_lw_reasons",
        *[column.alias(name) for name, column in told.items()],
    )
