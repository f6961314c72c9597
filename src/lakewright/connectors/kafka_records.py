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
from lakewright.model.sql import quoted

if TYPE_CHECKING:  # a project file names sources before Spark is there
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["MESSAGE_SCHEMA", "MessageShape", "ValueKind", "offsets_json", "read_ranges"]

ValueKind = Literal["json", "text", "bytes"]
MESSAGE_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
"""What Spark's Kafka source gives; headers where its option ``includeHeaders`` asks for them."""
_PLACE = (TOPIC_COLUMN, PARTITION_COLUMN, OFFSET_COLUMN)
_HEADER_ARRAY = "array<struct<key:string,value:binary>>"
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
        from pyspark.sql.types import StructType

        from lakewright.connectors.json_records import decoded_utf8, parse_json_records, utf8_texts

        parts = self._parts(dataset, schema)
        body = StructType([field for field in schema.fields if field.name not in parts])
        taken = {name: quoted(name[4:]) for name in _PLACE} | dict(parts.values())
        carried = [f"{sql} AS {name}" for name, sql in taken.items()]
        if self.value == "json":
            texts = messages.selectExpr(*utf8_texts("coalesce(value, X'')"), *carried)
            rows = parse_json_records(texts, schema=body, options=options, place=list(taken))
        else:
            rows = messages.selectExpr(*self._plain(body, dataset, *decoded_utf8("value")), *carried)
        columns = [f"{parts[name][0] if name in parts else quoted(name)} AS {quoted(name)}" for name in schema.names]
        return rows.selectExpr(*columns, RAW_COLUMN, *_PLACE)

    def _parts(self, dataset: str, schema: StructType) -> dict[str, tuple[str, str]]:
        """By the user's name of a column: our name for it, and SQL for the part of the message that it takes."""
        parts: dict[str, tuple[str, str]] = {}
        if self.key is not None:
            parts[self.key] = _KEY, _key(_declared(dataset, schema, self.key, "key", ("string", "binary")))
        if self.headers is not None:
            kinds = ("map<string,string>", _HEADER_ARRAY)
            parts[self.headers] = _HEADERS, _headers(_declared(dataset, schema, self.headers, "headers", kinds))
        if self.timestamp is not None:
            _declared(dataset, schema, self.timestamp, "timestamp", ("timestamp",))
            parts[self.timestamp] = _TIMESTAMP, "timestamp"
        return parts

    def _plain(self, body: StructType, dataset: str, text: str, flawed: str) -> tuple[str, str]:
        wanted = "string" if self.value == "text" else "binary"
        if len(body.fields) != 1 or body.fields[0].dataType.simpleString() != wanted:
            raise ConfigurationError(
                f"{dataset}: with value='{self.value}' the value is one column of the type {wanted}, but the schema "
                f"declares {', '.join(f'{f.name} {f.dataType.simpleString()}' for f in body.fields) or 'none'}.",
                hint=f"Write schema='value {wanted.upper()}', beside the columns of key, headers and timestamp.",
            )
        value, raw = "value", "CAST(NULL AS STRING)"
        if self.value == "text":
            value, raw = f"CASE WHEN NOT ({flawed}) THEN {text} END", f"CASE WHEN {flawed} THEN {text} END"
        return f"{value} AS {quoted(body.names[0])}", f"{raw} AS {RAW_COLUMN}"


def _key(kind: str) -> str:
    from lakewright.connectors.json_records import decoded_utf8

    return "key" if kind == "binary" else decoded_utf8("key")[0]


def _headers(kind: str) -> str:
    from lakewright.connectors.json_records import decoded_utf8

    if kind == _HEADER_ARRAY:
        return "headers"
    # A header may be there several times; of a map's keys none may: the last one counts, as for most clients.
    later = "slice(headers, place + 2, size(headers))"
    last = f"filter(headers, (header, place) -> NOT exists({later}, later -> later.key = header.key))"
    texts = f"transform({last}, header -> struct(header.key AS key, {decoded_utf8('header.value')[0]} AS value))"
    return f"map_from_entries(coalesce({texts}, CAST(array() AS ARRAY<STRUCT<key: STRING, value: STRING>>)))"


def _declared(dataset: str, schema: StructType, name: str, part: str, allowed: tuple[str, ...]) -> str:
    kind = schema[name].dataType.simpleString()
    if kind not in allowed:
        raise ConfigurationError(
            f"{dataset}: the column '{name}' takes the {part} of each message and is declared as {kind}.",
            hint=f"Declare it as {' or '.join(allowed).upper()}, or leave it out of the schema.",
        )
    return kind
