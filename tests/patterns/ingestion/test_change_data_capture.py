"""Change Data Capture alone: changes into a table of latest values, and the feed of a Delta table."""

from __future__ import annotations

from datetime import UTC, timedelta

import pytest
from tests.patterns.delta import rows, table

from lakewright import ChangeDataCapture, LatestValue, Pipeline
from lakewright.errors import ConfigurationError, InputError, MissingColumnsError, SchemaChangeError
from lakewright.patterns.ingestion.change_data_capture import apply_change_events, read_changes, read_latest_values

CHANGES = "id int, page string, body string, _op string, _lsn bigint, _not_sent array<string>"
FIRST = [
    (1, "home", "long", "snapshot", 10, []),
    (2, "about", "b", "insert", 11, []),
    (2, None, None, "delete", 12, []),
    (3, "p", "kept", "insert", 13, []),
]
SECOND = [
    (1, "late", None, "update", 22, ["body"]),  # the order of arrival says nothing
    (1, "news", "longer", "update", 21, []),
    (3, "q", None, "update", 23, ["body"]),
    (4, "r", None, "insert", 24, []),
    (4, "s", None, "update", 25, ["body"]),
    (9, None, None, "delete", 26, []),
    (None, None, None, "tombstone", None, []),
]
EMPTIED = [
    (3, "before it", "x", "update", 29, []),
    (None, None, None, "truncate", 30, []),
    (5, "after it", "y", "insert", 31, []),
]


def test_each_row_is_as_its_last_change_left_it_whatever_comes_again(spark, tmp_path):
    target = str(tmp_path / "visits")

    def apply(*events):
        apply_change_events(spark.createDataFrame(list(events), CHANGES), target, keys=["id"])
        return rows(read_latest_values(spark, target))

    assert apply(*FIRST) == [(1, "home", "long"), (3, "p", "kept")]
    now = [(1, "late", "longer"), (3, "q", "kept"), (4, "s", None)]
    assert apply(*SECOND) == now
    stored = table(spark, target)
    assert (2, None, None, 12, True) in stored
    assert (9, None, None, 26, True) in stored
    # Delivered again, whole or in part, late or out of order: nothing changes, and no deleted row comes back. Of a
    # value that is not sent the last one counts, not the one that is delivered again with the change.
    again = [*FIRST[:2], *SECOND[1:3], (9, "old", "old", "insert", 5, [])]
    assert apply(*again, (1, "later", None, "update", 27, ["body"])) == [(1, "later", "longer"), *now[1:]]
    assert {row for row in table(spark, target) if row[0] != 1} == {row for row in stored if row[0] != 1}
    # Emptied: what is older is gone, what came after it is there, also when all of it comes once more.
    assert apply(*EMPTIED) == [(5, "after it", "y")]
    anew = (2, "anew", None, "insert", 32, ["body"])
    assert apply(*SECOND, *EMPTIED, anew) == [(2, "anew", None), (5, "after it", "y")]
    assert {row[:3] for row in table(spark, target) if row[4]} == {(key, None, None) for key in (1, 3, 4, 9)}
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{target}`").first()
    assert detail["properties"]["delta.enableDeletionVectors"] == "true"

    stranger = spark.createDataFrame([(1, 1, "insert", 40)], "id int, other int, _op string, _lsn bigint")
    with pytest.raises(SchemaChangeError, match="a column other that the table lacks"):
        apply_change_events(stranger, target, keys=["id"])
    nowhere = str(tmp_path / "nowhere")
    for event, words in (
        ((1, "x", None, None, 5, []), "are no changes"),
        ((None, "x", None, "insert", 5, []), "no id"),
    ):
        with pytest.raises(InputError, match=words):
            apply_change_events(spark.createDataFrame([event], CHANGES), nowhere, keys=["id"])
    with pytest.raises(MissingColumnsError, match="no column _lsn"):
        apply_change_events(stranger.drop("_lsn"), nowhere, keys=["id"])
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.shows("02.change-data-capture", 5, 7)
def test_the_feed_of_a_table_is_read_from_a_version_or_a_time_on(spark, tmp_path):
    target = str(tmp_path / "pages")
    spark.createDataFrame([(1, "home"), (2, "about")], "id int, page string").write.format("delta").save(target)
    with pytest.raises(InputError, match=r"delta\.enableChangeDataFeed is not set") as refused:
        read_changes(spark, target, from_version=0)
    assert "from version 1 on" in (refused.value.hint or "")
    for statement in (
        f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)",
        f"UPDATE delta.`{target}` SET page = 'news' WHERE id = 1",
        f"DELETE FROM delta.`{target}` WHERE id = 2",
    ):
        spark.sql(statement)
    with pytest.raises(InputError, match=r"from version 0 on: delta\.enableChangeDataFeed is set.* since version 1"):
        read_changes(spark, target, from_version=0)

    told = read_changes(spark, target, from_version=1)
    updated = [(1, "home", "update_preimage", 2), (1, "news", "update_postimage", 2)]
    assert rows(told.drop("_commit_timestamp")) == [*updated, (2, "about", "delete", 3)]
    times = dict(told.select("_commit_version", "_commit_timestamp").collect())
    assert times[2] <= times[3]
    for bounds, versions in (
        ({"from_version": 3}, {3}),
        ({"from_version": 1, "upto": 3}, {2}),
        ({"from_time": times[3].replace(tzinfo=UTC) + timedelta(days=1)}, set()),
        ({"from_time": times[2].replace(tzinfo=UTC)}, {2, 3}),
    ):
        found = read_changes(spark, target, **bounds)
        assert {row[0] for row in found.select("_commit_version").collect()} == versions, bounds
    with pytest.raises(ConfigurationError, match="by from_version or by from_time"):
        read_changes(spark, target)
    with pytest.raises(InputError, match="no Delta table"):
        read_changes(spark, str(tmp_path / "nothing"), from_version=0)


def test_a_captured_table_is_one_of_its_capture_and_read_as_a_stream():
    with pytest.raises(ConfigurationError, match="at least one column"):
        LatestValue(keys="id")
    one = ChangeDataCapture("blog_db", ["visits"])
    assert one.of("visits").table == "public.visits"
    with pytest.raises(ConfigurationError, match=r"'public\.visit' is none of its tables.*Did you mean"):
        one.of("visit")
    with pytest.raises(ConfigurationError, match="needs a name of its own"):
        ChangeDataCapture("blog_db", ["visits", "users"]).of("users")
    both = ChangeDataCapture("blog_db", ["visits", "users"], name="legacy")
    assert both.names("blog", "visits") == both.names("blog", "users")
    assert both.names("blog", "users").topic("public.users") == "lw_blog_legacy.public.users"
    legacy = Pipeline("legacy")
    with pytest.raises(ConfigurationError, match='mode="stream" is missing'):
        legacy.source("changes", both.of("users"), schema="id INT")
