"""Changes from messages: what Debezium has written about a table, as rows with an operation and a position.

Guarantee:
    Each message with a value is one row. A good one has ``_op`` and its columns; one that cannot be read as what it
    should be has its text in ``_lw_raw`` and no ``_op``: nothing is lost, and nothing stops. A value that was not sent
    is NULL and named in ``_not_sent``, so that it is never taken for a NULL of the source.
Consequences:
    - ``_lsn`` rises for each key; a message that comes again has the same one. Apply a change only where it is greater.
    - A deleted row has its key, and ``_before`` too, unless the table has REPLICA IDENTITY FULL (``full_before``).
    - An update of the key comes as a delete and an insert with the same ``_lsn``; a large value that it did not touch
      is not sent under the new key either, unless the table has REPLICA IDENTITY FULL.
    - A field that the schema does not name is left out; a column that the message does not have is NULL.

Expressions only, of built-in functions: they run in batch, in streams and over Spark Connect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

from lakewright.connectors.cdc_settings import PLACEHOLDER
from lakewright.errors import ConfigurationError
from lakewright.model.columns import OFFSET_COLUMN, PARTITION_COLUMN, RAW_COLUMN, SYSTEM_PREFIX, TOPIC_COLUMN
from lakewright.model.ddl import schema_from_ddl
from lakewright.model.sql import quoted, text_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["CHANGE_COLUMNS", "OPERATIONS", "complete_schema", "count_tombstones", "unwrap_changes"]

OPERATIONS = {"c": "insert", "u": "update", "d": "delete", "r": "snapshot", "t": "truncate"}
"""Debezium's letters, and what stands in ``_op``."""
CHANGE_COLUMNS = ("_op", "_lsn", "_transaction", "_committed_at", "_snapshot", "_not_sent")
_CHANGE_TYPES = "_op STRING, _lsn BIGINT, _transaction BIGINT, _committed_at TIMESTAMP, _snapshot BOOLEAN, "
_CHANGE_TYPES += "_not_sent ARRAY<STRING>"
_BEFORE = "_before"
_PLACE = {TOPIC_COLUMN: "topic", PARTITION_COLUMN: "partition", OFFSET_COLUMN: "offset"}


def unwrap_changes(
    messages: DataFrame,
    *,
    schema: StructType | str,
    before: bool = False,
    full_before: bool = False,
    tombstones: Literal["drop", "keep"] = "drop",
    millis: Collection[str] = (),
    placeholder: str = PLACEHOLDER,
) -> DataFrame:
    """The rows that changed, from messages as Spark's Kafka source gives them (key, value, topic, partition, offset).

    The columns of ``schema`` (a type, or text such as ``"id INT, page STRING"``), then ``_op`` (insert, update, delete,
    snapshot, truncate), ``_lsn``, ``_transaction``, ``_committed_at``, ``_snapshot``, ``_not_sent`` (the columns that
    the message leaves out), with ``before`` also ``_before`` (the row as it was), then ``_lw_raw`` and the place of the
    message. A message without a value (a tombstone, which compaction wants) tells no change: it is dropped
    (`count_tombstones` counts them) or, with ``tombstones="keep"``, a row whose ``_op`` is ``tombstone``.

    ``full_before`` says that the table has REPLICA IDENTITY FULL, so that the old row is known in all its columns. By
    default only its key is, which is taken from the message's key, and all else is NULL: Debezium fills the columns
    that may not be NULL with zeros and empty texts.

    ``millis`` names columns whose times come in milliseconds, ``placeholder`` what stands for a value that was not
    sent: both for a connector that somebody else has set up (Debezium's own: ``__debezium_unavailable_value``).
    """
    from lakewright.connectors.json_records import decoded_utf8, parse_json_records, utf8_texts

    if isinstance(schema, str):
        schema = schema_from_ddl(schema)
    _refuse(schema, millis)
    told = messages.where("value IS NOT NULL") if tombstones == "drop" else messages
    place = [f"{quoted(name)} AS {ours}" for ours, name in _PLACE.items()]
    # A table without a primary key has no key either: it can only be captured by its whole rows.
    keys = "CAST(NULL AS ARRAY<STRING>)" if full_before else f"json_object_keys({decoded_utf8('key')[0]})"
    texts = told.selectExpr(*utf8_texts("value"), f"{keys} AS keys", *place)
    parsed = parse_json_records(texts, schema=_envelope(schema), options={}, place=["text", "keys", *_PLACE])
    known = ", ".join(text_literal(letter) for letter in OPERATIONS)
    image = parsed.selectExpr(
        "*",
        "CASE WHEN op = 'd' THEN before ELSE after END AS image",
        f"coalesce({RAW_COLUMN} IS NULL AND op IN ({known}) AND source.lsn IS NOT NULL AND "
        "(op = 't' OR CASE WHEN op = 'd' THEN before ELSE after END IS NOT NULL), false) AS whole",
    )
    left_out = _left_out(schema, placeholder)
    wrong = _wrong(schema, left_out, millis, before=before)
    judged = image.selectExpr("*", f"whole AND NOT ({' OR '.join(wrong) or 'false'}) AS good")
    return judged.selectExpr(*_columns(schema, left_out, millis, before=before))


