"""Stateful Merger: whatever is repeated, the table is that of a build from scratch up to there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.patterns.delta import table, version

from lakewright.connectors.postgres_history import RebuiltMerge, merge_rows_restoring
from lakewright.errors import ConfigurationError, InputError, SchemaChangeError, TargetError
from lakewright.failpoints import FailpointReached, arm
from lakewright.model.connections import Connection
from lakewright.model.secrets import Secret
from lakewright.patterns.idempotency.going_back import Execution, decide_going_back
from lakewright.patterns.idempotency.merge_history import read_merges
from lakewright.patterns.idempotency.stateful_merger import RestoredMerge, StatefulMerger, merge_restoring
from lakewright.patterns.ingestion.vacuum import vacuum_table
from lakewright.testing.postgres import Postgres

FEED = {
    "2024-10-05": [("phone", "P1", False), ("radio", "R1", True)],
    "2024-10-06": [("phone", "P2", False), ("watch", "W1", False)],
    "2024-10-07": [("watch", "W1", True), ("wrong", "X", False)],
    "2024-10-08": [("phone", "P4", False)],
}
CORRECTED = [("watch", "W2", False), ("radio", "R2", None)]


def built(upto: str, feed: dict[str, list[tuple[Any, ...]]]) -> list[tuple[str, str]]:
    """What a build from scratch holds."""
    found: dict[str, str] = {}
    for day in sorted(feed):
        for key, name, gone in feed[day] if day <= upto else []:
            found = {k: v for k, v in found.items() if k != key} | ({} if gone else {key: name})
    return sorted(found.items())


def changes(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, "type string, name string, gone boolean").coalesce(1)


def merged(spark: SparkSession, path: str, day: str, feed: dict[str, list[tuple[Any, ...]]] = FEED) -> RestoredMerge:
    return merge_restoring(changes(spark, feed[day]), path, keys=["type"], deleted="gone", execution_time=day)


def held(spark: SparkSession, path: str) -> list[tuple[object, ...]]:
    return [row[:2] for row in table(spark, path)]


def operations(spark: SparkSession, path: str) -> list[str]:
    return [row[0] for row in spark.sql(f"DESCRIBE HISTORY delta.`{path}`").select("operation").collect()]


@pytest.fixture
def path(lake_folder: Path) -> Iterator[str]:
    yield str(lake_folder / "devices")
    arm({})


class OnPostgres:
    """The same table in a database without versions."""

    def __init__(self, postgres: Postgres, spark: SparkSession, *, delete: Literal["hard", "soft"] = "hard") -> None:
        self._at, self._spark, self._delete = postgres.database(), spark, delete
        at = self._at
        url = f"postgresql://{at.user}@{at.host}:{at.port}/{at.name}"
        self.connection = Connection("db", url, Secret("secret://env/PG_TEST_PASSWORD"))
        flag = ", gone boolean" if delete == "soft" else ""
        self.ask(f"CREATE TABLE devices (type text PRIMARY KEY, name text{flag})")

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with self._at.connect() as session:
            found = session.execute(statement.encode())
            return found.fetchall() if found.description else []

    def merged(self, day: str, feed: dict[str, list[tuple[Any, ...]]] = FEED) -> RebuiltMerge:
        return merge_rows_restoring(
            changes(self._spark, feed[day]), self.connection, table="devices", keys=["type"], deleted="gone",
            execution_time=day, delete=self._delete,
        )  # fmt: skip

    def held(self) -> list[tuple[Any, ...]]:
        return self.ask("SELECT type, name FROM devices ORDER BY 1")


@pytest.mark.shows("04.stateful-merger", 1, 3, 4, 6)
def test_repeated_days_leave_what_a_build_from_scratch_would_on_delta_and_on_postgres(
    spark: SparkSession, path: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    outside = OnPostgres(postgres, spark)
    merged(spark, path, "2024-10-05")
    outside.merged("2024-10-05")
    merged(spark, path, "2024-10-06")
    outside.merged("2024-10-06")
    scattered = spark.read.format("delta").load(path).coalesce(1).write.format("delta").mode("overwrite")
    scattered.option("dataChange", "false").option("maxRecordsPerFile", 1).save(path)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    compacted = version(path)
    assert operations(spark, path)[0] == "OPTIMIZE"
    for day in ("2024-10-07", "2024-10-08"):
        assert merged(spark, path, day).decision.action == "go on", "a compaction is no reason to go back"
        assert not outside.merged(day).rebuilt
        assert held(spark, path) == outside.held() == built(day, FEED)
    assert "RESTORE" not in operations(spark, path)

    # The seventh was wrong: it is repeated, corrected, and then the eighth.
    feed = {**FEED, "2024-10-07": CORRECTED}
    back, rebuilt = merged(spark, path, "2024-10-07", feed), outside.merged("2024-10-07", feed)
    assert (back.decision.action, back.decision.version) == ("restore", compacted)
    assert [one[:10] for one in back.repeat] == ["2024-10-08"]
    assert rebuilt.rebuilt
    assert [one.isoformat()[:10] for one in rebuilt.repeat] == ["2024-10-08"]
    assert held(spark, path) == outside.held() == built("2024-10-07", feed)
    again = outside.merged("2024-10-07", feed)  # its answer was lost: the next one is as good
    assert [one.isoformat()[:10] for one in again.repeat] == ["2024-10-08"]
    days = "SELECT DISTINCT left(execution_time::text, 10) FROM devices_history ORDER BY 1"
    assert [day for (day,) in outside.ask(days)] == ["2024-10-05", "2024-10-06", "2024-10-07"]
    vacuum_table(spark, path, retention="0 seconds", unsafe=True)
    last = merged(spark, path, "2024-10-08", feed)
    assert (last.repeat, outside.merged("2024-10-08", feed).repeat) == ((), ())
    assert last.decision.action == "go on"
    assert held(spark, path) == outside.held() == built("2024-10-08", feed)
    state = {one.name[:10]: one.version for one in read_merges(spark, path).executions}
    assert state == {"2024-10-05": 1, "2024-10-06": 2, "2024-10-07": back.version, "2024-10-08": last.version}

    # Older versions are gone, but for the compacted one, whose file is still in use: what needs one of them is refused
    # before anything is touched.
    before, content = version(path), held(spark, path)
    with pytest.raises(TargetError, match=r"earliest execution that can be repeated is 2024-10-07") as refused:
        merged(spark, path, "2024-10-06")
    assert "Nothing was changed" in str(refused.value)
    assert (version(path), held(spark, path)) == (before, content)


@pytest.mark.shows("04.stateful-merger", 6)
def test_softly_deleted_rows_survive_a_rebuild_on_postgres_as_they_do_on_delta(
    spark: SparkSession, path: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    outside = OnPostgres(postgres, spark, delete="soft")

    def both(day: str, feed: dict[str, list[tuple[Any, ...]]] = FEED) -> list[tuple[Any, ...]]:
        merge_restoring(
            changes(spark, feed[day]), path, keys=["type"], deleted="gone", delete="soft", execution_time=day
        )
        outside.merged(day, feed)
        rows = outside.ask("SELECT type, name, gone FROM devices ORDER BY 1")
        assert rows == table(spark, path)
        return rows

    for day in FEED:
        last = both(day)
    assert last == [("phone", "P4", False), ("watch", "W1", True), ("wrong", "X", False)]
    assert both("2024-10-08") == last, "rebuilt up to the seventh, with the watch that was deleted then"
    feed = {**FEED, "2024-10-06": [("phone", "P2", True), ("radio", "R2", True)]}
    assert both("2024-10-06", feed) == [("phone", "P2", True)], "what was never there is not marked"
    assert both("2024-10-07", feed) == [("phone", "P2", True), ("wrong", "X", False)]
    assert both("2024-10-08", feed) == [("phone", "P4", False), ("wrong", "X", False)]


@pytest.mark.shows("04.stateful-merger", 2, 5, 7, 8)
def test_the_first_day_again_a_gap_a_crash_and_a_wrong_time(
    spark: SparkSession, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lakewright.stateful_merger")
    merged(spark, path, "2024-10-05")
    gap = merged(spark, path, "2024-10-08")
    assert gap.decision.action == "go on"
    assert "nothing to restore: the newest execution before it is 2024-10-05" in caplog.text
    assert not {"RESTORE", "TRUNCATE", "DELETE"} & set(operations(spark, path))
    assert held(spark, path) == [("phone", "P4")]

    for wrong in ("2024-10-32", "yesterday", ""):
        with pytest.raises(ConfigurationError, match="not a time"):
            merge_restoring(changes(spark, FEED["2024-10-05"]), path, keys=["type"], execution_time=wrong)
    twice = changes(spark, [("phone", "A", False), ("phone", "B", False)])
    once = twice.limit(1)
    for unfit, error in (
        (twice, "several changes"),
        (once.withColumn("price", F.lit(1)), "a column price that the table lacks"),
        (once.withColumn("gone", F.lit("no")), "gone is boolean in the table and string"),
    ):
        with pytest.raises((InputError, SchemaChangeError), match=error):
            merge_restoring(unfit, path, keys=["type"], deleted="gone", execution_time="2024-10-05")
    assert version(path) == gap.version, "nothing was touched"

    other_letters = changes(spark, FEED["2024-10-08"]).withColumnRenamed("name", "Name")
    gap = merge_restoring(other_letters, path, keys=["type"], deleted="gone", execution_time="2024-10-08")
    assert (gap.decision.action, held(spark, path)) == ("restore", [("phone", "P4")])

    # Killed after the MERGE, before anybody heard of it; and after the RESTORE, before the MERGE.
    for place, content in (("merged", [("phone", "P2"), ("watch", "W1")]), ("went_back", [("phone", "P1")])):
        arm({"LAKEWRIGHT_FAILPOINT": place, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
        with pytest.raises(FailpointReached):
            merged(spark, path, "2024-10-06")
        arm({})
        assert held(spark, path) == content
    done = merged(spark, path, "2024-10-06")
    assert done.decision.action == "go on"
    assert [one[:10] for one in done.repeat] == ["2024-10-08"], "what the call took away that died before it said so"
    assert held(spark, path) == [("phone", "P2"), ("watch", "W1")]
    state = read_merges(spark, path).executions
    assert [(one.name[:10], one.version) for one in state] == [("2024-10-06", done.version), ("2024-10-05", 1)]

    first = merged(spark, path, "2024-10-05", {"2024-10-05": [("only", "O", False)]})
    assert first.decision.action == "truncate"
    assert [one[:10] for one in first.repeat] == ["2024-10-06", "2024-10-08"]
    assert held(spark, path) == [("only", "O")]
    assert [one.version for one in read_merges(spark, path).executions] == [first.version]


def test_what_a_table_held_before_its_first_execution_survives_a_repeat(spark: SparkSession, path: str) -> None:
    changes(spark, [("old", "O", False)]).write.format("delta").save(path)
    merged(spark, path, "2024-10-05")
    again = merged(spark, path, "2024-10-05")
    assert (again.decision.action, again.decision.version) == ("restore", 0)
    assert held(spark, path) == [("old", "O"), ("phone", "P1")]


@pytest.mark.shows("04.stateful-merger", 2, 7)
def test_a_table_is_not_emptied_where_its_log_may_have_told_of_an_earlier_execution(
    spark: SparkSession, path: str
) -> None:
    merged(spark, path, "2024-10-05")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    for day in ("2024-10-06", "2024-10-07"):
        merged(spark, path, day)
    log = Path(path, "_delta_log")
    sixth = read_merges(spark, path).executions[1].version
    assert (log / f"{sixth:020d}.checkpoint.parquet").exists()
    for gone in range(sixth):  # as Delta does it once the retention of the log has passed
        (log / f"{gone:020d}.json").unlink()
    left = read_merges(spark, path)
    assert ([one.name[:10] for one in left.executions], left.complete) == (["2024-10-07", "2024-10-06"], False)

    before, content = version(path), held(spark, path)
    for day in ("2024-10-06", "2024-10-05"):
        with pytest.raises(TargetError, match=f"{day}.* is the earliest execution that the log .* still tells of"):
            merged(spark, path, day)
        assert (version(path), held(spark, path)) == (before, content) == (before, built("2024-10-07", FEED))
    back = merged(spark, path, "2024-10-07", {**FEED, "2024-10-07": CORRECTED})
    assert (back.decision.action, back.decision.version) == ("restore", sixth)
    assert held(spark, path) == built("2024-10-07", {**FEED, "2024-10-07": CORRECTED})


def test_a_rebuild_leaves_to_the_database_what_it_fills_and_refuses_what_no_change_brings(
    spark: SparkSession, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    outside = OnPostgres(postgres, spark)
    outside.ask('DROP TABLE devices; CREATE TABLE devices (id bigint GENERATED ALWAYS AS IDENTITY, '
                "state text DEFAULT 'new', type text PRIMARY KEY, name text, \"50%\" int)")  # fmt: skip

    def merge(day: str, *columns: str) -> RebuiltMerge:
        frame = changes(spark, FEED[day]).selectExpr("type", "gone", *columns)
        return merge_rows_restoring(
            frame, outside.connection, table="devices", keys=["type"], deleted="gone", execution_time=day
        )

    merge("2024-10-05", "name", "1 AS `50%`")
    with pytest.raises(SchemaChangeError, match="the changes have no column name, which a rebuild"):
        merge("2024-10-06", "2 AS `50%`")
    for _ in range(2):
        merge("2024-10-06", "name", "2 AS `50%`")
    assert outside.ask('SELECT type, name, state, "50%" FROM devices ORDER BY 1') == [
        ("phone", "P2", "new", 2), ("watch", "W1", "new", 2),
    ]  # fmt: skip
    # What a change has brought for such a column is no DEFAULT: a rebuild without it would forget that.
    merge("2024-10-06", "name", "2 AS `50%`", "'sold' AS state")
    merge("2024-10-07", "name", "3 AS `50%`")
    with pytest.raises(SchemaChangeError, match="no column state, which earlier ones have brought"):
        merge("2024-10-07", "name", "3 AS `50%`")
    assert ("phone", "sold") in outside.ask("SELECT type, state FROM devices")


def test_how_far_to_go_back_is_read_and_never_computed() -> None:
    known = [Execution("d5", 5, 5, 4), Execution("d6", 6, 7, 6), Execution("d7", 7, 9, 8), Execution("d8", 8, 10, 9)]
    assert decide_going_back("d7", 7, known).version == 8, "the compacted one"
    assert decide_going_back("d8", 8, known).version == 9
    assert decide_going_back("d9", 9, known).action == "go on"
    first = decide_going_back("d5", 5, known)
    assert (first.action, [one.name for one in first.undone]) == ("truncate", ["d5", "d6", "d7", "d8"])
    # Merged out of order by another writer: it goes as well, and is told.
    odd = decide_going_back("d6", 6, [*known[:1], *known[1:], Execution("d4", 4, 11, 10)])
    assert (odd.version, [one.name for one in odd.undone]) == (6, ["d4", "d6", "d7", "d8"])


def test_a_wrong_option_is_refused_before_spark_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="Stateful Merger: 'keys'"):
        StatefulMerger(keys=[])
    with pytest.raises(ConfigurationError, match="'hard' or 'soft'"):
        StatefulMerger(keys=["id"], delete="none")  # type: ignore[arg-type]
    writer = StatefulMerger(keys=["id"])
    assert (writer.streams, writer.replaces_slice, writer.restores) == (False, False, True)
