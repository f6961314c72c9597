"""Writing both halves of a Dead-Letter split to Delta, without a lake.

Guarantee:
    The input is computed once. The rejected rows of a run are committed first and replaced as a whole when the
    run is repeated; then the valid rows replace their slice. A repeat, also after a kill between the two,
    leaves both tables as one undisturbed run would have. Where more rows are rejected than the limit allows,
    or the rejected rows cannot be stored, nothing is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, LimitExceeded
from lakewright.model.columns import taken_names
from lakewright.patterns.error_management.dead_letter import Rule, split_dead_letters
from lakewright.patterns.idempotency.data_overwrite import overwrite_slice
from lakewright.patterns.idempotency.delta_paths import table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DeadLetterAccount", "write_with_dead_letters"]


@dataclass(frozen=True, slots=True)
class DeadLetterAccount:
    """``read = valid + rejected``; ``rules`` counts each broken rule, so a row with two counts in both."""

    read: int
    valid: int
    rejected: int
    rules: Mapping[str, int]


def write_with_dead_letters(
    df: DataFrame,
    *,
    rules: Mapping[str, Rule],
    valid_path: str,
    dead_letter_path: str,
    run: str,
    job: str,
    version: str = "1",
    where: str | None = None,
    partition_by: Sequence[str] = (),
    stop_above: float | None = None,
) -> DeadLetterAccount:
    """Runs the jobs that write the rows that break a rule to one Delta table and all others to another.

    ``where`` is the slice of the valid table that this run replaces (without it, all of it). A dead letter keeps
    the row, ``broken_rules``, and who rejected it: ``job``, ``version`` and ``run``, by which they are partitioned.

    >>> visits = spark.createDataFrame([("v1", 3), ("v2", -1)], "visit string, pages int")
    >>> write_with_dead_letters(visits, rules={"some_pages": "pages > 0"}, job="visits", run="2026-01-05",
    ...     valid_path=f"{folder}/visits", dead_letter_path=f"{folder}/dead")
    DeadLetterAccount(read=2, valid=1, rejected=1, rules={'some_pages': 1})
    """
    from pyspark.sql import functions as F

    if stop_above is not None and not 0 <= stop_above <= 1:
        raise ConfigurationError(f"Dead-Letter: stop_above is a share from 0 to 1, not {stop_above}.")
    if not run or "'" in run or "\\" in run:
        raise ConfigurationError(f"Dead-Letter: {run!r} is no name for a run.")
    if taken := taken_names(("job", "job_version", "run"), df.columns):
        raise ConfigurationError(
            f"Dead-Letter: the input already has a column '{taken[0]}', which tells in a dead letter who rejected it. "
            "Rename it. Nothing was written."
        )
    shared = df.persist()
    try:
        split = split_dead_letters(shared, rules=rules)
        account = _count(shared, split.rejected, list(rules))
        letters = split.rejected.select(
            "*", F.lit(job).alias("job"), F.lit(version).alias("job_version"), F.lit(run).alias("run")
        )
        letters = _with_earlier_columns(letters, dead_letter_path)
        mine = f"run = '{run}'"
        overwrite_slice(letters, dead_letter_path, where=mine, partition_by=("run",), empty="allow", new_columns="add")
        share = account.rejected / account.read if account.read else 0.0
        if stop_above is not None and share > stop_above:
            raise LimitExceeded(
                f"{job}, run {run}: {account.rejected:,} of {account.read:,} rows ({share:.1%}) broke a rule, more "
                f"than the limit of {stop_above:.1%}. Nothing was published; the rows are in {dead_letter_path}.",
                dataset=job,
                slice_id=run,
                share=share,
                rows=account.rejected,
            )
        overwrite_slice(split.valid, valid_path, where=where, partition_by=partition_by, empty="allow")
    finally:
        shared.unpersist()
    return account


def _with_earlier_columns(letters: DataFrame, path: str) -> DataFrame:
    """As NULL, the columns that letters of other runs have: those stay, whatever the input has lost since."""
    from pyspark.sql import functions as F

    earlier, columns = table_schema(letters.sparkSession, path), letters.columns
    lost = [field for field in earlier or () if not taken_names([field.name], columns)]
    return letters.select("*", *[F.lit(None).cast(field.dataType).alias(field.name) for field in lost])


def _count(shared: DataFrame, rejected: DataFrame, rules: Sequence[str]) -> DeadLetterAccount:
    from pyspark.sql import functions as F

    broken = [F.count_if(F.array_contains("broken_rules", rule)).alias(rule) for rule in rules]
    counts = rejected.agg(F.count(F.lit(1)).alias("_lw_rejected"), *broken).first()
    assert counts is not None
    read = shared.count()
    return DeadLetterAccount(
        read=read,
        valid=read - counts["_lw_rejected"],
        rejected=counts["_lw_rejected"],
        rules={rule: counts[rule] for rule in rules},
    )