def complete_schema(schema: StructType | None) -> StructType | None:
    """The declared columns, and those that tell of the change."""
    if schema is None:
        return None
    own = schema_from_ddl(_CHANGE_TYPES).fields
    return type(schema)([*schema.fields, *[field for field in own if field.name not in schema.names]])


def count_tombstones(messages: DataFrame) -> int:
    """Runs a job that counts the messages without a value."""
    return messages.where("value IS NULL").count()


def _refuse(schema: StructType, millis: Collection[str]) -> None:
    taken = [n for n in schema.names if n in (*CHANGE_COLUMNS, _BEFORE) or n.lower().startswith(SYSTEM_PREFIX)]
    if taken or not schema.names:
        raise ConfigurationError(
            f"Change Data Capture: the schema declares {', '.join(taken) or 'no column'}"
            f"{', which the change itself brings' if taken else ''}.",
            hint="Declare the columns of the table that are wanted.",
        )
    if unknown := sorted(set(millis) - set(schema.names)):
        raise ConfigurationError(f"Change Data Capture: 'millis' names {', '.join(unknown)}, which the schema has not.")


def _envelope(schema: StructType) -> StructType:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    from lakewright.connectors.cdc_types import wire_type

    row = StructType([StructField(field.name, wire_type(field)) for field in schema.fields])
    source = StructType([StructField(name, LongType()) for name in ("lsn", "txId", "ts_us", "ts_ms")])
    source = source.add("snapshot", StringType())
    fields = {"before": row, "after": row, "source": source, "op": StringType()}
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def _left_out(schema: StructType, placeholder: str) -> dict[str, str]:
    """By column: SQL for whether this change left its value out.

    An update does, and an insert that is one half of an update of the key; a snapshot never.
    """
    from lakewright.connectors.cdc_types import is_placeholder

    asked = {f.name: is_placeholder(f"after.{quoted(f.name)}", f.dataType, placeholder) for f in schema.fields}
    return {name: f"(coalesce(op IN ('u', 'c'), false) AND {sql})" for name, sql in asked.items() if sql is not None}


def _wrong(schema: StructType, left_out: dict[str, str], millis: Collection[str], *, before: bool) -> Sequence[str]:
    """SQL for each way in which a value is not what it is declared as."""
    from lakewright.connectors.cdc_types import misread

    found: list[str] = []
    for field in schema.fields:
        told = misread(f"image.{quoted(field.name)}", field.dataType, millis=field.name in millis)
        if told is not None:
            sent = f" AND NOT {left_out[field.name]}" if field.name in left_out else ""
            found.append(f"(NOT {_unknown(field.name)} AND {told}{sent})")
        old = misread(f"before.{quoted(field.name)}", field.dataType, millis=field.name in millis)
        if before and old is not None:
            found.append(f"(NOT {_unknown(field.name, any_operation=True)} AND {old})")
    return found


def _unknown(name: str, *, any_operation: bool = False) -> str:
    """SQL for whether the old row tells nothing of a column: it does of its key alone, unless it is known in full."""
    outside = f"coalesce(NOT array_contains(keys, {text_literal(name)}), false)"
    return outside if any_operation else f"(coalesce(op = 'd', false) AND {outside})"


def _columns(schema: StructType, left_out: dict[str, str], millis: Collection[str], *, before: bool) -> list[str]:
    from lakewright.connectors.cdc_types import converted

    def values(part: str) -> dict[str, str]:
        return {
            f.name: converted(f"{part}.{quoted(f.name)}", f.dataType, millis=f.name in millis) for f in schema.fields
        }

    shown = {
        name: f"CASE WHEN NOT ({' OR '.join(unless)}) THEN {sql} END"
        for name, sql in values("image").items()
        if (unless := [_unknown(name), *([left_out[name]] if name in left_out else [])])
    }
    words = " ".join(f"WHEN {text_literal(letter)} THEN {text_literal(word)}" for letter, word in OPERATIONS.items())
    names = [f"CASE WHEN {sql} THEN {text_literal(name)} END" for name, sql in left_out.items()]
    old = [
        f"{text_literal(name)}, CASE WHEN NOT {_unknown(name, any_operation=True)} THEN {sql} END"
        for name, sql in values("before").items()
    ]
    return [
        *[f"{sql} AS {quoted(name)}" for name, sql in shown.items()],
        f"CASE WHEN text IS NULL THEN 'tombstone' WHEN good THEN CASE op {words} END END AS _op",
        "source.lsn AS _lsn",
        "source.txId AS _transaction",
        "timestamp_micros(coalesce(source.ts_us, try_multiply(source.ts_ms, 1000))) AS _committed_at",
        "coalesce(source.snapshot NOT IN ('false'), false) AS _snapshot",
        f"array_compact(array({', '.join(names) or 'CAST(NULL AS STRING)'})) AS _not_sent",
        *([f"CASE WHEN before IS NOT NULL THEN named_struct({', '.join(old)}) END AS {_BEFORE}"] if before else []),
        f"CASE WHEN NOT good THEN text END AS {RAW_COLUMN}",
        *_PLACE,
    ]
