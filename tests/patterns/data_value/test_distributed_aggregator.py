"""Distributed Aggregator: every cell is the aggregate of its rows, salted or not, by day or by week."""

from __future__ import annotations

import json
import random
from datetime import date, timedelta
from decimal import Decimal
from itertools import combinations

import pytest
from pyspark.sql import functions as F
from tests.patterns.delta import rows
from tests.patterns.error_management.streams import land_batches, stream_of

from lakewright import (
    DistributedAggregator,
    Salt,
    aggregate_by_key,
    check_plan,
    combine_parts,
    find_hot_keys,
    join_skewed,
    keep_level,
    measure_skew,
)
from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.patterns.data_value.measures import parse_measures

COLUMNS = "visit string, day date, country string, device string, person string, seconds int, paid decimal(9,2)"
AXES = ["country", "device"]
MEASURES = {
    "visits": "count(*)",
    "timed": "count(seconds)",
    "long": "count_if(seconds > 50)",
    "total": "sum(paid)",
    "least": "min(seconds)",
    "most": "max(paid)",
    "seconds": "avg(seconds)",
    "price": "avg(paid)",
    "people": "count(DISTINCT person)",
    "about": "approx_count_distinct(person)",
}
VISIT = Salt(by=["visit"], buckets=8)


def week_of_visits(count: int = 200) -> list[tuple]:
    """Seven days from a Monday on; axes and values may be NULL, and one country dominates."""
    chance = random.Random(7)
    return [
        (
            f"v{n}",
            date(2026, 1, 5) + timedelta(days=n % 7),
            chance.choice(["FR"] * 6 + ["PL", None]),
            chance.choice(["phone", "tablet", None]),
            chance.choice(["ann", "bob", "eve", None]),
            chance.choice([None, *range(0, 100, 9)]),
            chance.choice([None, Decimal("0.10"), Decimal("19.99"), Decimal("7.05")]),
        )
        for n in range(count)
    ]


def by_hand(found: list[tuple]) -> tuple:
    """The measures of some rows, the plain way."""
    seconds = [row[5] for row in found if row[5] is not None]
    paid = [row[6] for row in found if row[6] is not None]
    people = len({row[4] for row in found if row[4] is not None})
    return (
        len(found),
        len(seconds),
        sum(one > 50 for one in seconds),
        sum(paid) if paid else None,
        min(seconds, default=None),
        max(paid, default=None),
        round(sum(seconds) / len(seconds), 9) if seconds else None,
        round(sum(paid) / len(paid), 6) if paid else None,
        people,
        people,
    )


def cube_by_hand(given: list[tuple], period) -> dict[tuple, tuple]:
    cells: dict[tuple, list[tuple]] = {}
    for row in given:
        for kept in (set(level) for size in range(3) for level in combinations((2, 3), size)):
            number = 2 * (2 not in kept) + (3 not in kept)
            key = (period(row[1]), row[2] if 2 in kept else None, row[3] if 3 in kept else None, number)
            cells.setdefault(key, []).append(row)
    return {key: by_hand(found) for key, found in cells.items()}


def cells_of(frame) -> dict[tuple, tuple]:
    names = [*frame.columns[:4], *MEASURES]
    found = [tuple(row) for row in frame.select(*names).collect()]
    assert len({row[:4] for row in found}) == len(found)
    place = names.index("seconds")
    return {row[:4]: (*row[4:place], row[place] and round(row[place], 9), *row[place + 1 :]) for row in found}


