"""doctor, patterns, spark packages, sql and show; the queries themselves run in test_end_to_end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakewright.cli.reading import refuse_writes
from lakewright.errors import ConfigurationError
from lakewright.pipelines.project import Project
from lakewright.pipelines.streams.rewind import RewindSummary
from lakewright.runtime import doctor
from lakewright.runtime.doctor import Check
from lakewright.runtime.jars import ensure_jars

from .conftest import Lakewright


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which Java and the jars are well, whatever this one has."""
    monkeypatch.setattr(doctor, "_java", lambda: Check("Java", "ok", "17"))
    monkeypatch.setattr(doctor, "_jars", lambda: Check("Jars", "ok", "12"))


@pytest.mark.usefixtures("healthy")
def test_doctor_works_outside_a_project(lakewright: Lakewright):
    result = lakewright("doctor")
    assert result.exit_code == 0
    assert "lakewright init NAME" in result.stdout
    assert "1 warning, 0 failed." in result.stderr


@pytest.mark.usefixtures("healthy", "shop")
def test_doctor_as_json_lists_checks(lakewright: Lakewright):
    found = json.loads(lakewright("doctor", "--json").stdout)
    assert found["ok"] is True
    assert {"name", "state", "detail", "cure"} == set(found["checks"][0])
    assert [check["state"] for check in found["checks"] if check["name"] == "Store"] == ["ok"]


@pytest.mark.usefixtures("shop")
def test_doctor_ends_with_1_and_the_cure_if_anything_fails(lakewright: Lakewright, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_java", lambda: Check("Java", "fail", "not found", "Install Java 17."))
    result = lakewright("doctor")
    assert result.exit_code == 1
    assert "Install Java 17." in result.stdout
    assert json.loads(lakewright("doctor", "--json").stdout)["ok"] is False


@pytest.mark.usefixtures("healthy")
def test_doctor_tells_of_a_broken_project_file(lakewright: Lakewright, shop: Path):
    (shop / "lakewright.toml").write_text("[targets.dev]\nlak = 1\n")
    result = lakewright("doctor")
    assert result.exit_code == 1
    assert "Did you mean 'lake'?" in result.stdout


def test_patterns_lists_all_of_the_catalogue(lakewright: Lakewright):
    result = lakewright("patterns")
    assert result.exit_code == 0
    assert "Dead-Letter" in result.stdout
    assert result.stderr.startswith("77 patterns: ")
    assert len(json.loads(lakewright("patterns", "--json").stdout)["patterns"]) == 77


def test_patterns_can_be_narrowed(lakewright: Lakewright):
    found = json.loads(lakewright("patterns", "--json", "--state", "planned", "--chapter", "security").stdout)
    assert found["patterns"]
    assert {one["state"] for one in found["patterns"]} == {"planned"}
    assert all("security" in one["chapter_title"].lower() for one in found["patterns"])


def test_spark_packages_are_data(lakewright: Lakewright):
    ensure_jars()
    result = lakewright("spark", "packages")
    lines = dict(line.split(" ", 1) for line in result.stdout.splitlines() if line and not line.startswith("#"))
    assert lines["spark.jars.packages"].startswith("io.delta:delta-spark_4.2_2.13:4.4.0,")
    assert "org.slf4j:*" in lines["spark.jars.excludes"]
    assert lines["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    assert "spark-token-provider-kafka-0-10_2.13:4.0.0" in result.stdout
    assert result.stderr == ""
    told = json.loads(lakewright("spark", "packages", "--json").stdout)
    assert set(told) == {"packages", "excluded", "overridden", "jars", "settings", "error"}
    assert "password" in told["settings"]["spark.sql.redaction.string.regex"]
    assert [jar.name for jar in map(Path, told["jars"]) if jar.is_file() and jar.name.startswith("delta-spark_")] == [
        "delta-spark_4.2_2.13-4.4.0.jar"
    ]
    assert f"\n# spark.jars {','.join(told['jars'])}\n" in result.stdout
    assert lakewright("spark", "packages", "--joined").stdout.count("\n") == 1


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "  (select 1) union (select 2)",
        "-- why\nSELECT 'DELETE FROM x'",
        "/* INSERT */ WITH x AS (SELECT 1) SELECT * FROM x",
        "SHOW VIEWS",
        "describe orders",
        "EXPLAIN SELECT 1",
        "VALUES (1)",
        "WITH x AS (SELECT 'update', `delete` FROM y) SELECT * FROM x",
    ],
)
def test_a_statement_that_reads_passes(query: str):
    refuse_writes(query)


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM orders",
        "/* SELECT */ drop table orders",
        "WITH x AS (SELECT 1) INSERT INTO orders SELECT * FROM x",
        "SET spark.x = 1",
        "FROM orders INSERT OVERWRITE users SELECT *",
        "",
    ],
)
def test_a_statement_that_does_not_only_read_is_refused_before_spark_starts(lakewright: Lakewright, query: str):
    with pytest.raises(ConfigurationError):
        refuse_writes(query)
    result = lakewright("sql", query)
    assert result.exit_code == 2
    assert "`lakewright sql` only reads" in result.stderr
    assert "Nothing was run." in result.stderr


