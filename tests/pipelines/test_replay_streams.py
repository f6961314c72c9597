"""Dead letters of a stream's records come back by their place in the topic, also after everything is read again."""

from __future__ import annotations

import json

import pytest

from lakewright.errors import ConfigurationError
from lakewright.pipelines.dead_letters import Selection
from lakewright.pipelines.replay_records import Edits, RecordEdit
from tests.pipelines.shop import ok, rows_of
from tests.pipelines.streaming import send, visit, visits_project

SEEN = """
    @visits.dataset(mode="stream", event_time="at")
    def seen(raw):
        return raw

    @visits.dataset(rows="preserve")
    def taken(raw):
        return raw
"""


def test_records_of_a_topic_are_corrected_by_their_offset(project, kafka):
    topic = kafka.topic(partitions=1)
    send(kafka, topic, [visit(1), "{broken", visit(2, at="soon"), None])
    shop = project(visits_project(kafka, topic, SEEN))
    ok(shop.run(at="2026-01-03"))
    found = {row["offset"]: row for row in shop.dead_letters().collect()}
    assert sorted(found) == [1, 2, 3]
    whole = RecordEdit(found[1]["id"], raw=json.dumps(visit(7)))
    part = RecordEdit(found[2]["id"], fields={"at": "2026-01-02T09:00:00Z"})
    summary = shop.replay_dead_letters(
        Selection("raw", records=(whole.record, part.record)), Edits(records=(whole, part)), at="2026-01-03"
    )
    ok(summary.run)
    ok(shop.run(["taken"], at="2026-01-03"))
    assert [row["id"] for row in rows_of(shop, "taken", "id")] == ["v1", "v2", "v7"]
    assert summary.touched == {"raw": ("2026-01-01", "2026-01-02")}
    # A stream below reads the records as they arrived, and people are told so.
    assert [note.partition(":")[0] for note in summary.notes] == ["seen is a stream"]
    assert [row["id"] for row in rows_of(shop, "seen", "id")] == ["v1"]
    assert [row["id"] for row in rows_of(shop, "clean", "id")] == ["v1", "v2", "v7"]
    assert [row["offset"] for row in shop.dead_letters().collect()] == [3]

    # As it is, a record without a value stays where it is, and counts the attempt.
    again = shop.replay_dead_letters(Selection("raw"), at="2026-01-03")
    assert (again.records, again.unusable, again.still_open, again.run) == (1, 1, 1, None)
    assert shop.dead_letters().first()["attempts"] == 1

    # Everything is read again: what was corrected stays so. The stream below is told to go first, and then may.
    with pytest.raises(ConfigurationError, match="seen adds the rows of raw as a stream") as told:
        shop.rewind("raw")
    assert "lakewright stream rewind seen --all" in str(told.value.hint)
    shop.rewind("seen")
    shop.rewind("raw")
    ok(shop.run(at="2026-01-03"))
    assert [row["id"] for row in rows_of(shop, "clean", "id")] == ["v1", "v2", "v7"]
    assert [row["id"] for row in rows_of(shop, "taken", "id")] == ["v1", "v2", "v7"]
    assert [row["id"] for row in rows_of(shop, "seen", "id")] == ["v1"]
    assert [row["offset"] for row in shop.dead_letters().collect()] == [3]


def test_what_a_stream_has_set_aside_is_not_put_back_into_it(project):
    shop = project(
        {
            "pipelines/visits.py": """
                from lakewright import DeadLetter, KafkaTopic, Pipeline

                visits = Pipeline("visits", start="2026-01-01")
                visits.source("raw", KafkaTopic("broker", "visits"), schema="id string, at timestamp",
                              event_time="at", mode="stream")

                @visits.dataset(event_time="at", mode="stream",
                                guards_in={"raw": [DeadLetter(rules={"has_id": "id IS NOT NULL"})]})
                def clean(raw):
                    return raw
            """
        }
    )
    with pytest.raises(ConfigurationError, match="stream rewind clean"):
        shop.replay_dead_letters(Selection("clean"))
