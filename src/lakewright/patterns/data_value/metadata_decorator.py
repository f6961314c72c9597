"""Metadata Decorator: write technical facts about a record where business readers do not stumble on them.

Problem:
    The job is released every week, and nobody can tell which version made which record. What tells it must go with each
    record, and must not be in anybody's way.
Guarantee:
    The facts are those of the run, the same in each of its tasks; the time among them is the run's own, not that of a
    clock. The record itself does not change: the value of a message has the same bytes with headers and without. Only
    facts on the list may be told (``FACTS``): anything else is refused when the project is loaded. In a technical table
    a batch has one row; loading it again replaces that row, and its attempt is a higher one.
Consequences:
    - Topics have headers and files have tags; tables have neither: there a hidden column, or an id and a technical
      table, hold the facts. ``where="native"`` is refused where a target has no place of its own for them, unless
      ``fallback`` says which of the two it may be.
    - A column whose name begins with ``_lw_`` is hidden from steps and readers of the lake. In PostgreSQL a view
      without it is what readers get (``PostgresTable(..., view=..., readers=[...])``); the table is denied to them.
    - A hidden column repeats its text in every row: columnar files keep it once, PostgreSQL does not. The technical
      table is for that.
    - Whoever copies a file without its tag, or a message without its headers, loses them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lakewright.errors import ConfigurationError
from lakewright.model.columns import CONTEXT_COLUMN, CONTEXT_ID_COLUMN, taken_names
from lakewright.patterns.data_value.context_facts import FACTS, check_facts, facts_as_json
from lakewright.patterns.data_value.file_tags import read_tags, tag_files
from lakewright.patterns.idempotency.delta_paths import table_exists

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "FACTS",
    "MetadataDecorator",
    "Where",
    "add_headers",
    "add_metadata",
    "read_tags",
    "tag_files",
    "write_context",
]

Where: TypeAlias = Literal["native", "column", "table"]
_USUAL = ("job_version", "run_id", "batch", "attempt", "run_time")
_TYPES = {"attempt": "BIGINT", "run_time": "TIMESTAMP"}


@dataclass(frozen=True, slots=True)
class MetadataDecorator:
    """Which facts go with each row of a dataset, and where: ``metadata=MetadataDecorator(version="1.4.2")``."""

    facts: Sequence[str] = _USUAL
    where: Where = "column"
    """``native``: the target's own place (headers of a topic); ``column``: a hidden column; ``table``: an id in a
    hidden column, and the facts once per slice in the dataset ``NAME_context``."""
    fallback: Literal["column", "table"] | None = None
    """Where else, for a target that has no place of its own."""
    version: str | None = None
    """The ``job_version``; where none is given, the hash of the step's code."""

    def __post_init__(self) -> None:
        check_facts("Metadata Decorator", self.facts)
        if not self.facts:
            raise ConfigurationError(f"Metadata Decorator: no fact is named. There are {', '.join(FACTS)}.")
        if self.where not in get_args(Where):
            raise ConfigurationError(f"Metadata Decorator: where is 'native', 'column' or 'table', not {self.where!r}.")
        if self.fallback not in (None, "column", "table"):
            raise ConfigurationError(f"Metadata Decorator: fallback is 'column' or 'table', not {self.fallback!r}.")
        object.__setattr__(self, "facts", tuple(self.facts))

    def place_in(self, target: str, *, carries: bool) -> Where:
        """Where the facts go in a target; refused where it has no place of its own and no other was named."""
        if self.where != "native" or carries:
            return self.where
        if self.fallback is None:
            raise ConfigurationError(
                f"{target} has no place of its own for metadata, as headers of a topic are.",
                hint='Say MetadataDecorator(where="column") for a hidden column, where="table" for a technical table, '
                "or name one of them as fallback.",
            )
        return self.fallback


def add_metadata(
    df: DataFrame, *, facts: Mapping[str, object], where: Literal["column", "table"] = "column", into: str | None = None
) -> DataFrame:
    """Add the facts to each row as one text (JSON), or, with ``where="table"``, the id of their row there. Lazy.

    >>> visits = spark.createDataFrame([("v1",)], "visit string")
    >>> add_metadata(visits, facts={"job_version": "1.4.2", "batch": "2026-01-05"}).collect()
    [Row(visit='v1', _lw_context='{"job_version":"1.4.2","batch":"2026-01-05"}')]
    """
    check_facts("Metadata Decorator", facts)
    if where == "table":
        return df.withColumn(into or CONTEXT_ID_COLUMN, _constant(_batch_of(facts)))
    return df.withColumn(into or CONTEXT_COLUMN, _constant(facts_as_json(facts)))


def add_headers(df: DataFrame, *, facts: Mapping[str, object], into: str = "headers") -> DataFrame:
    """Add the facts as Kafka headers, for ``df.write.format("kafka")``; every value is bytes. Lazy.

    Headers that the frame has already stay before them.
    """
    from pyspark.sql import functions as F

    check_facts("Metadata Decorator", facts)
    told = [
        F.struct(F.lit(name).alias("key"), F.lit(str(one)).cast("binary").alias("value"))
        for name, one in facts.items()
        if one is not None
    ]
    own = F.array(*told)
    return df.withColumn(into, F.concat(F.col(into), own) if taken_names([into], df.columns) else own)


def write_context(spark: SparkSession, path: str, *, facts: Mapping[str, object]) -> None:
    """Runs a MERGE that writes the facts of a batch into a technical table (made if it is not there), by ``batch``.

    Loading the batch again replaces its row; its attempt is the one that is given, or else one more than before.
    """
    from pyspark.sql import functions as F

    check_facts("Metadata Decorator", facts)
    kinds = {name: _TYPES.get(name, "STRING") for name in FACTS}
    listed = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    values = [_batch_of(facts), *[facts.get(name) for name in FACTS]]
    row = spark.createDataFrame([tuple(values)], f"context_id STRING, {listed}")
    if not table_exists(spark, path):
        first = row.withColumn("attempt", F.coalesce("attempt", F.lit(1).cast("bigint")))
        first.write.format("delta").save(path)
        return
    columns = ["context_id", *kinds]
    update = ", ".join(f"{n} = coalesce(s.{n}, t.{n} + 1)" if n == "attempt" else f"{n} = s.{n}" for n in columns)
    insert = ", ".join("coalesce(s.attempt, 1)" if n == "attempt" else f"s.{n}" for n in columns)
    view = f"lw_{uuid.uuid4().hex}"
    row.createOrReplaceTempView(view)
    try:
        spark.sql(
            f"MERGE INTO delta.`{path}` t USING {view} s ON t.context_id = s.context_id "
            f"WHEN MATCHED THEN UPDATE SET {update} "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({insert})"
        )
    finally:
        spark.catalog.dropTempView(view)


def _batch_of(facts: Mapping[str, object]) -> str:
    if facts.get("batch") is None:
        raise ConfigurationError("Metadata Decorator: a technical table is told by 'batch', and the facts lack it.")
    return str(facts["batch"])


def _constant(text: str) -> Column:
    """A text on every row that is no part of the code that Spark compiles: a stream would compile each micro-batch."""
    from pyspark.sql import functions as F

    return F.get(F.array(F.lit(text)), F.expr("pmod(spark_partition_id(), 1)"))
