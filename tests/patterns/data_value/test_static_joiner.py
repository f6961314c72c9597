"""Static Joiner: exactly the left rows, each with what the reference says, or said at the row's own time."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.patterns.delta import rows

from lakewright import (
    join_as_of,
    join_reference,
    refuse_duplicate_keys,
    refuse_overlaps,
    versions_of_scd4,
)
from lakewright.errors import ConfigurationError, InputError, MissingColumnsError

VISITS = "visit int, user int, at int"
USERS = "user int, country string, valid_from int, valid_to int"
VERSIONS = [(1, "FR", 2, 4), (1, "PL", 4, None), (2, "DE", 3, 5), (None, "nobody", 0, None)]


@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    found=st.lists(st.tuples(st.none() | st.integers(1, 3), st.none() | st.integers(0, 7)), max_size=8),
    before_first=st.sampled_from(["null", "extend"]),
    method=st.sampled_from(["join", "sort"]),
)
def test_each_row_gets_the_version_of_its_time_and_none_is_lost_or_doubled(
    spark: SparkSession, found: list[tuple[int | None, int | None]], before_first: str, method: str
) -> None:
    visits = spark.createDataFrame([(n, *visit) for n, visit in enumerate(found)], VISITS)
    users = spark.createDataFrame(VERSIONS, USERS)
    joined = join_as_of(visits, users, keys=["user"], at="at", before_first=before_first, method=method)  # type: ignore[arg-type]

    def expected(user: int | None, at: int | None) -> str | None:
        if user is None or at is None:
            return None
        known = [version for version in VERSIONS if version[0] == user]
        for n, (_, country, begin, end) in enumerate(known):
            early = n == 0 and before_first == "extend"
            if (early or begin <= at) and (end is None or at < end):
                return country
        return None

    assert rows(joined) == sorted(((n, *visit, expected(*visit)) for n, visit in enumerate(found)), key=str)


MOVES = ("2026-01-01", "2026-02-01", "2026-03-01")
EMAILS = """
    SELECT 1 AS user, email, timestamp(since) AS valid_from, timestamp(until) AS valid_to FROM VALUES
    ('a@x', '2026-01-01', '2026-02-01'), ('b@x', '2026-02-01', '2026-03-01'), ('c@x', '2026-03-01', {open})
    AS t(email, since, until)
