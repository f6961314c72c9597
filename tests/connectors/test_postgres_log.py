"""The log of PostgreSQL without a database: its messages, its values, and what becomes of windows."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakewright import ChangeDataCapture, PostgresLog
from lakewright.connectors.cdc_changes import complete_schema
from lakewright.connectors.postgres_log_decoder import Change, decode_changes, relation_of
from lakewright.connectors.postgres_log_reading import explain_log_error
from lakewright.connectors.postgres_log_rows import as_changes
from lakewright.connectors.postgres_log_slot import Place, lsn_text
from lakewright.connectors.postgres_log_values import worded
from lakewright.connectors.postgres_log_windows import first_window, gone_of
from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.model.ddl import schema_from_ddl

MICROS = 1_767_225_600_000_000
"""The beginning of 2026."""


def begin(commit: int, number: int = 7) -> bytes:
    return b"B" + struct.pack(">qqI", commit, MICROS - 946_684_800_000_000, number)


def end(commit: int) -> bytes:
    return b"C\0" + struct.pack(">qqq", commit, commit + 8, 0)


def relation(*columns: str, keys: tuple[str, ...] = ("id",), identity: str = "d", table: str = "visits") -> bytes:
    listed = [struct.pack(">B", name in keys) + name.encode() + b"\0" + struct.pack(">Ii", 25, -1) for name in columns]
    head = b"R" + struct.pack(">I", 16) + b"public\0" + table.encode() + b"\0" + identity.encode()
    return head + struct.pack(">h", len(columns)) + b"".join(listed)


def row(*values: Any) -> bytes:
    def one(value: Any) -> bytes:
        if value is None or value is ...:
            return b"n" if value is None else b"u"
        return b"t" + struct.pack(">i", len(value.encode())) + value.encode()

    return struct.pack(">h", len(values)) + b"".join(one(value) for value in values)


def change(kind: str, *parts: bytes) -> bytes:
    return kind.encode() + struct.pack(">I", 16) + b"".join(parts)


def told(*messages: bytes, **options: Any) -> list[Change]:
    placed = [(10 + place, message) for place, message in enumerate(messages)]
    return list(decode_changes(placed, table="public.visits", **{"keys": ("id",), **options}))


def test_each_kind_of_change_is_told_with_its_place_and_its_transaction() -> None:
    columns = relation("id", "page", "body")
    found = told(
        begin(90),
        columns,
        change("I", b"N", row("1", "höme", None)),
        change("U", b"N", row("1", "news", ...)),
        change("D", b"K", row("1", None, None)),
        b"T" + struct.pack(">IBI", 1, 0, 16),
        end(90),
    )
    assert found == [
        Change("insert", 12, 7, MICROS, {"id": "1", "page": "höme", "body": None}),
        Change("update", 13, 7, MICROS, {"id": "1", "page": "news"}, ("body",)),
        Change("delete", 14, 7, MICROS, {"id": "1"}),
        Change("truncate", 15, 7, MICROS, {}),
    ]
    assert relation_of(columns).columns == ("id", "page", "body")


def test_another_key_is_a_delete_and_an_insert_at_one_place() -> None:
    moved = change("U", b"K", row("1", None, None), b"N", row("2", "news", ...))
    gone, come = told(begin(90), relation("id", "page", "body"), moved)
    assert (gone.op, gone.values, gone.lsn) == ("delete", {"id": "1"}, 12)
    assert (come.op, come.values, come.lsn, come.not_sent) == ("insert", {"id": "2", "page": "news"}, 12, ("body",))


def test_the_whole_old_row_tells_what_was_not_sent_and_is_no_other_key() -> None:
    full = relation("id", "page", "body", keys=("id", "page", "body"), identity="f")
    kept = change("U", b"O", row("1", "home", "large"), b"N", row("1", "news", ...))
    [one] = told(begin(90), full, kept)
    assert (one.op, one.values, one.not_sent) == ("update", {"id": "1", "page": "news", "body": "large"}, ())
    [same] = told(begin(90), full, kept, keys=())  # no primary key: nothing tells that it became another row
    assert same.op == "update"
    [gone] = told(begin(90), full, change("D", b"O", row("1", "home", "large")))
    assert gone.values == {"id": "1", "page": "home", "body": "large"}


def test_only_whole_transactions_between_two_places_count_and_only_of_the_table() -> None:
    insert = change("I", b"N", row("1", "home"))
    several = [relation("id", "page"), begin(50), insert, end(50), begin(60), insert, end(60), begin(70), insert]
    assert [one.lsn for one in told(*several, start=58, end=68)] == [15]
    assert told(begin(50), relation("id", "page", table="others"), insert) == []


def test_a_table_that_changes_its_columns_is_told_as_it_was_at_each_change() -> None:
    first = [begin(50), relation("id", "page"), change("I", b"N", row("1", "home"))]
    after = [begin(60), relation("id", "title", "page"), change("I", b"N", row("2", "T", "news"))]
    assert [one.values for one in told(*first, *after)] == [
        {"id": "1", "page": "home"},
        {"id": "2", "title": "T", "page": "news"},
    ]


def test_a_value_of_another_protocol_is_refused() -> None:
    with pytest.raises(InputError, match="kind 'b'"):
        told(begin(50), relation("id"), change("I", b"N", struct.pack(">h", 1) + b"b"))


@pytest.mark.parametrize(
    ("text", "way", "expected"),
    [
        (None, "moment", None),
        ("infinity", "moment", "infinityZ"),
        ("2026-01-05 10:00:00", "local", "2026-01-05 10:00:00"),
        ("2026-01-05 10:00:00+00", "local", "2026-01-05 10:00:00"),
        ("23:59:59.5", "whole", "86399500000"),
        ("-12", "whole", "-12"),
        ("\\x00ff", "binary", "AP8="),
        ("{}", "array of text", "[]"),
        ('{a,"b, \\"c\\"",NULL,"NULL",""}', "array of text", '["a", "b, \\"c\\"", null, "NULL", ""]'),
        ("[0:1]={1,2}", "array of whole", '["1", "2"]'),
        ("{{1,2},{3,NULL}}", "array of array of text", '[["1", "2"], ["3", null]]'),
        ("no array", "array of text", "no array"),
        ("{cut", "array of text", "{cut"),
    ],
)
def test_values_are_worded_as_debezium_does(text: str | None, way: str, expected: str | None) -> None:
    assert worded(text, way) == expected


def test_a_value_that_the_declared_type_cannot_take_is_told_with_its_texts(spark: SparkSession) -> None:
    own = schema_from_ddl("id INT, seen TIMESTAMP, price DECIMAL(4, 2), ids ARRAY<INT>")
    shape = "v0 STRING, v1 STRING, v2 STRING, v3 STRING, op STRING, lsn BIGINT, number BIGINT, at BIGINT, "
    values = [
        ("1", "2026-01-01 00:00:00.5Z", "1.25", '["1", null]'),
        ("2", "infinityZ", None, None),
        ("3", None, "1.255", None),
        ("4", None, None, '["x"]'),
        ("5", None, None, "no array"),
        ("six", None, None, None),
    ]
    told = [(*row, "insert", place, 7, MICROS, []) for place, row in enumerate(values)]
    schema = complete_schema(own)
    assert schema is not None
    texts = spark.createDataFrame(told, shape + "left_out ARRAY<STRING>")
    changes = as_changes(texts, own, schema, dataset="changes", table="public.visits").orderBy("_lsn").collect()
    assert [row["_op"] for row in changes] == ["insert", None, None, None, None, None]
    good, *bad = changes
    assert (good["id"], str(good["price"]), good["ids"], good["_lw_raw"]) == (1, "1.25", [1, None], None)
    assert good["seen"].timestamp() * 1_000_000 == MICROS + 500_000
    assert good["_committed_at"].timestamp() * 1_000_000 == MICROS
    assert [json.loads(row["_lw_raw"])["id"] for row in bad] == ["2", "3", "4", "5", "six"]
    assert json.loads(bad[0]["_lw_raw"])["seen"] == "infinityZ"


def test_what_became_of_a_window_is_told() -> None:
    window = {"of": "public.visits", "slot": "lw_blog", "from": "0/64", "to": "0/C8", "changes": 3}
    assert gone_of(window, Place(100, 50, False)) == []
    assert gone_of(window, None) == ["the replication slot 'lw_blog' is not there any more"]
    assert gone_of(window, Place(100, 50, True)) == ["the replication slot 'lw_blog' is lost"]
    assert gone_of(window, Place(101, 50, False)) == [
        "the replication slot 'lw_blog' was moved to 0/65 by somebody else"
    ]
    names = PostgresLog("db", "visits").names("blog", "changes")
    assert gone_of(first_window("public.visits", names, snapshot=True, again=False).window, None) == []
    assert lsn_text(101) == "0/65"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_changes": 0}, "max_changes"),
        ({"if_lost": "go on"}, "if_lost"),
        ({"if_lost": "snapshot", "snapshot": False}, "needs snapshot=True"),
        ({"slot": "No Name"}, "slot="),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        PostgresLog("db", "visits", **options)


def test_a_failure_in_a_worker_is_told_in_words() -> None:
    text = "x lakewright-log-failed SQLSTATE {}: {} lakewright-log-end y"
    taken = explain_log_error(RuntimeError(text.format("55006", "the replication slot 'a' is taken")))
    assert isinstance(taken, TargetError)
    assert "is taken" in taken.message
    lost = explain_log_error(RuntimeError(text.format("08006", "server closed the connection unexpectedly")))
    assert lost is not None
    assert "connection to the database was lost" in lost.message
    assert explain_log_error(RuntimeError("another")) is None


def test_topics_that_somebody_else_fills_need_a_name() -> None:
    with pytest.raises(ConfigurationError, match="nothing tells which"):
        ChangeDataCapture("db", ["visits"], registers=False)
    theirs = ChangeDataCapture("db", ["visits", "users"], registers=False, topic_prefix="dbserver1")
    assert theirs.names("blog", "changes").topic(theirs.of("visits").table) == "dbserver1.public.visits"
