"""A topic whose keys lie in fixed partitions: read so that one task has one partition, and rewritten to another number.

Guarantee:
    Nothing is read from a topic whose number of partitions is not the recorded one, and no option that would part a
    partition over several tasks is taken. A reorganization sends each record once, in the order of its key, to the
    partition that the key has there; it is proven before the call returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_records import read_ranges
from lakewright.errors import ConfigurationError, TargetError
from lakewright.model.connections import Connections
from lakewright.model.key_layouts import KeyLayout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_keyed_topic", "reorganize_topic"]

_PARTS_PARTITIONS = ("minpartitions", "maxrecordsperpartition")


def read_keyed_topic(
    spark: SparkSession,
    connections: Connections,
    topic: tuple[str, str],
    *,
    layout: KeyLayout,
    stream: bool = False,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The messages of a topic (connection and name), one task per partition; refused where the layout is another.

    In batch it is what the topic holds now, the same however often the frame is used.
    """
    more = dict(options or {})
    if parting := [name for name in more if name.lower() in _PARTS_PARTITIONS]:
        raise ConfigurationError(
            f"Local Aggregator: {parting[0]} would part a partition of {topic[1]} over several tasks, and so the rows "
            "of a key. Nothing was started.",
            hint="Leave it out; for more tasks give the topic more partitions (reorganize_topic).",
        )
    client = KafkaClient.connect(connections, topic[0], asked_by=f"keyed topic {topic[1]}")
    state = client.state(topic[1], "read_committed")
    layout.refuse_count(len(state.high), what=f"the topic {topic[1]}")
    settings = {"kafka.isolation.level": "read_committed", **client.spark_options(), **more}
    if not stream:
        return read_ranges(spark, topic[1], {p: (state.low[p], state.high[p]) for p in state.high}, settings)
    reader = spark.readStream.format("kafka").options(**{"startingOffsets": "earliest", **settings})
    return reader.option("subscribe", topic[1]).option("failOnDataLoss", "true").load()


def reorganize_topic(
    spark: SparkSession,
    connections: Connections,
    *,
    source: tuple[str, str],
    target: tuple[str, str],
    layout: KeyLayout,
) -> int:
    """Runs jobs that send every record of a topic to another one, placed anew by key, and prove it; gives their number.

    ``layout`` is the target's. Both topics are given as connection and name, and the target is empty. Producers stand
    still meanwhile: what they send to the old topic after the call began is not taken. Records without a key go to the
    first partition, together.
    """
    name = f"reorganization of {source[1]}"
    if layout.partitioner != "murmur2":
        raise ConfigurationError(
            f"{name}: Spark places keys by murmur2, and the layout says {layout.partitioner}. Nothing was sent."
        )
    reader = KafkaClient.connect(connections, source[0], asked_by=name)
    writer = KafkaClient.connect(connections, target[0], asked_by=name)
    state = reader.state(source[1], "read_committed")
    _refuse_used(writer, target[1], layout)
    ranges = {p: (state.low[p], state.high[p]) for p in state.high}
    committed = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}
    records = read_ranges(spark, source[1], ranges, {**reader.spark_options(), **committed})
    placed = records.selectExpr("key", "value", "headers", "CASE WHEN key IS NULL THEN 0 END AS partition")
    sending = placed.write.format("kafka").options(**writer.spark_options()).option("topic", target[1])
    sending = sending.option("includeHeaders", "true").option("kafka.acks", "all")
    sending.option("kafka.enable.idempotence", "true").save()
    end = writer.state(target[1], "read_committed")
    made = {p: (end.low[p], end.high[p]) for p in end.high}
    return _prove(records, read_ranges(spark, target[1], made, {**writer.spark_options(), **committed}), target[1])


def _refuse_used(writer: KafkaClient, topic: str, layout: KeyLayout) -> None:
    state = writer.state(topic, "read_committed")
    layout.refuse_count(len(state.high), what=f"the topic {topic}")
    if used := sum(state.high[p] - state.low[p] for p in state.high):
        raise TargetError(
            f"The topic {topic} holds {used:,} records already: a reorganization would add to them. Nothing was sent.",
            hint="Give it an empty topic; one that an earlier attempt began to fill is deleted and made anew.",
        )


def _prove(source: DataFrame, target: DataFrame, topic: str) -> int:
    """Each key has as many equal records as before, and lies in one partition."""
    from pyspark.sql import functions as F

    def told(frame: DataFrame, side: str) -> DataFrame:
        content = F.xxhash64("key", "value", "headers").cast("decimal(38,0)")
        return frame.groupBy("key").agg(
            F.count(F.lit(1)).alias(f"{side}_count"),
            F.sum(content).alias(f"{side}_sum"),
            (F.min("partition") == F.max("partition")).alias(f"{side}_together"),
        )

    old, new = told(source, "old"), told(target, "new")
    both = old.join(new.withColumnRenamed("key", "new_key"), F.expr("key <=> new_key"), "full")
    same = "old_count <=> new_count AND old_sum <=> new_sum AND new_together"
    row = both.agg(F.sum("new_count").alias("records"), F.count_if(F.expr(f"NOT ({same})")).alias("wrong")).first()
    assert row is not None
    if row["wrong"]:
        raise TargetError(
            f"The topic {topic} does not hold what was sent: {row['wrong']:,} keys differ, or lie in two partitions. "
            "Do not use it.",
            hint="Was somebody else sending to it? Delete it, make it anew, and repeat the reorganization.",
        )
    return int(row["records"] or 0)