@pytest.mark.shows("05.distributed-aggregator", 1, 7)
def test_every_cell_of_the_daily_and_the_weekly_cube_is_the_aggregate_of_its_rows(spark):
    given = week_of_visits()
    visits = spark.createDataFrame(given, COLUMNS)
    cube = DistributedAggregator(MEASURES, by=["day"], cube=AXES, keep_parts=True)
    daily = cube.cells(visits)
    assert cells_of(daily) == cube_by_hand(given, lambda day: day)
    monday = daily.withColumn("week", F.expr("CAST(date_trunc('week', day) AS DATE)"))
    weekly = combine_parts(monday, by=["week"], measures=MEASURES, cube=AXES)
    expected = cube_by_hand(given, lambda day: date(2026, 1, 5))
    assert cells_of(weekly) == expected
    assert weekly.columns == ["week", *AXES, "grouping_id", *MEASURES]
    # NULL is a country of its own, beside the total over all countries.
    no_country, all_countries = ("FR", None, 1), (None, None, 3)
    assert {no_country, all_countries, (None, None, 1)} <= {key[1:] for key in expected}
    chosen = keep_level(weekly, cube=AXES, level=["country"]).select("country", "visits")
    assert rows(chosen) == rows(visits.groupBy("country").agg(F.count("*").alias("visits")))
    # The types are those of Spark's own aggregates, made of parts or not.
    plain = visits.groupBy().agg(*[F.expr(MEASURES[name]).alias(name) for name in MEASURES])
    assert {f.name: f.dataType for f in plain.schema}.items() <= {f.name: f.dataType for f in weekly.schema}.items()


@pytest.mark.shows("05.distributed-aggregator", 2, 3)
def test_a_salt_changes_no_result_and_the_largest_task_holds_less(spark):
    given = [(n, "FR" if n % 10 else f"c{n % 7}", n % 5) for n in range(2_000)]
    visits = spark.createDataFrame([*given, (None, None, None)], "visit int, country string, person int")
    measures = {
        "visits": "count(*)",
        "persons": "sum(person)",
        "people": "count(DISTINCT person)",
        "one": "avg(person)",
    }
    plain = aggregate_by_key(visits, by=["country"], measures=measures)
    salted = aggregate_by_key(visits, by=["country"], measures=measures, salt=VISIT)
    assert rows(plain) == rows(salted)
    assert salted.schema == plain.schema

    def largest_share(frame, *columns):
        """Of the rows that Spark brings together by some columns, how many the largest of eight tasks holds."""
        moved = frame.repartition(8, *columns).groupBy(F.spark_partition_id()).count().collect()
        return max(row["count"] for row in moved) / 2_001

    before = measure_skew(visits, keys=["country"], tasks=8)
    after = measure_skew(visits, keys=["country"], tasks=8, salt=VISIT)
    assert before.largest_task_share == largest_share(visits, "country") > 0.9
    assert after.largest_task_share == largest_share(visits.withColumn("salt", F.expr(VISIT.sql)), "country", "salt")
    assert after.largest_task_share < 0.45
    assert (before.largest_key, round(before.largest_key_share, 2), before.rows) == (("FR",), 0.9, 2_001)
    # Counts and sums are reduced before anything travels, salted twice.
    counts = {"visits": "count(*)", "persons": "sum(person)"}
    (only,) = check_plan(aggregate_by_key(visits, by=["country"], measures=counts)).exchanges
    assert (only.kind, only.columns, only.is_reduced) == ("hash", ("country",), True)
    first = check_plan(aggregate_by_key(visits, by=["country"], measures=counts, salt=VISIT)).exchanges
    assert {one.columns for one in first} == {("country", "_lw_salt"), ("country",)}
    assert all(one.is_reduced for one in first)
    assert not check_plan(visits.repartition("country")).exchanges[0].is_reduced


@pytest.mark.shows("05.distributed-aggregator", 4)
def test_files_and_a_database_are_joined_and_the_plan_tells_the_exchanges(spark, postgres, tmp_path):
    database = postgres.database()
    with database.connect() as connection:
        connection.execute("CREATE TABLE devices (type text, version text, full_name text)")
        connection.execute("INSERT INTO devices VALUES ('mac', '1', 'Mac one'), ('mac', '2', 'Mac two')")
    visits = [{"visit": n, "type": "mac", "version": str(n % 3)} for n in range(6)]
    (tmp_path / "visits.json").write_text("".join(json.dumps(one) + "\n" for one in visits))
    options = {"user": database.user, "password": database.password, "driver": "org.postgresql.Driver"}
    devices = spark.read.jdbc(database.jdbc_url, "devices", properties=options)
    read = spark.read.schema("visit int, type string, version string").json(str(tmp_path))
    joined = read.join(devices.hint("merge"), ["type", "version"])
    assert [(one.kind, one.columns) for one in check_plan(joined).shuffles] == [("hash", ("type", "version"))] * 2
    counted = aggregate_by_key(joined, by=["full_name"], measures={"visits": "count(*)"})
    assert len(check_plan(counted).shuffles) == 3
    assert rows(counted) == [("Mac one", 2), ("Mac two", 2)]
    small = check_plan(read.join(F.broadcast(devices), ["type", "version"]))
    assert (str(small), small.shuffles) == ("1 exchange(s): broadcast", ())


