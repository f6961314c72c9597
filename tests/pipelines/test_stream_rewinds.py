"""Rewinds: nothing is deleted that cannot be read again, and what is read again equals what was there."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from lakewright.errors import ConfigurationError, InputError, LeaseHeldError
from lakewright.failpoints import FailpointReached
from tests.pipelines.shop import land, ok, order, orders_project, rows_of
from tests.pipelines.streaming import delete_before, make_anew, send, send_at, visit, visits_project
from tests.pipelines.test_streams import ids

START = datetime(2026, 1, 5, 7, tzinfo=UTC)
FOR_EVER = {"retention.ms": "-1"}
"""The broker itself deletes messages whose time is long ago, at a moment of its own."""


def hours(number: float) -> datetime:
    return START + timedelta(hours=number)


def standing(shop):
    """What a refusal must leave as it was."""
    current = shop.store.streams.current("raw")
    return shop.lake.log("raw").latest(), current.number, ids(shop)


@contextmanager
def damaged(file):
    text = file.read_bytes()
    file.write_text("{")
    yield
    file.write_bytes(text)


def latest_project(kafka, topic):
    files = visits_project(kafka, topic)
    files["pipelines/visits.py"] = files["pipelines/visits.py"].replace(
        f'KafkaTopic("broker", "{topic}")', f'KafkaTopic("broker", "{topic}", start="latest")'
    )
    return files


def test_a_rewind_that_could_not_read_again_what_it_deletes_is_refused_with_what_is_gone_and_how_to_go_on(
    project, kafka
):
    topic = kafka.topic(partitions=3, settings=FOR_EVER)
    shop = project(visits_project(kafka, topic))
    send_at(kafka, topic, hours(-1), [visit(90)], partition=1)
    for hour in range(3):
        send_at(kafka, topic, hours(hour), [visit(2 * hour), visit(2 * hour + 1)])
        ok(shop.run(["raw"], at="2026-01-06"))
    before = standing(shop)
    delete_before(kafka, topic, 3)  # the second micro-batch is gone in part: offset 2 of [2, 4)

    for asked in ({}, {"to": hours(0)}, {"to": hours(1)}):
        for dry_run in (True, False):
            with pytest.raises(InputError, match="partition 0, offsets") as refused:
                shop.rewind("raw", **asked, dry_run=dry_run)
    assert "no longer holds 1 of these records (partition 0, offsets 2 to 2, read between" in refused.value.message
    assert refused.value.message.endswith("Nothing was changed.")
    assert "`--lost delete` deletes them for good: 1 rows" in refused.value.hint
    assert standing(shop) == before
    assert shop.store.steps.open_steps() == []
    assert shop.store.leases.held(shop._now()) == []

    # The time that it tells is the earliest one since which all is held.
    (earliest,) = re.findall(r"rewind raw --to (\S+)`", refused.value.hint)
    assert earliest == "2026-01-05T08:00:00.001"
    assert shop.rewind("raw", to=earliest).deleted == 2
    ok(shop.run(["raw"], at="2026-01-06"))
    assert ids(shop) == before[2]

    # Asked to keep what is gone, it reads again what is held as a whole; else it is lost, and told.
    kept = shop.rewind("raw", lost="keep")
    assert (kept.rows_lost, kept.deleted) == (3, 2)
    ok(shop.run(["raw"], at="2026-01-06"))
    assert ids(shop) == before[2]
    gone = shop.rewind("raw", to=hours(1), lost="delete")
    assert (gone.rows_lost, gone.deleted) == (1, 4)
    ok(shop.run(["raw"], at="2026-01-06"))
    assert ids(shop) == ["v0", "v1", "v3", "v4", "v5", "v90"]
    gone = shop.rewind("raw", lost="delete")
    assert (gone.rows_lost, gone.deleted) == (2, 6)
    for partition in range(3):
        send_at(kafka, topic, hours(3), [visit(91 + partition)], partition)
    ok(shop.run(["raw"], at="2026-01-06"))
    assert ids(shop) == ["v3", "v4", "v5", "v90", "v91", "v92", "v93"]

    # What was given up once is not asked for again, where nothing else of a partition is left.
    delete_before(kafka, topic, 2, partition=1)
    delete_before(kafka, topic, 1, partition=2)
    gone = shop.rewind("raw", to=hours(3), lost="delete")
    assert (gone.rows_lost, gone.deleted) == (3, 7)
    ok(shop.run(["raw"], at="2026-01-06"))
    shop.rewind("raw", to=hours(3))
    ok(shop.run(["raw"], at="2026-01-06"))
    assert ids(shop) == ["v3", "v4", "v5", "v91"]
    with pytest.raises(ConfigurationError, match="'refuse', 'keep', 'delete', not 'all'"):
        shop.rewind("raw", lost="all")


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
def test_a_rewind_that_died_deletes_nothing_when_meanwhile_the_topic_has_lost_it(project, kafka, failing):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(2)])
    shop = project(visits_project(kafka, topic))
    ok(shop.run(["raw"], at="2026-01-03"))
    send(kafka, topic, [visit(3)])
    ok(shop.run(["raw"], at="2026-01-03"))

    failing("generation_recorded")
    with pytest.raises(FailpointReached):
        shop.rewind("raw")
    delete_before(kafka, topic, 1)
    for _ in range(2):
        refused = shop.run(["raw"], at="2026-01-03").errors[0]
        assert isinstance(refused, InputError)
        assert "its rewind was cut short" in str(refused)
        assert ids(shop) == ["v1", "v2", "v3"]
    shop.rewind("raw", lost="keep")
    send(kafka, topic, [visit(4)])
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v1", "v2", "v3", "v4"]


def test_what_a_rewind_brings_once_more_is_not_late(project, kafka):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(2), visit(3, "2026-01-02T10:00:00Z")])
    files = visits_project(kafka, topic)
    text = files["pipelines/visits.py"].replace("import DeadLetter", "import Capture, DeadLetter")
    shop = project(files | {"pipelines/visits.py": text.replace('rows="preserve"', 'rows="preserve", late=Capture()')})
    ok(shop.run(at="2026-01-03"))
    shop.rewind("raw")
    send(kafka, topic, [visit(4)])
    ok(shop.run(at="2026-01-03"))
    late = shop.lake.read("_lakewright/late_rows").selectExpr("get_json_object(record, '$.id') AS id").collect()
    assert [row["id"] for row in late] == ["v4"]
    assert ids(shop, "clean") == ["v1", "v2", "v3"]


def test_late_rows_are_captured_though_nobody_can_look_any_more_what_was_there_before_they_came_again(project):
    shop = project(orders_project('rows="preserve", late=Capture()'))
    for day in (1, 2):
        land(shop.folder, f"d{day}.json", [order(f"o{day}", f"2026-01-0{day}T10:00:00Z")])
        ok(shop.run(at=f"2026-01-0{day + 1}"))
    shop.rollback("orders")
    # Delta gives no version that is older than its files are kept: a week.
    first = Path(shop.lake.resolve("orders")) / "_delta_log" / f"{0:020d}.json"
    os.utime(first, (first.stat().st_mtime - 8 * 86_400,) * 2)
    land(shop.folder, "d3.json", [order("late", "2026-01-01T11:00:00Z")])
    ok(shop.run(at="2026-01-04"))
    late = shop.lake.read("_lakewright/late_rows").selectExpr("get_json_object(record, '$.order_id') AS id").collect()
    assert [row["id"] for row in late] == ["late"]


def test_a_stream_that_began_at_the_end_of_its_topic_begins_there_again_and_not_at_the_present_end(project, kafka):
    topic = kafka.topic(partitions=3)
    for partition in range(3):
        send(kafka, topic, [visit(90 + partition)], partition=partition)  # before the stream began
    shop = project(latest_project(kafka, topic))
    ok(shop.run(["raw"], at="2026-01-03"))
    send(kafka, topic, [visit(1), visit(2)])
    ok(shop.run(["raw"], at="2026-01-03"))
    first = shop.lake.log("raw").latest()
    send(kafka, topic, [visit(3)])
    send(kafka, topic, [visit(4)], partition=1)
    ok(shop.run(["raw"], at="2026-01-03"))
    send(kafka, topic, [visit(5)], partition=2)  # not read yet, and nothing else of its partition is

    shop.rewind("raw")
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v1", "v2", "v3", "v4", "v5"]

    # Rolled back to where two partitions had no rows, they are read from where the stream began, also if the store
    # was lost.
    for rebuilt in (False, True):
        shop.rollback("raw", to=first)
        assert ids(shop) == ["v1", "v2"]
        if rebuilt:
            shop.rebuild_store()
        ok(shop.run(["raw"], at="2026-01-03"))
        assert ids(shop) == ["v1", "v2", "v3", "v4", "v5"]


def test_a_partition_of_which_nothing_was_read_yet_is_not_left_out_by_a_rewind_to_a_time(project, kafka):
    topic = kafka.topic(partitions=2, settings=FOR_EVER)
    shop = project(visits_project(kafka, topic))
    send_at(kafka, topic, hours(0), [visit(1)])
    ok(shop.run(["raw"], at="2026-01-06"))
    send_at(kafka, topic, hours(2), [visit(2)])
    ok(shop.run(["raw"], at="2026-01-06"))
    send_at(kafka, topic, hours(1), [visit(3)], partition=1)

    # Whoever has lost the stream to another process changes nothing: it records no beginning, and deletes no row.
    def lose(*_):
        shop.store.leases.break_lease("raw")

    before, rewind = standing(shop), "lakewright.pipelines.streams.rewind"
    with patch(f"{rewind}.harvest_stream", lose), pytest.raises(LeaseHeldError):
        shop.rewind("raw", to=hours(2))
    assert standing(shop) == before
    lost_late = patch(f"{rewind}.failpoint", lambda place: lose() if place == "fenced" else None)
    with lost_late, pytest.raises(LeaseHeldError):
        shop.rewind("raw", to=hours(2))
    assert ids(shop) == ["v1", "v2"]

    shop.rewind("raw", to=hours(2))
    ok(shop.run(["raw"], at="2026-01-06"))

    assert ids(shop) == ["v1", "v2", "v3"]


def test_rows_of_a_topic_that_was_made_anew_are_deleted_only_when_that_is_said(project, kafka):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(2)])
    shop = project(visits_project(kafka, topic))
    ok(shop.run(["raw"], at="2026-01-03"))
    before = standing(shop)
    make_anew(kafka, topic)
    send(kafka, topic, [visit(20)])

    refused = shop.run(["raw"], at="2026-01-03").errors[0]
    assert "under a new name" in refused.hint
    assert "`lakewright stream rewind raw --all --lost delete`, which deletes for good" in refused.hint
    for asked in ({}, {"lost": "keep"}):
        with pytest.raises(InputError, match="made anew, and the 2 rows came from the old one") as lost:
            shop.rewind("raw", **asked)
        assert "--lost keep" not in lost.value.hint
    with pytest.raises(InputError, match="made anew"):
        shop.rewind("raw", to=START)
    assert standing(shop) == before

    assert shop.rewind("raw", lost="delete").rows_lost == 2
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v20"]


MERGED = """
    @visits.dataset(mode="stream", writer=Merger(keys=["page"]))
    def pages(daily):
        return daily.where("visits >= {least}").select("page", "visits")

    visits.sql("daily", "SELECT page, count(*) AS visits FROM clean WHERE page IS NOT NULL GROUP BY 1",
               inputs={"clean": Whole()}, layer="silver")
