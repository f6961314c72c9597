"""Row versions: whatever the order in which changes come, each key has the chain that its log tells."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta

import pytest
from tests.patterns.delta import rows, version

from lakewright import Pipeline, RowVersions, join_as_of
from lakewright.errors import ConfigurationError, InputError, MissingColumnsError, SchemaChangeError
from lakewright.patterns.idempotency.merger import Merger
from lakewright.patterns.idempotency.scd2 import Scd2
from lakewright.patterns.ingestion.change_data_capture import apply_row_versions, read_row_versions

CHANGES = (
    "shop string, id int, page string, body string, _op string, _lsn bigint, _committed_at timestamp, "
    "_not_sent array<string>"
)
KEYS = ["shop", "id"]
TABLE = (
    "shop STRING, id INT, page STRING, body STRING, valid_from TIMESTAMP, valid_to TIMESTAMP, is_current BOOLEAN, "
    "_lw_position BIGINT, _lw_deleted BOOLEAN, _lw_not_sent ARRAY<STRING>"
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(minutes):
    return NOON + timedelta(minutes=minutes)


def events_of(seed):
    """A log of three rows: inserts, updates, deletes, rows that come again, values left out, clocks that lie."""
    chance = random.Random(seed)
    alive, log = set(), []
    for lsn in range(1, 31):
        shop, key = chance.choice([("a", 1), ("a", 2), ("b", 1)])
        minutes = lsn - chance.choice([0, 0, 0, 4]) - (lsn % 5 == 0)  # set back, or the same as of the one before
        if (shop, key) in alive and chance.random() < 0.3:
            op, page, body, left_out = "delete", None, None, []
            alive.discard((shop, key))
        else:
            op = "update" if (shop, key) in alive else "insert"
            left_out = ["body"] if op == "update" and chance.random() < 0.5 else []
            page, body = chance.choice([f"p{lsn}", None]), None if left_out else f"b{lsn}"
            alive.add((shop, key))
        log.append((shop, key, page, body, op, lsn, at(minutes), left_out))
    return log


def truth(log):
    """The versions that some changes tell, one by one, as anybody would write them down."""
    chains, versions = defaultdict(list), []
    for event in sorted({one[5]: one for one in log}.values(), key=lambda one: one[5]):
        chains[event[:2]].append(event)
    for key, chain in chains.items():
        body, known = None, []
        for _, _, page, sent, op, _, _, left_out in chain:
            body = body if left_out else sent
            known.append((page, body, op))
        for place, (page, filled, op) in enumerate(known):
            begins = min(event[6] for event in chain[place:])
            ends = min((event[6] for event in chain[place + 1 :]), default=None)
            if op != "delete":
                versions.append((*key, page, filled, begins, ends, ends is None))
    return sorted(versions, key=str)


def found(spark, target):
    return sorted(
        (
            (*row[:4], row[4].replace(tzinfo=UTC), row[5] and row[5].replace(tzinfo=UTC), row[6])
            for row in read_row_versions(spark, target).collect()
        ),
        key=str,
    )


def test_after_each_batch_the_chains_are_those_that_the_changes_up_to_then_tell(spark, tmp_path):
    target, log, chance = str(tmp_path / "pages"), events_of(7), random.Random(11)
    chance.shuffle(log)
    spark.sql(f"CREATE TABLE delta.`{target}` ({TABLE}) USING delta PARTITIONED BY (shop)")
    come = []
    for batch in range(3):
        # New ones in any order, some of them twice, and some that came before.
        new = log[batch * 10 : batch * 10 + 10]
        again = chance.sample(come, min(4, len(come))) + new[:2]
        come += new
        apply_row_versions(spark.createDataFrame([*new, *again], CHANGES), target, keys=KEYS)
        assert found(spark, target) == truth(come), f"batch {batch}"
    assert len(come) == len(log) == 30
    versions = found(spark, target)
    assert {row[:2] for row in versions if row[6]} == {row[:2] for row in versions if row[5] is None}

    # All of it once more changes nothing at all.
    before = version(target)
    apply_row_versions(spark.createDataFrame(log, CHANGES), target, keys=KEYS)
    assert version(target) == before

    # A TRUNCATE ends every row; one that comes again afterwards begins anew, and takes nothing over.
    anew = ("a", 1, "anew", None, "insert", 42, at(42), ["body"])
    cut = (None, None, None, None, "truncate", 40, at(40), [])
    tombstone = (None, None, None, None, "tombstone", None, None, [])
    apply_row_versions(spark.createDataFrame([anew, cut, tombstone], CHANGES), target, keys=KEYS)
    ended = [(*row[:5], row[5] or at(40), False) for row in versions]
    now = ("a", 1, "anew", None, at(42), None, True)
    assert found(spark, target) == sorted([*ended, now], key=str)

    # Joined by time, each visit has the version of its moment, and none where the row was not there.
    visits = [(1, "a", 1, at(50)), (2, "a", 1, at(41))]
    seen = spark.createDataFrame(visits, "visit int, shop string, id int, seen timestamp")
    pages = read_row_versions(spark, target).drop("is_current")
    assert rows(join_as_of(seen, pages, keys=KEYS, at="seen").select("visit", "page")) == [(1, "anew"), (2, None)]

    columns = "shop string, id int, other int, _op string, _lsn bigint, _committed_at timestamp"
    other = spark.createDataFrame([("a", 1, 1, "insert", 50, at(50))], columns)
    before = version(target)
    for frame, error, words in (
        (other, SchemaChangeError, "a column other that the table lacks"),
        (other.drop("_committed_at"), MissingColumnsError, "no column _committed_at"),
        (other.withColumnRenamed("other", "Valid_To"), InputError, "Valid_To, which RowVersions makes itself"),
        (other.selectExpr("*", "'now' AS seen"), InputError, "seen is string, no time"),
        (other.selectExpr("shop", "id", "_op", "_lsn", "CAST(NULL AS DATE) AS _committed_at"), InputError,
         "1 changes do not tell when"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            apply_row_versions(frame, target, keys=KEYS, at="seen" if "seen" in frame.columns else "_committed_at")
    assert version(target) == before


def test_a_column_of_the_row_may_tell_when_a_version_begins(spark, tmp_path):
    target = str(tmp_path / "pages")
    log = [
        (1, date(2026, 1, 1), "insert", 1, at(1)),
        (1, None, "update", 2, at(2)),  # it does not say: the commit's time counts
        (2, date(2026, 1, 1), "insert", 3, at(3)),
        (1, date(2026, 1, 1), "delete", 4, at(4)),  # this is what the row was, not when it went
    ]
    changes = spark.createDataFrame(log, "id int, edited date, _op string, _lsn bigint, _committed_at timestamp")
    names = {"valid_from": "since", "valid_to": "until", "current": "now"}
    apply_row_versions(changes, target, keys=["id"], at="edited", **names)
    told = read_row_versions(spark, target).selectExpr("id", "string(since)", "string(until)", "now")
    assert rows(told) == [
        (1, "2026-01-01 00:00:00", "2026-01-01 12:02:00", False),
        (1, "2026-01-01 12:02:00", "2026-01-01 12:04:00", False),
        (2, "2026-01-01 00:00:00", None, True),
    ]
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{target}`").first()
    assert detail["properties"]["delta.enableDeletionVectors"] == "true"


def test_the_columns_of_versions_are_told_apart_and_a_stream_below_a_capture_keeps_them():
    with pytest.raises(ConfigurationError, match="at least one column"):
        RowVersions(keys="id")
    for wrong in ({"valid_from": "id"}, {"valid_to": "is_current"}, {"at": "since", "valid_from": "since"}):
        with pytest.raises(ConfigurationError, match="different columns"):
            RowVersions(keys=["id"], **wrong)
    legacy = Pipeline("legacy", start="2026-01-01")
    legacy.add(lambda changes: changes, name="versions", mode="stream", writer=RowVersions(keys=["id"]))
    kept = legacy.datasets[-1]
    assert (kept.valid_from, kept.valid_to) == ("valid_from", "valid_to")
    with pytest.raises(ConfigurationError, match=r"Scd2\) cannot follow a stream") as refused:
        legacy.add(
            lambda changes: changes,
            name="history",
            mode="stream",
            writer=Merger(keys=["id"], history=Scd2(valid_from="at")),
        )
    assert "RowVersions" in (refused.value.hint or "")
