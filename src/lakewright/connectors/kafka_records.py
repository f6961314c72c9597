"""Messages to records: the declared columns, the raw text of what is not right, and the place in the topic.

Every message is kept. A JSON value that does not parse stays with its text in ``_lw_raw``; one without a value (a
tombstone) with an empty text. Bytes that are not UTF-8 are read byte by byte as Latin-1, so that nothing is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError
from lakewright.model.columns import OFFSET_COLUMN, PARTITION_COLUMN, RAW_COLUMN, TOPIC_COLUMN

if TYPE_CHECKING:  # a project file names sources before Spark is there
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["MESSAGE_SCHEMA", "MessageShape", "ValueKind", "offsets_json", "read_ranges"]

ValueKind = Literal["json", "text", "bytes"]
MESSAGE_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
"""What Spark's Kafka source gives, with headers."""
_PLACE = (TOPIC_COLUMN, PARTITION_COLUMN, OFFSET_COLUMN)
_KEY, _HEADERS, _TIMESTAMP = "_lw_key", "_lw_headers", "_lw_timestamp"


def offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets by partition as Spark's Kafka source takes them."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})


def read_ranges(
    spark: SparkSession, topic: str, ranges: Mapping[int, tuple[int, int]], options: Mapping[str, str]
) -> DataFrame:
    """The messages of these offsets, as Spark gives them (``MESSAGE_SCHEMA``); lazy."""
    asked = {p: (first, end) for p, (first, end) in ranges.items() if end > first}
    if not asked:
        return spark.createDataFrame([], MESSAGE_SCHEMA)
    return (
        spark.read.format("kafka")
        .options(**options)
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .option("assign", json.dumps({topic: sorted(asked)}))
        .option("startingOffsets", offsets_json(topic, {p: first for p, (first, _) in asked.items()}))
        .option("endingOffsets", offsets_json(topic, {p: end for p, (_, end) in asked.items()}))
        .load()
    )


@dataclass(frozen=True, slots=True)
class MessageShape:
    """Which column takes which part of a message."""

    value: ValueKind
    key: str | None = None
    headers: str | None = None
    timestamp: str | None = None

    def complete(self, schema: StructType | None) -> StructType | None:
        """The schema with the columns of key, headers and timestamp, which it may name itself; None is unknown."""
        from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType, TimestampType

        own: dict[str | None, DataType] = {
            self.key: StringType(),
            self.headers: MapType(StringType(), StringType()),
            self.timestamp: TimestampType(),
        }
        if schema is None:
            if self.value == "json":
                return None
            schema = StructType([StructField("value", StringType() if self.value == "text" else BinaryType())])
        missing = [(name, kind) for name, kind in own.items() if name is not None and name not in schema.names]
        return StructType([*schema.fields, *[StructField(name, kind) for name, kind in missing]])

    def records(
        self, messages: DataFrame, *, dataset: str, schema: StructType, options: Mapping[str, str]
    ) -> DataFrame:
        """The record of each message; lazy."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        from lakewright.connectors.json_records import decoded_utf8, parse_json_records

        parts: dict[str | None, tuple[str, Column]] = {
            self.key: (_KEY, _key_column(dataset, schema, self.key)),
            self.headers: (_HEADERS, _headers_column(dataset, schema, self.headers)),
            self.timestamp: (_TIMESTAMP, _timestamp_column(dataset, schema, self.timestamp)),
        }
        parts.pop(None, None)
        body = StructType([field for field in schema.fields if field.name not in parts])
        text, flawed = decoded_utf8(F.col("value"))
        place = [F.col(name[4:]).alias(name) for name in _PLACE]
        carried = [column.alias(name) for name, column in parts.values()]
        if self.value == "json":
            texts = messages.select(
                F.coalesce(text, F.lit("")).alias("text"), F.coalesce(flawed, F.lit(False)).alias("flawed"),
                *place, *carried,
            )  # fmt: skip
            names = [name for name, _ in parts.values()]
            rows = parse_json_records(texts, schema=body, options=options, place=[*_PLACE, *names])
        else:
            rows = self._plain(messages, body, dataset, text, flawed, [*place, *carried])
        columns = [F.col(parts[n][0] if n in parts else f"`{n}`").alias(n) for n in schema.names]
        return rows.select(*columns, RAW_COLUMN, *_PLACE)

    def _plain(
        self, messages: DataFrame, body: StructType, dataset: str, text: Column, flawed: Column, rest: list[Column]
    ) -> DataFrame:
        from pyspark.sql import functions as F

        wanted = "string" if self.value == "text" else "binary"
        if len(body.fields) != 1 or body.fields[0].dataType.simpleString() != wanted:
            raise ConfigurationError(
                f"{dataset}: with value='{self.value}' the value is one column of the type {wanted}, but the schema "
                f"declares {', '.join(f'{f.name} {f.dataType.simpleString()}' for f in body.fields) or 'none'}.",
                hint=f"Write schema='value {wanted.upper()}', beside the columns of key, headers and timestamp.",
            )
        value, raw = F.col("value"), F.lit(None).cast("string")
        if self.value == "text":
            value, raw = F.when(~flawed, text), F.when(flawed, text)
        name = body.names[0]
        return messages.select(value.alias(name), raw.alias(RAW_COLUMN), *rest)


def _key_column(dataset: str, schema: StructType, name: str | None) -> Column:
    from pyspark.sql import functions as F

    from lakewright.connectors.json_records import decoded_utf8

    kind = _declared(dataset, schema, name, "key", ("string", "binary"))
    return F.col("key") if kind == "binary" else decoded_utf8(F.col("key"))[0]


def _headers_column(dataset: str, schema: StructType, name: str | None) -> Column:
    from pyspark.sql import functions as F

    from lakewright.connectors.json_records import decoded_utf8

    array = "array<struct<key:string,value:binary>>"
    if _declared(dataset, schema, name, "headers", ("map<string,string>", array)) == array:
        return F.col("headers")
    # A header may be there several times; of a map's keys none may: the last one counts, as for most clients.
    last = F.filter(
        "headers",
        lambda header, place: (
            ~F.exists(F.slice("headers", place + 2, F.size("headers")), lambda later: later["key"] == header["key"])
        ),
    )
    texts = F.transform(last, lambda header: F.struct(header["key"], decoded_utf8(header["value"])[0].alias("value")))
    return F.map_from_entries(F.coalesce(texts, F.array().cast("array<struct<key:string,value:string>>")))


def _timestamp_column(dataset: str, schema: StructType, name: str | None) -> Column:
    from pyspark.sql import functions as F

    _declared(dataset, schema, name, "timestamp", ("timestamp",))
    return F.col("timestamp")


def _declared(dataset: str, schema: StructType, name: str | None, part: str, allowed: tuple[str, ...]) -> str:
    kind = allowed[0] if name is None else schema[name].dataType.simpleString()
    if kind not in allowed:
        raise ConfigurationError(
            f"{dataset}: the column '{name}' takes the {part} of each message and is declared as {kind}.",
            hint=f"Declare it as {' or '.join(allowed).upper()}, or leave it out of the schema.",
        )
    return kind