"""


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
def test_a_stream_that_merges_is_after_a_rewind_what_a_build_from_scratch_gives(project, kafka, failing):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(2, page="/gone"), visit(3, page="/twice"), visit(4, page="/twice")])
    shop = project(visits_project(kafka, topic, MERGED.replace("{least}", "1")))
    ok(shop.run(at="2026-01-03"))
    assert {row["page"] for row in rows_of(shop, "pages")} == {"/", "/gone", "/twice"}
    with pytest.raises(ConfigurationError, match="rows do not tell when they came") as refused:
        shop.rewind("pages", to="2026-01-01")
    assert "--all" in refused.value.hint

    # A row goes that the stream has not read of, and the step no longer gives another one.
    shop.lake.session().sql(f"DELETE FROM delta.`{shop.lake.resolve('daily')}` WHERE page = '/gone'")
    shop = project(visits_project(kafka, topic, MERGED.replace("{least}", "2")))
    failing("generation_recorded")
    with pytest.raises(FailpointReached):
        shop.rewind("pages")
    for place in ("fenced", "rewound", "batch_done"):
        failing(place)
        assert shop.run(["pages"], at="2026-01-03").state == "failed"
    ok(shop.run(["pages"], at="2026-01-03"))

    assert [(row["page"], row["visits"]) for row in rows_of(shop, "pages")] == [("/twice", 2)]
    # It follows on from there, and without the store as well.
    shop.rebuild_store()
    send(kafka, topic, [visit(5)])
    ok(shop.run(["raw", "clean"], at="2026-01-03"))
    ok(shop.run(["daily"], at="2026-01-03", again=True))
    ok(shop.run(["pages"], at="2026-01-03"))
    assert {(row["page"], row["visits"]) for row in rows_of(shop, "pages")} == {("/", 2), ("/twice", 2)}


ADDED = """
    @visits.dataset(mode="stream", event_time="at")
    def paged(raw):
        return raw
