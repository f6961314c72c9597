"""Filter Interceptor on frames: what is kept is what a plain filter keeps, and every row removed has one name."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.patterns.delta import rows

from lakewright.errors import ConfigurationError
from lakewright.model.protocols import GuardContext, Guarded
from lakewright.model.runs import Run
from lakewright.model.slices import WHOLE
from lakewright.patterns.error_management.dead_letter import DeadLetter
from lakewright.patterns.error_management.filter_blame import Blame
from lakewright.patterns.error_management.filter_interceptor import (
    FilterInterceptor,
    find_failing_row,
    intercept_filters,
)
from lakewright.patterns.error_management.filter_sql import filter_sql

SCHEMA = "type string, full_name string, version string"
# The rule that asks for a value stands behind the one that measures it: a missing value is its own, all the same.
FILTERS = {
    "short_type": "length(type) > 2",
    "null_type": "type IS NOT NULL",
    "null_full_name": "full_name IS NOT NULL",
    "known_version": "version IN ('1', '2')",
}
DEVICES = [
    ("phone", "Galaxy", "1"),
    ("laptop", "Think", "2"),
    (None, "Nameless", "1"),
    (None, None, "1"),
    ("pc", "Short", "1"),
    ("pc", None, None),
    ("phone", None, "9"),
    ("phone", "Unknown", None),
]


@pytest.mark.shows("03.filter-interceptor", 1)
@pytest.mark.shows("03.filter-interceptor", 2)
@pytest.mark.shows("03.filter-interceptor", 7)
def test_each_row_removed_counts_once_in_python_and_in_sql_alike(spark: SparkSession) -> None:
    devices = spark.createDataFrame(DEVICES, SCHEMA)
    devices.createOrReplaceTempView("devices_to_filter")

    found = intercept_filters(devices, filters=FILTERS, overlaps=True)
    counts = {row["filter"]: row["removed"] for row in found.counts.collect()}
    assert counts == {"short_type": 2, "null_type": 2, "null_full_name": 1, "known_version": 1, None: 2}
    assert sum(counts.values()) == len(DEVICES)
    # Of the rows that break several, each filter tells all: a missing value is never "too short" or "unknown" too.
    breaks = {row["filter"]: row["breaks"] for row in found.counts.collect()}
    assert breaks == {"short_type": 2, "null_type": 2, "null_full_name": 3, "known_version": 2, None: None}

    plain = devices.where(" AND ".join(f"({condition})" for condition in FILTERS.values()))
    statements = filter_sql(FILTERS, table="devices_to_filter")
    assert rows(found.kept) == rows(plain) == rows(spark.sql(statements.kept))
    in_sql = {row["filter"]: row["removed"] for row in spark.sql(statements.counts).collect()}
    assert in_sql == counts
    flags = {row["status_flag"] for row in spark.sql(statements.flagged).collect()}
    assert flags == {"short_type", "null_type", "null_full_name", "known_version", None}

    # A later condition may rely on an earlier one, here and in the filter itself.
    ordered = {"number": "version RLIKE '^[0-9]+$'", "high": lambda: F.col("version").cast("int") > 1}
    letters = spark.createDataFrame([("a", "b", "x"), ("a", "b", "1"), ("a", "b", "7")], SCHEMA)
    told = intercept_filters(letters, filters=ordered)
    assert {row["filter"]: row["removed"] for row in told.counts.collect()} == {"number": 1, "high": 1, None: 1}
    assert rows(told.kept) == [("a", "b", "7")]

    with pytest.raises(ConfigurationError, match=r"the filter 'typo' does not fit.*tipe") as refused:
        intercept_filters(devices, filters={"fine": "type IS NOT NULL", "typo": "tipe IS NOT NULL"})
    assert refused.value.hint == "The input has type, full_name, version."
    with pytest.raises(ConfigurationError, match="the filter 'name' gives string, not true or false"):
        intercept_filters(devices, filters={"name": "upper(type)"})


RETRIED = """
import json
from pathlib import Path
from pyspark import TaskContext
from lakewright.patterns.error_management.filter_interceptor import intercept_filters
from lakewright.runtime.session import local_session
from lakewright.runtime.settings import Target

spark = local_session(Target.at(Path.cwd(), master="local[2,3]", fast_start=True), "retried")

def fails_at_first(batches):
    for batch in batches:
        yield batch
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the machine is gone")