@pytest.mark.shows("05.distributed-aggregator", 6)
def test_what_cannot_be_put_together_from_parts_is_refused_by_its_name():
    for text in (
        "percentile(seconds, 0.5)",
        "sum(DISTINCT seconds)",
        "sum(a) / count(*)",
        "count(DISTINCT a, b)",
        "stddev(seconds)",
        "max_by(a, b)",
    ):
        options = {"by": ["country"], "measures": {"visits": "count(*)", "median": text}}
        for more in ({"salt": VISIT}, {"keep_parts": True}):
            with pytest.raises(ConfigurationError, match=r"the measure median, .*cannot be put together from parts"):
                DistributedAggregator(**options, **more)
        DistributedAggregator(**options)
        with pytest.raises(ConfigurationError, match="combine_parts"):
            DistributedAggregator(**options).combined(None, by=[])
    nested = parse_measures(
        {"a": "sum(if(x = ')', f(a, b), 0))", "b": "MAX( DISTINCT b )", "c": "count(')')"}, pattern=""
    )
    assert [(one.kind, one.argument) for one in nested] == [
        ("sum", "if(x = ')', f(a, b), 0)"),
        ("max", "b"),
        ("count", "')'"),
    ]


def test_wrong_options_are_told_before_anything_starts(spark):
    good = {"measures": {"visits": "count(*)"}, "by": ["country"]}
    wrong = {
        "at least one column": {"measures": {}},
        "an SQL aggregate as text": {"measures": {"visits": F}},
        "is a list of columns": {"by": "country"},
        "would be called country": {"measures": {"country": "count(*)"}},
        "would be called visits": {"cube": ["visits"]},
        "would be called seconds_sum": {
            "measures": {"seconds": "avg(s)", "seconds_sum": "sum(s)"},
            "keep_parts": True,
        },
        "16,384 levels": {"cube": [f"a{n}" for n in range(14)]},
        "town is none": {"cube": ["city"], "levels": [["town"]]},
        "at least one": {"cube": ["city"], "levels": []},
        "part nothing": {"salt": Salt(by=["country"])},
        "is a Salt": {"salt": 8},
    }
    for told, more in wrong.items():
        with pytest.raises(ConfigurationError, match=told):
            DistributedAggregator(**{**good, **more})
    for told, more in {"differ among": {"by": "visit"}, "from 2 to": {"by": ["visit"], "buckets": 1}}.items():
        with pytest.raises(ConfigurationError, match=told):
            Salt(**more)
    visits = spark.createDataFrame([(1, "FR")], "visit int, country string")
    with pytest.raises(MissingColumnsError, match="Did you mean 'country'"):
        aggregate_by_key(visits, by=["countri"], measures=good["measures"])
    with pytest.raises(MissingColumnsError, match="keep_parts=True"):
        combine_parts(visits, by=[], measures={"mean": "avg(visit)"})
    stream = spark.readStream.format("rate").load()
    for more in (
        {"salt": Salt(by=["value"])},
        {"cube": ["value"], "keep_parts": True},
        {"measures": {"people": "count(DISTINCT value)"}},
    ):
        with pytest.raises(ConfigurationError, match="stream"):
            aggregate_by_key(stream, **{"measures": good["measures"], "by": ["timestamp"], **more})
    assert aggregate_by_key(stream, by=["timestamp"], measures=good["measures"]).isStreaming