"""


@pytest.mark.shows("05.static-joiner", 1, 2, 3)
def test_an_old_execution_gives_the_old_email_and_both_forms_of_history_agree(spark: SparkSession) -> None:
    users = spark.sql(EMAILS.format(open="NULL"))
    visits = spark.sql("SELECT 1 AS user, 'v1' AS visit UNION ALL SELECT NULL, 'v2'")

    def executed(at: datetime, versions=users, **options):
        found = rows(join_as_of(visits, versions, keys=["user"], at=at, **options).select("visit", "email"))
        assert [visit for visit, _ in found] == (["v1"] if options.get("how") == "inner" else ["v1", "v2"])
        return found[0][1]

    moments = [datetime(2026, month, 15, tzinfo=UTC) for month in (1, 2, 3)]
    assert [executed(at) for at in moments] == ["a@x", "b@x", "c@x"]
    # Run again, an old execution finds what it found then; one on a boundary finds one row, the one that begins.
    assert executed(moments[0], how="inner") == "a@x"
    assert executed(datetime(2026, 2, 1), overlaps="refuse") == "b@x"
    ended = spark.sql(EMAILS.format(open="'9999-12-31'"))
    assert executed(moments[2], versions=ended) == "c@x"

    # The same history in two tables, whether or not the second one holds what is current too.
    current = users.where("valid_to IS NULL").drop("valid_to")
    seen = spark.sql(
        "SELECT 1 AS user, timestamp(at) AS at, map('a', 1) AS more FROM VALUES ('2025-12-31'), "
        "('2026-01-31 23:59:59'), ('2026-02-01'), ('2026-03-01'), (NULL) AS t(at)"
    )
    expected = rows(join_as_of(seen, users, keys=["user"], at="at").select("at", "email"))
    assert [email for _, email in expected].count("b@x") == 1
    for in_history in (True, False):
        history = users if in_history else users.where("valid_to IS NOT NULL")
        versions = versions_of_scd4(current, history, keys=["user"], current_in_history=in_history)
        joined = join_as_of(seen, versions, keys=["user"], at="at", overlaps="refuse", method="sort")
        assert rows(joined.select("at", "email")) == expected


@pytest.mark.shows("05.static-joiner", 8)
def test_what_cannot_be_joined_or_would_multiply_rows_is_refused_by_name(spark: SparkSession) -> None:
    visits = spark.createDataFrame([(1, 1, 1)], VISITS)
    users = spark.createDataFrame(VERSIONS, USERS)
    for options, error, words in (
        ({"at": "att"}, MissingColumnsError, r"left side.* no column att.*Did you mean 'at'"),
        ({"keys": ["visit"]}, MissingColumnsError, "reference.* no column visit"),
        ({"columns": ["land"]}, MissingColumnsError, "reference.* no column land"),
        ({"keys": "user"}, ConfigurationError, "'keys' is a list"),
        ({"before_first": "guess"}, ConfigurationError, "before_first is 'null' or 'extend'"),
        ({"how": "outer"}, ConfigurationError, "how is 'left' or 'inner'"),
        ({"at": datetime(2026, 1, 1)}, ConfigurationError, "the moment is timestamp .*valid_from.* is int"),
    ):
        with pytest.raises(error, match=words):
            join_as_of(visits, users, **{"keys": ["user"], "at": "at", **options})
    with pytest.raises(ConfigurationError, match="both sides have a column country"):
        join_as_of(visits.selectExpr("*", "'x' AS Country"), users, keys=["user"], at="at")
    # A reference that has changed the type of its key: Spark would cast, and take '01' for 1.
    retyped = users.selectExpr("CAST(user AS STRING) AS user", "country")
    with pytest.raises(ConfigurationError, match="user is int on the left side, and user of the reference is string"):
        join_reference(visits, retyped, keys=["user"])
    moving = spark.readStream.format("rate").load().selectExpr("CAST(value AS INT) AS user")
    with pytest.raises(ConfigurationError, match="the reference is a stream"):
        join_reference(visits, moving, keys=["user"])
    with pytest.raises(ConfigurationError, match="cannot be sorted"):
        join_as_of(moving.selectExpr("user", "user AS at"), users, keys=["user"], at="at", method="sort")

    # Keys that are there twice, before the join by a job of its own, or within it; NULL matches nothing.
    with pytest.raises(InputError, match=r"more than one row of the same key: \(user = 1: 2 rows\)"):
        refuse_duplicate_keys(users, keys=["user"])
    with pytest.raises(Exception, match="Static Joiner: the reference has more than one row of the key user = 1"):
        join_reference(visits, users.select("user", "country"), keys=["user"]).collect()
    assert join_reference(visits, users, keys=["user"], columns=["country"], duplicates="allow").count() == 2
    once = users.where("user IS NULL OR valid_to = 4")
    assert rows(join_reference(visits, once, keys=["user"], columns=["country"])) == [(1, 1, 1, "FR")]
    refuse_overlaps(users, keys=["user"])
    overlapping = spark.createDataFrame([(1, "FR", 2, 5), (1, "PL", 4, None), (2, "DE", None, 5)], USERS)
    with pytest.raises(InputError, match="user = 1: 2 to 5 ends after the next one begins") as refused:
        refuse_overlaps(overlapping, keys=["user"])
    assert "user = 2: NULL to 5 begins at no time" in str(refused.value)
    with pytest.raises(Exception, match="Static Joiner: the reference has versions that overlap, of the key user = 1"):
        join_as_of(visits, overlapping.where("user = 1"), keys=["user"], at="at", overlaps="refuse").collect()


def test_a_reference_that_is_known_to_be_small_is_sent_to_the_rows(spark: SparkSession, capsys) -> None:
    visits = spark.range(10).selectExpr("id AS user", "id AS at")
    large = spark.range(10**9).selectExpr("id AS user", "'x' AS country", "id AS valid_from", "id + 1 AS valid_to")
    for before_first in ("null", "extend"):
        join_as_of(visits, F.broadcast(large), keys=["user"], at="at", before_first=before_first).explain()  # type: ignore[arg-type]
        assert "BroadcastHashJoin" in capsys.readouterr().out


@pytest.mark.shows("05.static-joiner", 4, 5)
def test_a_stream_keeps_what_is_unknown_and_finds_it_once_it_is_known(spark: SparkSession, tmp_path) -> None:
    devices, landing, out = (str(tmp_path / name) for name in ("devices", "landing", "out"))

    def know(*types: str, mode: str = "append") -> None:
        known = [(one, f"{one} screen") for one in types]
        spark.createDataFrame(known, "type string, screen string").write.format("delta").mode(mode).save(devices)

    know("phone")
    (tmp_path / "landing").mkdir()
    visits = spark.readStream.schema("visit int, type string").json(landing)
    joined = join_reference(visits, spark.read.format("delta").load(devices), keys=["type"])
    query = joined.writeStream.format("delta").option("checkpointLocation", f"{out}/_checkpoint").start(out)

    def come(number: int, *types: str | None) -> None:
        lines = "".join(json.dumps({"visit": number, "type": one}) + "\n" for one in types)
        (tmp_path / "landing" / f".{number}.json").write_text(lines)
        (tmp_path / "landing" / f".{number}.json").rename(tmp_path / "landing" / f"{number}.json")
        query.processAllAvailable()

    try:
        come(1, "phone", "tablet", None)
        know("tablet")
        come(2, "tablet")
        unknown = [(1, "phone", "phone screen"), (1, "tablet", None), (1, None, None), (2, "tablet", "tablet screen")]
        assert rows(spark.read.format("delta").load(out)) == sorted(unknown, key=str)
        # The whole reference is written anew, again and again, while micro-batches read it.
        for number in (3, 4):
            writing = threading.Thread(target=know, args=("phone", "tablet"), kwargs={"mode": "overwrite"})
            writing.start()
            come(number, "phone", "tablet")
            writing.join()
        later = spark.read.format("delta").load(out).where("visit > 2")
        assert [row[2] for row in rows(later)] == ["phone screen", "tablet screen"] * 2
    finally:
        query.stop()