"""


def test_a_rewind_is_refused_where_what_it_takes_back_was_added_elsewhere_or_was_never_read(project, kafka):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(2)])
    shop = project(visits_project(kafka, topic, ADDED))
    ok(shop.run(at="2026-01-03"))
    before = standing(shop)

    for asked in ({}, {"to": "2026-01-01"}):
        with pytest.raises(ConfigurationError, match="paged adds the rows of raw as a stream and could not") as refused:
            shop.rewind("raw", **asked)
        assert "`lakewright stream rewind paged --all`" in refused.value.hint
        assert standing(shop) == before
    with damaged(Path(shop.lake.checkpoint("paged", 1)) / "metadata"), pytest.raises(ConfigurationError, match="paged"):
        shop.rewind("raw")
    with pytest.raises(ConfigurationError, match="paged follows another dataset, whose rows do not tell when"):
        shop.rewind("paged", to="2026-01-01")

    # Somebody deletes a row that the stream below has added: it says so, and how to go on.
    shop.lake.session().sql(f"DELETE FROM delta.`{shop.lake.resolve('raw')}` WHERE id = 'v1'")
    failed = shop.run(["paged"], at="2026-01-03").errors[0]
    assert isinstance(failed, InputError)
    assert "paged adds the rows of its input, of which some were deleted or changed" in failed.message
    assert "`lakewright stream rewind paged --all`" in failed.hint
    shop.rewind("paged")
    ok(shop.run(["paged"], at="2026-01-03"))
    assert ids(shop, "paged") == ["v2"]

    shop = project(visits_project(kafka, topic))
    with pytest.raises(ConfigurationError, match=r"raw has read nothing since 2100-01-01 00:00:00 UTC"):
        shop.rewind("raw", to="2100-01-01")
