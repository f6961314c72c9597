"""Static Joiner over HTTP: what an API knows of the keys of a frame, asked for once each and in bulk.

Guarantee:
    Each key that is not NULL is asked for once, however often it occurs, in calls of at most ``api.per_call`` keys. No
    row is lost or doubled: each is ``enriched``, or ``not_enriched`` with the problem. The answers are held as values,
    so that both halves of a result, and whatever is computed from it twice, see the same.
Consequences:
    - The distinct keys pass the driver: at most ``max_keys`` of them, or the frame is refused. `materialise_api` has no
      such limit, since it asks in portions and keeps what it was told.
    - An API tells what is true now. A replay sees the same only from a copy with the time of each answer:
      `materialise_api`, or in a pipeline `ask_api` under ``Merger(history=Scd2(valid_from="asked_at"))``.
    - An API that is down leaves rows ``not_enriched``; ``stop_above`` makes that a failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from time import sleep as _sleep
from typing import TYPE_CHECKING, TypeAlias

from lakewright.connectors.lookup_api import LookedUp, LookupApi, look_up
from lakewright.errors import ConfigurationError, InputError
from lakewright.model.columns import taken_names
from lakewright.model.ddl import schema_from_ddl
from lakewright.model.sql import quoted
from lakewright.model.times import parse_duration, parse_time
from lakewright.patterns.data_value.join_checks import kinds_of, refuse_missing
from lakewright.patterns.data_value.moments import moment_sql
from lakewright.patterns.idempotency.delta_paths import table_exists
from lakewright.patterns.idempotency.merger import merge_changes
from lakewright.patterns.idempotency.scd2 import Scd2

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ApiEnrichment", "LookupApi", "Materialised", "ask_api", "enrich_from_api", "materialise_api"]

_ADDED = ("enrichment", "enrichment_problem")
_ENRICHED = "enriched"
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NUMBERS = (*_WHOLE, "float", "double", "decimal")
_TOLD = "_lw_key string, _lw_value string, enrichment string, enrichment_problem string"
Told: TypeAlias = "tuple[str, str | None, str, str | None]"
"""A key, its value as JSON, whether it is enriched, and the problem."""


@dataclass(frozen=True, slots=True)
class ApiEnrichment:
    """The rows of an input with what the API said: all of them, and the two halves that they are."""

    rows: DataFrame
    """Every row, with ``enrichment`` (``enriched`` or ``not_enriched``) and ``enrichment_problem``."""

    @property
    def enriched(self) -> DataFrame:
        return self.rows.where("enrichment = 'enriched'").drop(*_ADDED)

    @property
    def not_enriched(self) -> DataFrame:
        """What goes to the dead letters, with its problem."""
        return self.rows.where("enrichment <> 'enriched'")


@dataclass(frozen=True, slots=True)
class Materialised:
    """What a copy of an API gained."""

    asked: int
    answered: int


def ask_api(
    df: DataFrame,
    *,
    key: str,
    api: LookupApi,
    values: str,
    at: datetime | str,
    known: DataFrame | None = None,
    max_keys: int = 100_000,
    stop_above: float | None = None,
    sleep: Callable[[float], None] = _sleep,
) -> DataFrame:
    """Runs a job that collects the distinct keys that ``known`` lacks, and asks the API for them.

    One row per key: the key, the columns of ``values`` (DDL text), ``asked_at`` (the run's time), ``enrichment`` and
    ``enrichment_problem``.
    """
    kind = _check(df, key, values, max_keys, stop_above)
    keys = [row[0] for row in _keys(df, key, known).limit(max_keys + 1).collect()]
    if len(keys) > max_keys:
        raise InputError(
            f"Static Joiner: more than {max_keys:,} different values of {key} to ask for. Nobody was asked.",
            hint="Keep a copy with materialise_api and join that, or raise max_keys: each of them is held in memory.",
        )
    return _frame(df.sparkSession, _ask(keys, api, values, stop_above, sleep), key, kind, values, parse_time(at))


def enrich_from_api(
    df: DataFrame,
    *,
    key: str,
    api: LookupApi,
    values: str,
    max_keys: int = 100_000,
    stop_above: float | None = None,
    sleep: Callable[[float], None] = _sleep,
) -> ApiEnrichment:
    """Runs a job that collects the distinct keys, asks the API for them, and gives each row what was said."""
    from pyspark.sql import functions as F

    columns, named = df.columns, schema_from_ddl(values).names
    if clash := [name for name in taken_names((*named, *_ADDED), columns) if name != key]:
        raise ConfigurationError(
            f"Static Joiner: the input already has a column {clash[0]}, which the API's answers would bring.",
            hint="Rename or drop it first.",
        )
    answers = ask_api(
        df, key=key, api=api, values=values, at="1970-01-01", max_keys=max_keys, stop_above=stop_above, sleep=sleep
    )
    told = answers.drop("asked_at").withColumnRenamed(key, "_lw_key")
    joined = df.join(told, on=F.expr(f"{quoted(key)} = _lw_key"), how="left")
    return ApiEnrichment(
        joined.selectExpr(
            *map(quoted, columns),
            *map(quoted, named),
            "coalesce(enrichment, 'not_enriched') AS enrichment",
            "CASE WHEN enrichment IS NULL THEN 'it has no key' ELSE enrichment_problem END AS enrichment_problem",
        )
    )


def materialise_api(
    df: DataFrame,
    path: str,
    *,
    key: str,
    api: LookupApi,
    values: str,
    at: datetime | str,
    fresh_for: str | None = None,
    portion: int = 10_000,
    stop_above: float | None = None,
    sleep: Callable[[float], None] = _sleep,
) -> Materialised:
    """Runs jobs that add to a Delta table what the API says of keys that it lacks, a commit per ``portion`` of them.

    The table has the form that `join_as_of` takes: each answer is valid from ``asked_at`` until the next one. With
    ``fresh_for="7 days"`` a key is asked for again when its newest answer is older. A key without an answer is left
    out, and asked for the next time.
    """
    kind, moment = _check(df, key, values, portion, stop_above), parse_time(at)
    spark, known = df.sparkSession, None
    if table_exists(spark, path):
        known = spark.read.format("delta").load(path).where("is_current")
        if fresh_for is not None:
            known = known.where(f"asked_at >= {moment_sql(moment - parse_duration(fresh_for))}")
    asked = answered = 0
    waiting = (row[0] for row in _keys(df, key, known).toLocalIterator())
    while keys := list(islice(waiting, portion)):
        told = _ask(keys, api, values, stop_above, sleep)
        good = [one for one in told if one[2] == _ENRICHED]
        if good:
            frame = _frame(spark, good, key, kind, values, moment).drop(*_ADDED)
            merge_changes(frame, path, keys=[key], history=Scd2(valid_from="asked_at"))
        asked, answered = asked + len(told), answered + len(good)
    return Materialised(asked, answered)


def _check(df: DataFrame, key: str, values: str, most: int, stop_above: float | None) -> str:
    """The type of the key; refused before anybody is asked."""
    if df.isStreaming:
        raise ConfigurationError(
            "Static Joiner: an API cannot be asked from a stream as a whole.",
            hint="Ask for each micro-batch: in the function of foreachBatch, or in a step of a pipeline.",
        )
    kinds = kinds_of(df)
    refuse_missing([key], kinds, "Static Joiner (API)")
    if taken_names([key], schema_from_ddl(values).names):
        raise ConfigurationError(f"Static Joiner: 'values' names {key}, which is the key itself. Leave it out.")
    if most < 1 or (stop_above is not None and not 0 <= stop_above <= 1):
        raise ConfigurationError("Static Joiner: a number of keys is at least 1, and stop_above a share from 0 to 1.")
    return kinds[key]


def _keys(df: DataFrame, key: str, known: DataFrame | None) -> DataFrame:
    keys = df.where(f"{quoted(key)} IS NOT NULL").selectExpr(f"CAST({quoted(key)} AS STRING) AS _lw_key").distinct()
    if known is None:
        return keys
    refuse_missing([key], kinds_of(known), "Static Joiner (known keys)")
    have = known.selectExpr(f"CAST({quoted(key)} AS STRING) AS _lw_key")
    return keys.join(have, on="_lw_key", how="left_anti")


def _ask(
    keys: Sequence[str], api: LookupApi, values: str, stop_above: float | None, sleep: Callable[[float], None]
) -> list[Told]:
    wanted = {field.name: field.dataType.simpleString().partition("(")[0] for field in schema_from_ddl(values)}
    told = list(_rows(look_up(keys, api, sleep=sleep), wanted))
    lost = [problem for _, _, _, problem in told if problem is not None]
    if stop_above is not None and keys and len(lost) / len(keys) > stop_above:
        raise InputError(
            f"Static Joiner: {len(lost):,} of {len(keys):,} keys ({len(lost) / len(keys):.1%}) got no answer, more "
            f"than the limit of {stop_above:.1%}; the first one: {lost[0]}. Nothing of them was written.",
            hint="Ask again when the API is well.",
        )
    return told


def _rows(found: Iterable[LookedUp], kinds: Mapping[str, str]) -> Iterator[Told]:
    for one in found:
        value, problem = one.value, one.problem
        if problem is None and not isinstance(value, dict):
            # One value for one column needs no object around it.
            value = dict.fromkeys(kinds, value) if len(kinds) == 1 else None
            problem = "it sends no object for it" if value is None else None
        problem = problem or _misfit(value, kinds)
        if problem is None:
            yield one.key, json.dumps(value), _ENRICHED, None
        else:
            yield one.key, None, "not_enriched", problem


def _misfit(value: Mapping[str, object], kinds: Mapping[str, str]) -> str | None:
    """What of an answer is not of the type that was asked for: Spark would read it as NULL, as if it were not known."""
    for name, kind in kinds.items():
        given = value.get(name)
        if given is None:
            continue
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if kind in _NUMBERS and not number:
            return f"it sends something else than a number as {name}"
        if kind in _WHOLE and not isinstance(given, int):
            return f"it sends something else than a whole number as {name}"
        if kind == "boolean" and not isinstance(given, bool):
            return f"it sends something else than true or false as {name}"
    return None


def _frame(spark: SparkSession, told: Sequence[Told], key: str, kind: str, values: str, at: datetime) -> DataFrame:
    from pyspark.sql import functions as F

    schema = schema_from_ddl(values)
    parsed = spark.createDataFrame(list(told), _TOLD).withColumn("_lw_told", F.from_json("_lw_value", schema))
    return parsed.selectExpr(
        f"CAST(_lw_key AS {kind}) AS {quoted(key)}",
        *[f"_lw_told.{quoted(name)} AS {quoted(name)}" for name in schema.names],
        f"{moment_sql(at)} AS asked_at",
        *_ADDED,
    )