def test_show_of_an_unknown_dataset_offers_the_nearest_before_spark_starts(lakewright: Lakewright, shop: Path):
    result = lakewright("show", "daily_order")
    assert result.exit_code == 2
    assert "hint: Did you mean 'daily_orders'?" in result.stderr
    assert "Starting Spark" not in result.stderr


def test_a_rollback_needs_yes_where_nobody_can_answer(lakewright: Lakewright, shop: Path):
    result = lakewright("rollback", "orders")
    assert result.exit_code == 2
    assert "Nothing was started." in result.stderr
    assert "hint: --dry-run shows what it would do; --yes does it." in result.stderr


@pytest.mark.parametrize("command", [("rollback",), ("repartition",), ("stream", "rewind", "--all")])
def test_a_wrong_name_is_told_before_anybody_is_asked(lakewright: Lakewright, shop: Path, command: tuple[str, ...]):
    result = lakewright(*command, "raw_order")
    assert result.exit_code == 2
    assert "Did you mean 'raw_orders'?" in " ".join(result.stderr.split())
    assert "--yes" not in result.stderr


def test_a_rewind_of_what_is_no_stream_says_so_and_of_a_stream_needs_yes(lakewright: Lakewright, shop: Path):
    assert "raw_orders: not a stream" in lakewright("stream", "rewind", "raw_orders", "--all").stderr
    (shop / "pipelines" / "more.py").write_text(STREAM)
    result = lakewright("stream", "rewind", "clicks", "--all")
    assert result.exit_code == 2
    assert "--yes" in result.stderr


STREAM = """
from lakewright import KafkaTopic, Pipeline

web = Pipeline("web", start="2026-01-01")
web.source("clicks", KafkaTopic("broker", "clicks"), schema="id string", mode="stream")
"""


def test_a_rewind_tells_rows_that_come_again_from_those_that_are_lost_in_the_dataset_and_the_buffer(
    lakewright: Lakewright, shop: Path, monkeypatch: pytest.MonkeyPatch
):
    (shop / "pipelines" / "more.py").write_text(STREAM)
    done = RewindSummary("clicks", 2, 0, None, 8, (), rows_lost=5, lost="delete", lost_waiting=3)
    monkeypatch.setattr(Project, "rewind", lambda *_, **__: done)
    told = lakewright("stream", "rewind", "clicks", "--all", "--lost", "delete", "--yes").stderr
    assert "rows deleted, to be read again: 6\n" in told
    assert "rows that the source no longer has, deleted for good: 5, 3 of them out of the skew buffer\n" in told


def test_a_rollback_shows_what_it_does(lakewright: Lakewright, shop: Path, monkeypatch: pytest.MonkeyPatch):
    calls = rollbacks(monkeypatch)
    result = lakewright("rollback", "orders", "--dry-run")
    assert result.exit_code == 0
    assert "Would roll back orders from version 4 to 3." in result.stderr
    assert "slices rolled back: 2026-01-05" in result.stderr
    assert "read by, and stale by the next run: daily_orders" in result.stderr
    assert calls == [True]
    assert json.loads(lakewright("rollback", "orders", "--yes", "--json").stdout)["done"] is True
    assert calls == [True, True, False]


def rollbacks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    from lakewright.pipelines.rollback import RollbackSummary

    calls: list[bool] = []

    def roll_back(self: Project, name: str, *, to: int | None = None, dry_run: bool = False) -> Any:
        calls.append(dry_run)
        return RollbackSummary(name, 4, 3, (name,), ("2026-01-05",), (), ("daily_orders",))

    monkeypatch.setattr(Project, "rollback", roll_back)
    return calls


def test_a_repartition_shows_what_it_does_and_needs_yes(lakewright: Lakewright, shop: Path, monkeypatch):
    from lakewright.pipelines.repartition import RepartitionSummary

    def repartition(self: Project, name: str, *, drop: Any = (), dry_run: bool = False) -> Any:
        return RepartitionSummary(name, ("country",), ("week",), 7, tuple(drop))

    monkeypatch.setattr(Project, "repartition", repartition)
    result = lakewright("repartition", "orders", "--dry-run", "--drop", "country")
    assert result.exit_code == 0
    assert "Would rewrite orders (7 rows)." in result.stderr
    assert "laid out by: country" in result.stderr
    assert "columns left behind: country" in result.stderr
    refused = lakewright("repartition", "orders")
    assert refused.exit_code == 2
    assert "Nothing was started." in refused.stderr
    assert json.loads(lakewright("repartition", "orders", "--yes", "--json").stdout)["done"] is True


def test_spark_packages_knows_the_lake_of_a_target(lakewright: Lakewright, shop: Path):
    (shop / "lakewright.toml").write_text('[targets.dev]\n[targets.prod]\nlake = "s3a://b/lake"\nlogstore = "X"\n')
    assert "logStore" not in lakewright("spark", "packages").stdout
    assert "spark.delta.logStore.s3a.impl X\n" in lakewright("spark", "packages", "--target", "prod").stdout