numbers = spark.range(0, 100, 1, 2).mapInArrow(fails_at_first, "id long")
found = intercept_filters(numbers, filters={"low": "id >= 10", "even": "id % 2 = 0"})
actions = [{str(row["filter"]): row["removed"] for row in found.counts.collect()} for _ in range(2)]
print(json.dumps({"counts": actions, "kept": [found.kept.count(), found.kept.count()]}))
"""


@pytest.mark.classic_only("a server of its own would have to try tasks again")
@pytest.mark.shows("03.filter-interceptor", 3)
def test_tasks_that_are_tried_again_and_a_second_action_change_no_count(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RETRIED]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.rglob("spark.log")
    assert "the machine is gone" in log.read_text()  # tasks did fail, and were tried again
    counts = {"low": 10, "even": 45, "None": 45}
    assert json.loads(done.stdout.splitlines()[-1]) == {"counts": [counts, counts], "kept": [45, 45]}


def test_a_sample_counts_some_rows_or_none_and_all_of_them_are_filtered(spark: SparkSession) -> None:
    numbers = spark.range(0, 2000, 1, 2)
    context = GuardContext("clean", "raw", WHOLE, Run("r", "p", datetime(2026, 1, 5, tzinfo=UTC)))

    def guarded(share: float) -> Guarded:
        return FilterInterceptor(filters={"even": "id % 2 = 0"}, sample=share).on_batch(numbers, context)

    def counted(share: float) -> tuple[int, int] | None:
        tally = guarded(share).tally
        assert tally is not None
        assert tally.sample == share
        row = None if tally.totals is None else tally.totals.first()
        return None if row is None else (row["read"], row["first:even"])

    for share in (1, 0.1, 0):
        assert sorted(row["id"] for row in guarded(share).kept.collect()) == list(range(0, 2000, 2))
    assert counted(0) is None
    assert counted(1) == (2000, 1000)
    tenth = counted(0.1)
    assert tenth is not None
    assert 100 < tenth[0] < 300
    assert 0 < tenth[1] < tenth[0]
    assert counted(0.1) == tenth  # a repeat counts the same rows


def test_a_condition_that_gives_another_answer_each_time_is_refused() -> None:
    for text, word in (("rand() < 0.5", "rand"), ("id = UUID ()", "UUID"), ("at < current_timestamp", "current_times")):
        with pytest.raises(ConfigurationError, match=rf"'rule' asks {word}.*counted one way and written the other"):
            FilterInterceptor(filters={"rule": text})
        with pytest.raises(ConfigurationError, match=f"'rule' asks {word}"):
            DeadLetter(rules={"rule": text})
    # A name or a text is none of them.
    fine = {
        "a": "uuid IS NOT NULL",
        "b": "page <> 'now()'",
        "c": "`rand()` > 0",
        "d": "my_rand(x) > 1",
        "e": "t.now = 1",
    }
    DeadLetter(rules=fine)
    FilterInterceptor(filters=fine)


def test_the_row_on_which_a_filter_fails_is_told_without_what_is_private(spark: SparkSession) -> None:
    orders = spark.createDataFrame([("7", "a"), ("x", "b")], "number string, `na``me` string")
    blame = find_failing_row(orders, {"round": F.expr("CAST(number AS INT) > 0")}, private=["na`me"])
    assert blame == Blame("round", "number='x', na`me=***")


def test_options_that_cannot_mean_anything_are_refused() -> None:
    named = {"has_id": "id IS NOT NULL"}
    with pytest.raises(ConfigurationError, match="'filters' is a mapping"):
        FilterInterceptor(filters={})
    with pytest.raises(ConfigurationError, match="is no name for a filter"):
        FilterInterceptor(filters={"a/b": "true"})
    with pytest.raises(ConfigurationError, match="stop_above names 'other', which is none of the filters: has_id"):
        FilterInterceptor(filters=named, stop_above={"other": 0.5})
    with pytest.raises(ConfigurationError, match="warn_above is a share from 0 to 1, not 15"):
        FilterInterceptor(filters=named, warn_above=15)
    with pytest.raises(ConfigurationError, match="sample is a share from 0 to 1"):
        FilterInterceptor(filters=named, sample=2)
    with pytest.raises(ConfigurationError, match="stop_above needs the rows to be counted, and sample is 0"):
        FilterInterceptor(filters=named, stop_above=0.5, sample=0)
    with pytest.raises(ConfigurationError, match="'has_id' is not SQL text"):
        filter_sql({"has_id": lambda: None}, table="t")  # type: ignore[dict-item]
