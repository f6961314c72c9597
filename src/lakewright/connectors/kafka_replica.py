"""A topic copied to another topic as it is: key, value, headers and partition, in the order of each partition.

Guarantee:
    Every message arrives, in its order. If the stream dies, the messages of the micro-batch that it was sending are
    sent again: such duplicates can be told by the headers ``lakewright-partition`` and ``lakewright-offset``, which say
    where a message came from, and its first sending is the one that counts. Nothing is sent where the target is
    missing, or has fewer partitions than the source.
Consequences:
    - Offset and timestamp of a message are the target's own; the original ones are in its headers.
    - Never repartition on the way: one task reads and sends one partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.errors import ConfigurationError
from lakewright.model.connections import Connections

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["PLACE_HEADERS", "refuse_narrow", "replicate_topic"]

PLACE_HEADERS = ("lakewright-partition", "lakewright-offset", "lakewright-timestamp")


def replicate_topic(
    spark: SparkSession,
    connections: Connections,
    *,
    source: tuple[str, str],
    target: tuple[str, str],
    checkpoint: str,
    continuous: bool = False,
    max_messages: int | None = None,
) -> StreamingQuery:
    """Start a stream that copies a topic, each given as connection and topic; all that is there, or ``continuous``.

    ``max_messages`` bounds a micro-batch, and so what one takes of the broker at once.
    """
    name = f"replica of {source[1]}"
    reader = KafkaClient.connect(connections, source[0], asked_by=name)
    writer = KafkaClient.connect(connections, target[0], asked_by=name)
    refuse_narrow(reader, source[1], writer, target[1])
    messages = spark.readStream.format("kafka").options(**reader.spark_options())
    messages = messages.option("subscribe", source[1]).option("includeHeaders", "true")
    messages = messages.option("startingOffsets", "earliest").option("failOnDataLoss", "true")
    if max_messages is not None:
        messages = messages.option("maxOffsetsPerTrigger", max_messages)
    sending = _with_place(messages.load()).writeStream.format("kafka").options(**writer.spark_options())
    sending = sending.option("topic", target[1]).option("includeHeaders", "true")
    sending = sending.option("checkpointLocation", checkpoint).queryName(name)
    # In order also when a request is repeated: the broker knows the sequence of each producer.
    sending = sending.option("kafka.enable.idempotence", "true").option("kafka.acks", "all")
    return (sending if continuous else sending.trigger(availableNow=True)).start()


def _with_place(messages: DataFrame) -> DataFrame:
    own = {"partition": PLACE_HEADERS[0], "offset": PLACE_HEADERS[1], "unix_millis(timestamp)": PLACE_HEADERS[2]}
    places = ", ".join(
        f"struct('{name}' AS key, encode(CAST({sql} AS STRING), 'UTF-8') AS value)" for sql, name in own.items()
    )
    before = "coalesce(headers, CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>))"
    return messages.selectExpr("key", "value", "partition", f"concat({before}, array({places})) AS headers")


def refuse_narrow(reader: KafkaClient, source: str, writer: KafkaClient, target: str) -> None:
    """Both topics must be there, and every partition must have its counterpart."""
    wide = len(reader.state(source, "read_committed").high)
    narrow = len(writer.state(target, "read_committed").high)
    if narrow < wide:
        raise ConfigurationError(
            f"{target} has {narrow} partitions and {source} {wide}: the order of a partition could not be kept. "
            "Nothing was sent.",
            hint=f"Give it as many: kafka-topics.sh --alter --topic {target} --partitions {wide}.",
        )