def test_a_stream_gives_the_cells_that_batch_gives(spark, tmp_path):
    batches = [[{"country": "FR", "person": "ann", "seconds": 10}, {"country": None, "person": "bob", "seconds": None}],
               [{"country": "FR", "person": "bob", "seconds": 20}]]  # fmt: skip
    land_batches(tmp_path, batches)
    schema = "country string, person string, seconds int"
    measures = {"visits": "count(*)", "seconds": "avg(seconds)", "people": "approx_count_distinct(person)"}
    cells = aggregate_by_key(stream_of(spark, tmp_path, schema), by=["country"], measures=measures)
    writer = cells.writeStream.outputMode("complete").format("memory").queryName("cells_of_a_stream")
    writer.trigger(availableNow=True).start().awaitTermination()
    found = rows(spark.table("cells_of_a_stream"))
    at_rest = spark.read.schema(schema).json(str(tmp_path))
    assert found == rows(aggregate_by_key(at_rest, by=["country"], measures=measures))
    assert found == [("FR", 2, 15.0, 2), (None, 1, None, 1)]


def test_no_rows_one_key_and_chosen_levels(spark):
    empty = spark.createDataFrame([], COLUMNS)
    for salt in (None, VISIT):
        assert aggregate_by_key(empty, by=["country"], measures=MEASURES, salt=salt).collect() == []
        nothing = aggregate_by_key(empty, measures=MEASURES, salt=salt).first()
        assert tuple(nothing) == (0, 0, 0, None, None, None, None, None, 0, 0)
    one = spark.createDataFrame([("a", "x", 1), ("a", "y", 2)], "city string, visit string, n int")
    levels = aggregate_by_key(one, cube=["city", "visit"], levels=[["city"], []], measures={"n": "sum(n)"})
    assert rows(levels) == [("a", None, 1, 3), (None, None, 3, 3)]


def test_a_skewed_join_gives_the_rows_of_the_plain_one(spark):
    visits = spark.createDataFrame(
        [(n, "/" if n % 3 else f"/{n}", n % 2) for n in range(90)] + [(None, None, 0)],
        "visit int, page string, site int",
    )
    pages = spark.createDataFrame(
        [("/", 0, "home"), ("/", 1, "start"), ("/3", 1, "three"), ("/x", 0, "never"), (None, 0, "none")],
        "page string, site int, title string",
    )
    assert find_hot_keys(visits, keys=["page"], sample=None) == [("/",)]
    (hot,) = find_hot_keys(visits, keys=["page", "site"], above=0.32, sample=None, limit=1)
    salt = Salt(by=["visit"], buckets=4)
    for how, ways in {"inner": [salt], "left": [salt, None], "left_semi": [None], "left_anti": [salt, None]}.items():
        plain = rows(visits.join(pages, ["page", "site"], how))
        for parted in ways:
            both = {"keys": ["page", "site"], "hot": [hot, (None, 1)], "salt": parted}
            assert rows(join_skewed(visits, pages, how=how, **both)) == plain
    by_page = {"keys": ["page"], "salt": salt}
    titles = pages.drop("site")
    joined = join_skewed(visits, titles, keys=["page"], hot=["/"])
    assert (joined.columns, rows(joined)) == (visits.join(titles, "page").columns, rows(visits.join(titles, "page")))
    # Nobody is hot: it is the plain join, and costs what that costs.
    assert (
        check_plan(join_skewed(visits, titles, hot=[], **by_page)).exchanges
        == check_plan(visits.join(titles, "page")).exchanges
    )
    wrong = {
        "how is one of": {"how": "full"},
        "part nothing": {"salt": Salt(by=["page"])},
        "a list of at most": {"hot": "/"},
        "1 value": {"hot": [("/", 1)]},
    }
    for told, more in wrong.items():
        with pytest.raises(ConfigurationError, match=told):
            join_skewed(visits, titles, **{**by_page, "hot": ["/"], **more})
    with pytest.raises(ConfigurationError, match="both sides have a column site"):
        join_skewed(visits.withColumnRenamed("site", "Site"), pages, hot=["/"], **by_page)
