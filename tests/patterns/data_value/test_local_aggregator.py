"""Local Aggregator: rows that lie together are summed up where they are, and a layout that does not hold is told."""

from __future__ import annotations

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from tests.patterns.delta import rows

from lakewright import (
    KeyLayout,
    LocalAggregator,
    aggregate_by_key,
    aggregate_in_place,
    check_plan,
    combine_parts,
    join_in_place,
    read_keyed_topic,
    refuse_misplaced_keys,
    reorganize_topic,
)
from lakewright.errors import ConfigurationError, InputError, MissingColumnsError, TargetError
from lakewright.model.connections import Connection, Connections
from lakewright.patterns.data_value.local_groups import Part, group_batches

BY_PERSON = KeyLayout(["person"], partitions=4)
MEASURES = {"visits": "count(*)", "seconds": "avg(seconds)", "total": "sum(seconds)", "pages": "count(DISTINCT page)"}


def send(kafka, topic: str, people: list[str | None], *, first: int = 0, **place: int) -> None:
    """Visits as a producer of Java would place them: by the key's murmur2."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random", "linger.ms": 5})
    for number, person in enumerate(people, first):
        producer.produce(topic, str(number).encode(), person and person.encode(), headers=[("n", b"1")], **place)
    assert producer.flush(30) == 0


def visits_of(messages):
    seconds = "CAST(CAST(value AS STRING) AS INT)"
    return messages.selectExpr(
        "CAST(key AS STRING) AS person", f"{seconds} AS seconds", f"{seconds} % 3 AS page", "partition"
    )


def types_of(frame) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema]


@pytest.mark.shows("05.local-aggregator", 1, 3, 5)
def test_a_keyed_topic_is_summed_up_where_it_lies_and_reorganized_without_a_change(spark, kafka, tmp_path):
    connections = Connections({"broker": Connection("broker", f"kafka://{kafka.bootstrap}")})
    topic, wider = kafka.topic(partitions=4), kafka.topic(partitions=8)
    send(kafka, topic, [f"p{n % 11}" for n in range(60)])
    visits = visits_of(read_keyed_topic(spark, connections, ("broker", topic), layout=BY_PERSON))
    local = aggregate_in_place(visits, by=["person"], measures=MEASURES, layout=BY_PERSON)
    assert check_plan(local).exchanges == ()
    moved = aggregate_by_key(visits, by=["person"], measures=MEASURES)
    expected = rows(moved)
    assert (rows(local), types_of(local)) == (expected, types_of(moved))
    refuse_misplaced_keys(visits, keys=["person"], partition="partition")

    # Another number of partitions than the recorded one, or an option that parts a partition: refused.
    with pytest.raises(InputError, match="has 4 partitions, and its recorded layout 8"):
        read_keyed_topic(spark, connections, ("broker", topic), layout=KeyLayout(["person"], partitions=8))
    options = {"minPartitions": "16"}
    with pytest.raises(ConfigurationError, match="minPartitions would part a partition"):
        read_keyed_topic(spark, connections, ("broker", topic), layout=BY_PERSON, options=options)

    # On a stream each micro-batch is summed up by itself, and its parts are put together.
    def add(batch, number):
        parts = aggregate_in_place(
            batch, by=["person"], measures=MEASURES, layout=BY_PERSON, keep_parts=True, key_column="id", batch=number
        )
        parts.write.format("delta").mode("append").save(str(tmp_path / "parts"))

    stream = visits_of(read_keyed_topic(spark, connections, ("broker", topic), layout=BY_PERSON, stream=True))
    with pytest.raises(ConfigurationError, match="foreachBatch"):
        aggregate_in_place(stream, by=["person"], measures=MEASURES, layout=BY_PERSON)
    writer = stream.writeStream.foreachBatch(add).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    parts = spark.read.format("delta").load(str(tmp_path / "parts"))
    assert rows(combine_parts(parts, by=["person"], measures=MEASURES)) == expected

    # From 4 to 8 partitions; records without a key go together too.
    send(kafka, topic, [None] * 5, first=100)
    places = {"source": ("broker", topic), "target": ("broker", wider)}
    layout = KeyLayout(["person"], partitions=8)
    assert reorganize_topic(spark, connections, **places, layout=layout) == 65
    anew = visits_of(read_keyed_topic(spark, connections, ("broker", wider), layout=layout))
    found: dict[str | None, list] = {}
    for row in anew.collect():
        found.setdefault(row["person"], []).append(row)
    assert {key: len({row["partition"] for row in its}) for key, its in found.items()} == dict.fromkeys(found, 1)
    totals = {key: (len(its), sum(row["seconds"] for row in its)) for key, its in found.items() if key is not None}
    assert totals == {row[0]: (row[1], row[3]) for row in expected}
    assert len({row["partition"] for its in found.values() for row in its}) > 4
    assert sorted(row["seconds"] for row in found[None]) == [100, 101, 102, 103, 104]
    with pytest.raises(TargetError, match="holds 65 records already"):
        reorganize_topic(spark, connections, **places, layout=layout)
    with pytest.raises(InputError, match="has 8 partitions, and its recorded layout 4"):
        reorganize_topic(spark, connections, **places, layout=BY_PERSON)


@pytest.mark.shows("05.local-aggregator", 4, 6, 7)
def test_each_partition_gives_its_groups_the_last_and_the_only_one_too(spark):
    # Four partitions of 25 rows: two keys, a single key, none at all, and NULL.
    person = "CASE WHEN id < 25 THEN if(id % 2 = 0, 'ann', 'bob') WHEN id < 50 THEN 'eve' END"
    visits = (
        spark.range(0, 100, 1, numPartitions=4)
        .where("id < 50 OR id >= 75")
        .selectExpr(
            f"{person} AS person",
            "CAST(id AS INT) AS seconds",
            "id % 3 AS page",
            "CAST(id AS DECIMAL(9, 2)) / 4 AS paid",
            "concat('x', id) AS text",
            "id",
        )
    )
    measures = MEASURES | {
        "paid": "avg(paid)",
        "most": "max(text)",
        "first": "min(paid)",
        "sum": "sum(paid)",
        "few": "count_if(id > 80)",
        "half": "sum(id / 2)",
    }
    options = {"by": ["person"], "measures": measures, "layout": BY_PERSON}
    plain = aggregate_by_key(visits, by=["person"], measures=measures)
    local = aggregate_in_place(visits, **options)
    assert (rows(local), types_of(local)) == (rows(plain), types_of(plain))
    assert [row[:2] for row in rows(local)] == [("ann", 13), ("bob", 12), ("eve", 25), (None, 25)]
    assert check_plan(local).exchanges == ()
    # Sent again after a failure, the rows have the same keys; those of another micro-batch have others.
    keyed = {batch: rows(aggregate_in_place(visits, key_column="key", batch=batch, **options)) for batch in (7, 8)}
    again = aggregate_in_place(visits.sortWithinPartitions(F.desc("id")), key_column="key", batch=7, **options)
    assert rows(again) == keyed[7]
    assert len({row[-1] for found in keyed.values() for row in found}) == 8
    # Nothing came.
    assert rows(aggregate_in_place(visits.where("id < 0"), **options)) == []
    # A small dataset: all in one task, by Spark itself.
    one = aggregate_in_place(visits, **{**options, "layout": "one task"})
    assert (rows(one), check_plan(one).exchanges) == (rows(plain), ())
    # A key in two partitions is told, with where it lies.
    refuse_misplaced_keys(visits, keys=["person"])
    with pytest.raises(InputError, match=r"lie in more than one partition: 0 in 0, 1, 3; 1 in 0, 1, 3\.") as told:
        refuse_misplaced_keys(visits, keys=["page"], samples=2)
    assert "reorganize_topic" in str(told.value)
    with pytest.raises(ConfigurationError, match=r"moves rows between tasks: hash by person"):
        aggregate_in_place(visits.repartition("person"), **options)
    with pytest.raises(ConfigurationError, match="cannot be compared"):
        aggregate_in_place(visits, **{**options, "measures": {"n": "max(array(id))"}})
    with pytest.raises(ConfigurationError, match="adds date"):
        aggregate_in_place(visits, **{**options, "measures": {"n": "sum(current_date())"}})
    with pytest.raises(MissingColumnsError, match="person"):
        aggregate_in_place(visits.drop("person"), **options)


@pytest.mark.shows("05.local-aggregator", 2)
def test_tables_with_the_same_buckets_meet_where_they_lie_and_others_are_refused(spark, tmp_path):
    visits = spark.range(40).selectExpr("id % 7 AS person", "id AS seconds", "id % 3 AS page")
    people = spark.range(7).selectExpr("id AS person", "concat('n', id) AS name")
    tables = {"lw_visits": (visits, 4), "lw_people": (people, 4), "lw_wide": (people, 8)}
    try:
        for name, (frame, buckets) in tables.items():
            writer = frame.write.format("parquet").bucketBy(buckets, "person").sortBy("person")
            writer.option("path", str(tmp_path / name)).mode("overwrite").saveAsTable(name)
        lying = {name: spark.table(name) for name in tables}
        merged = lying["lw_visits"].hint("merge")
        joined = join_in_place(merged, lying["lw_people"], keys=["person"])
        assert check_plan(joined).exchanges == ()
        assert rows(joined) == rows(visits.join(people, "person"))
        with pytest.raises(ConfigurationError, match="moves rows between tasks: hash by person"):
            join_in_place(merged, lying["lw_wide"], keys=["person"])
        copied = join_in_place(lying["lw_visits"], F.broadcast(lying["lw_wide"]), keys=["person"])
        assert [one.kind for one in check_plan(copied).exchanges] == ["broadcast"]
        options = {"measures": MEASURES | {"median": "percentile(seconds, 0.5)"}, "layout": "buckets"}
        local = aggregate_in_place(lying["lw_visits"], by=["person"], **options)
        assert check_plan(local).exchanges == ()
        assert rows(local) == rows(aggregate_by_key(visits, by=["person"], measures=options["measures"]))
        with pytest.raises(ConfigurationError, match="same number of buckets"):
            aggregate_in_place(lying["lw_visits"], by=["page"], **options)
    finally:
        for name in tables:
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_wrong_options_are_told_before_anything_starts():
    good = {"measures": {"visits": "count(*)"}, "by": ["person"], "layout": BY_PERSON}
    wrong = {
        "without person a group": {"by": ["page"]},
        "the measure median": {"measures": {"median": "percentile(seconds, 0.5)"}},
        "the measure about": {"measures": {"about": "approx_count_distinct(page)"}},
        "at least one column": {"by": []},
        "layout is KeyLayout": {"layout": "topic"},
        "the key_column visits": {"key_column": "visits"},
    }
    for told, more in wrong.items():
        with pytest.raises(ConfigurationError, match=told):
            LocalAggregator(**{**good, **more})
    for told, more in {
        "list of columns": {"keys": "a"},
        "from 1 on": {"partitions": 0},
        "empty": {"partitioner": ""},
    }.items():
        with pytest.raises(ConfigurationError, match=told):
            KeyLayout(**{"keys": ["a"], "partitions": 4, **more})
    BY_PERSON.refuse_other(KeyLayout(["id"], partitions=4))
    with pytest.raises(InputError, match="4 partitions by murmur2, the other in 4 by crc32"):
        BY_PERSON.refuse_other(KeyLayout(["id"], partitions=4, partitioner="crc32"))
    crc = KeyLayout(["id"], partitions=4, partitioner="crc32")
    with pytest.raises(ConfigurationError, match="the layout says crc32"):
        reorganize_topic(None, Connections({}), source=("b", "old"), target=("b", "new"), layout=crc)


def test_a_group_of_nan_goes_over_several_batches_as_one():
    keys = [[float("nan"), float("nan")], [float("nan"), 1.0], [1.0]]
    batches = [pa.RecordBatch.from_arrays([pa.array(one, pa.float64())], names=["key"]) for one in keys]
    grouped = group_batches(["key"], [Part("n", "rows")])
    assert [row["n"] for batch in grouped(iter(batches)) for row in batch.to_pylist()] == [3, 2]


ROW = st.tuples(
    st.sampled_from([None, "a", "b"]), st.sampled_from([None, 1, -5, 2**62]), st.sampled_from([None, "x", "y"])
)


@settings(deadline=None, max_examples=60)
@given(found=st.lists(ROW, max_size=20), sizes=st.lists(st.integers(0, 4), min_size=1))
def test_however_rows_are_cut_into_batches_each_group_comes_out_once(found, sizes):
    schema = pa.schema([("key", pa.string()), ("number", pa.int64()), ("text", pa.string())])
    ordered = sorted(found, key=lambda row: (row[0] is not None, row[0] or ""))
    batches, at = [], 0
    while at < len(ordered):
        size = sizes[len(batches) % len(sizes)] if any(sizes) else 1
        chosen = [dict(zip(schema.names, row, strict=True)) for row in ordered[at : at + size]]
        batches.append(pa.RecordBatch.from_pylist(chosen, schema=schema))
        at += size
    parts = [
        Part("n", "rows"),
        Part("count", "count", "number"),
        Part("sum", "sum", "number"),
        Part("min", "min", "text"),
        Part("max", "max", "number"),
        Part("set", "distinct", "text"),
    ]
    made = [row for batch in group_batches(["key"], parts)(iter(batches)) for row in batch.to_pylist()]
    groups: dict[str | None, list[tuple]] = {}
    for row in ordered:
        groups.setdefault(row[0], []).append(row)
    assert [row["key"] for row in made] == list(groups)
    for row in made:
        numbers = [one[1] for one in groups[row["key"]] if one[1] is not None]
        texts = [one[2] for one in groups[row["key"]] if one[2] is not None]
        assert (row["n"], row["count"]) == (len(groups[row["key"]]), len(numbers))
        assert (row["sum"], row["max"]) == (sum(numbers) if numbers else None, max(numbers, default=None))
        assert (row["min"], sorted(row["set"])) == (min(texts, default=None), sorted(set(texts)))
