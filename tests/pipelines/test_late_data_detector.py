"""Late Data Detector as a guard: on a stream, and on a step that follows arrivals."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from lakewright.failpoints import arm
from lakewright.model.identity import Identity
from lakewright.model.protocols import GuardContext
from lakewright.model.receipts import Counters, Filtered
from lakewright.model.runs import Run
from lakewright.model.slices import Slice
from lakewright.model.watermarks import Measured, Watermark
from lakewright.patterns.error_management.dead_letter import DeadLetter
from lakewright.patterns.error_management.filter_interceptor import FilterInterceptor
from lakewright.patterns.error_management.late_data_detector import LateDataDetector
from lakewright.pipelines.accounts import accounts_of
from lakewright.pipelines.definitions import Input
from lakewright.pipelines.lateness import judged_by_watermark, with_lateness
from tests.pipelines.shop import cut_before, land, ok, order, rows_of
from tests.pipelines.streaming import send, visit, visits_project

ON_TIME = """
    from lakewright import LateDataDetector

    @visits.dataset(mode="stream", event_time="at", guards_in={"raw": [
        LateDataDetector("30 minutes", across="max")]})
    def on_time(raw):
        '''Visits that came in time.'''
        return raw

    @visits.dataset(mode="stream", event_time="at", guards_in={"raw": [
        LateDataDetector("30 minutes", across="min", late="count")]})
    def slowest(raw):
        '''Visits that came in time by the clock of the slowest partition; the others are only counted.'''
        return raw
"""


def at(minute: int) -> str:
    return f"2026-01-01T{9 + minute // 60:02d}:{minute % 60:02d}:00Z"


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
@pytest.mark.shows("03.late-data-detector", 3, 5)
def test_late_records_of_a_stream_are_captured_and_a_repeated_micro_batch_is_judged_alike(project, kafka):
    topic = kafka.topic(partitions=2)
    shop = project(visits_project(kafka, topic, ON_TIME))
    send(kafka, topic, [visit(1, at(60)), visit(2, at(65)), visit(3, at(66))])
    ok(shop.run(["raw", "on_time"], at="2026-01-03"))
    send(kafka, topic, [visit(4, at(20)), visit(5, at(31)), visit(6, at(67))])
    send(kafka, topic, [visit(7, at(36))], partition=1)
    ok(shop.run(["raw"], at="2026-01-03"))
    for place in ("set_aside", "batch_done"):
        arm({"LAKEWRIGHT_FAILPOINT": place, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
        try:
            assert shop.run(["on_time"], at="2026-01-03").state == "failed"
        finally:
            arm({})
    ok(shop.run(["on_time"], at="2026-01-03"))

    assert sorted(row["id"] for row in rows_of(shop, "on_time", "id")) == ["v1", "v2", "v3", "v6", "v7"]
    late = shop.lake.read("_lakewright/late_rows", system_columns=True).orderBy("offset").collect()
    times = [(row["offset"], f"{row['event_time']:%H:%M}", f"{row['watermark']:%H:%M}") for row in late]
    assert times == [(3, "09:20", "09:36"), (4, "09:31", "09:36")]
    assert [row["late_by_seconds"] for row in late] == [960.0, 300.0]
    assert '"id":"v4"' in late[0]["record"]
    counted = [one.counters for one in shop.store.receipts.history("on_time") if one.kind == "data"]
    assert [(one.read, one.held, one.written) for one in counted] == [(4, 2, 2), (3, 0, 3)]
    assert counted[0].held_by_source == {topic: 2}
    assert all(account.balanced for account in accounts_of(shop.store, "on_time"))

    # A rewind takes the watermark back with the rows that moved it.
    shop.rewind("on_time")
    ok(shop.run(["on_time", "slowest"], at="2026-01-03"))
    assert sorted(row["id"] for row in rows_of(shop, "on_time", "id")) == [f"v{n}" for n in range(1, 8)]
    assert shop.lake.read("_lakewright/late_rows", system_columns=True).count() == 0

    # The first partition is at 10:07, the second at 09:36: the one watermark is 09:37, the other 09:06.
    send(kafka, topic, [visit(8, at(30)), visit(9, at(5))])
    send(kafka, topic, [visit(10, at(90))], partition=1)
    ok(shop.run(["raw", "on_time", "slowest"], at="2026-01-03"))
    late = shop.lake.read("_lakewright/late_rows", system_columns=True).orderBy("offset").collect()
    assert [(row["dataset"], f"{row['event_time']:%H:%M}") for row in late] == [
        ("on_time", "09:30"), ("on_time", "09:05"),
    ]  # fmt: skip
    taken = sorted(row["id"] for row in rows_of(shop, "slowest", "id"))
    assert taken == sorted(f"v{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 10))
    newest = shop.store.receipts.history("slowest")[0].counters
    assert (newest.read, newest.held, newest.written, newest.held_by_source) == (3, 1, 2, {topic: 1})
    assert all(account.balanced for account in accounts_of(shop.store, "slowest"))


class Measured10(LateDataDetector):
    """A detector that sees what guards before it have left of ten rows."""

    def measure(self, frame, ctx):
        return Measured(rows=10 - frame, seen={}, late={"": 1}, of={"": 10 - frame}, unusable=0, judged_at=None)


def test_rows_that_guards_before_the_detector_took_count_as_read():
    guards = (
        DeadLetter(rules={"has_id": "id IS NOT NULL"}),
        FilterInterceptor(filters={"paid": "amount > 0"}),
        Measured10("1 hour"),
        DeadLetter(rules={"known": "page LIKE '/%'"}),
        FilterInterceptor(filters={"big": "amount > 10"}),
    )
    store = SimpleNamespace(receipts=SimpleNamespace(live_slices=lambda name: {}))
    attempt = SimpleNamespace(
        told={}, slice=Slice.parse("arrival-1"), shop=SimpleNamespace(store=store),
        dataset=SimpleNamespace(name="clean", is_stream=False),
    )  # fmt: skip
    context = GuardContext(
        "clean", "raw", attempt.slice, Run("r", "p", datetime(2026, 1, 5, tzinfo=UTC)), streamed=True
    )
    judged_by_watermark(attempt, Input("raw", "raw", guards=guards), guards[2], 6, context)
    # Of the four that were left one is late, and behind the detector one breaks a rule and a filter removes another.
    filtered = Filtered(6, {"paid": 2, "big": 1})
    known = Counters(rejected={"has_id": 4, "known": 1}, written=1, filtered=filtered)
    counters = with_lateness(known, Identity("clean", "arrival-1", 1, "r", details=attempt.told))
    assert (counters.read, counters.held) == (10, 1)
    assert counters.read == counters.rejected_rows + counters.filtered_rows + counters.held + counters.written


def test_a_stream_whose_log_was_cleaned_of_its_micro_batches_goes_on_with_what_its_receipts_tell():
    hours = {"2026-01-01": 23, "arrival-7": 22, "arrival-1000000001": 9, "arrival-1000000002": 10,
             "arrival-1000000003": 11}  # fmt: skip
    left = {name: Watermark(datetime(2026, 1, 1, hour, tzinfo=UTC)).to_json() for name, hour in hours.items()}
    receipts = SimpleNamespace(
        live_slices=lambda name: {one: SimpleNamespace(version=place) for place, one in enumerate(left)},
        live=lambda name, slice_id: SimpleNamespace(counters=Counters(watermark=left[slice_id])),
    )
    cleaned = SimpleNamespace(delta_log=lambda name: SimpleNamespace(bounds=lambda: (None, None)))
    attempt = SimpleNamespace(
        told={}, slice=Slice.parse("arrival-1000000003"), dataset=SimpleNamespace(name="clean", is_stream=True),
        shop=SimpleNamespace(store=SimpleNamespace(receipts=receipts), lake=cleaned),
    )  # fmt: skip
    context = GuardContext(
        "clean", "raw", attempt.slice, Run("r", "p", datetime(2026, 1, 5, tzinfo=UTC)), streamed=True
    )
    judged_by_watermark(attempt, Input("raw", "raw", guards=()), Measured10("1 hour"), 6, context)
    assert attempt.told["lateness"]["before"] == "2026-01-01T10:00:00+00:00"


BY_SOURCE = """
    from lakewright import LateDataDetector

    def on_time(raw):
        return raw

    def judged(name, across, over_sources):
        by_levels = LateDataDetector("0 minutes", source="page", across=across, over_sources=over_sources,
                                     warn_above=0.7)
        visits.add(on_time, name=name, mode="stream", event_time="at", guards_in={"raw": [by_levels]})

    judged("slowest_of_all", "min", "min")
    judged("fastest_source", "min", "max")
    judged("slowest_source", "max", "min")
    judged("each_its_own", "max", "each")
"""


@pytest.mark.shows("03.late-data-detector", 4)
def test_several_sources_are_judged_by_the_levels_that_each_dataset_names(project, kafka):
    topic = kafka.topic(partitions=2)
    shop = project(visits_project(kafka, topic, BY_SOURCE))
    # The web is at 10:00 and 09:20, the app at 09:50 and 09:40: in order of the four, the watermarks are 09:20 (the
    # least of all), 09:40 (the faster of the slowest), 09:50 (the slower of the fastest), and 10:00 and 09:50.
    send(kafka, topic, [visit(1, at(60), "web"), visit(2, at(50), "app")])
    send(kafka, topic, [visit(3, at(20), "web"), visit(4, at(40), "app")], partition=1)
    ok(shop.run(at="2026-01-03"))
    send(kafka, topic, [visit(5, at(30), "web"), visit(6, at(45), "app"), visit(7, at(55), "web")])
    send(kafka, topic, [visit(8, at(15), "app"), visit(9, at(50), "app")], partition=1)
    ok(shop.run(at="2026-01-03"))
    late = shop.lake.read("_lakewright/late_rows", system_columns=True).collect()
    found: dict[str, list[tuple[str, str]]] = {}
    for row in late:
        found.setdefault(row["dataset"], []).append((f"{row['event_time']:%H:%M}", f"{row['watermark']:%H:%M}"))
    assert {name: sorted(rows) for name, rows in found.items()} == {
        "slowest_of_all": [("09:15", "09:20")],
        "fastest_source": [("09:15", "09:40"), ("09:30", "09:40")],
        "slowest_source": [("09:15", "09:50"), ("09:30", "09:50"), ("09:45", "09:50")],
        "each_its_own": [("09:15", "09:50"), ("09:30", "10:00"), ("09:45", "09:50"), ("09:55", "10:00")],
    }
    counted = shop.store.receipts.history("each_its_own")[0].counters
    assert counted.held_by_source == {"web": 2, "app": 2}
    assert counted.read_by_source == {"web": 2, "app": 3}
    # Four of five are late in all; people are told of the source that is late as a whole.
    (told,) = shop.store.findings.latest("each_its_own")
    assert (told.subject, told.severity) == ("late rows", "warning")
    assert told.message.startswith("2 of 2 rows (100.0%) of web in slice arrival-100000000")
    assert "more than 70.0%" in told.message
    assert "FROM late_rows WHERE dataset = 'each_its_own'" in str(told.cure)
    assert shop.store.findings.latest("slowest_of_all") == []
    for name, rows in found.items():
        assert len(rows_of(shop, name, "id")) == 9 - len(rows)
        assert all(account.balanced for account in accounts_of(shop.store, name))


SEEN = """
    from lakewright import JsonFiles, LateDataDetector, Merger, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, seen string",
                event_time="at")

    @shop.dataset(writer=Merger(keys=["order_id"]), guards_in={"orders": [
        LateDataDetector("30 minutes", event_time="seen", ahead="2 hours")]})
    def in_time(orders):
        return orders
"""

SEEN_AS_STREAM = """
    from lakewright import LateDataDetector

    @visits.dataset(mode="stream", event_time="at", guards_in={"raw": [
        LateDataDetector("30 minutes", event_time="page", ahead="2 hours")]})
    def in_time(raw):
        return raw
"""


def seen_times() -> tuple[list[str], list[str | None]]:
    """When things were seen, as texts: of a first batch, and of a second one with rows that tell no usable time."""
    now = datetime.now(UTC)

    def ago(**time: float) -> str:
        return f"{now - timedelta(**time):%Y-%m-%d %H:%M:%S}"

    # Three hours ahead is within the day that a source allows, and not within the two hours of the guard.
    return [ago(hours=5), ago(hours=4)], [ago(hours=6), ago(hours=4.2), None, "yesterday", ago(hours=-3), ago(hours=-1)]


def check_unusable(shop, name: str, kept: list[str]) -> None:
    """in = kept + dead + late, and the row that is too far ahead did not move the watermark."""
    newest = shop.store.receipts.history(name)[0]
    assert sorted(row[0] for row in rows_of(shop, name, "order_id" if name == "in_time" else "id")) == kept
    counters = newest.counters
    assert (counters.read, counters.held, counters.written) == (6, 1, 2)
    assert counters.rejected == {"no usable event time": 3}
    assert all(account.balanced for account in accounts_of(shop.store, name))
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True).collect()
    assert {(row["dataset"], row["rule"]) for row in letters} == {(name, "no usable event time")}
    assert len(letters) == 3
    assert sorted(str(seen_in(row["record"])) for row in letters)[1:] == ["None", "yesterday"]
    assert shop.lake.read("_lakewright/late_rows", system_columns=True).count() == 1
    told = Identity.from_json(shop.lake.log(name).commit(newest.version).metadata).details["lateness"]
    watermark = datetime.fromisoformat(told["after"]["at"])
    assert timedelta(minutes=20) < watermark - datetime.now(UTC) < timedelta(minutes=30)  # an hour ahead, less thirty


def seen_in(record: str) -> str | None:
    told = json.loads(record)
    return told.get("seen", told.get("page"))


@pytest.mark.shows("03.late-data-detector", 3, 7)
def test_the_guard_sets_rows_without_a_usable_time_aside_that_its_source_has_kept(project):
    shop = project({"pipelines/shop.py": SEEN})
    for number, times in enumerate(seen_times()):
        rows = [{"order_id": f"{number}{i}", "at": "2026-01-01T10:00:00Z", "seen": at} for i, at in enumerate(times)]
        land(shop.folder, f"{number}.json", rows)
        ok(shop.run(at="2026-01-02"))
    check_unusable(shop, "in_time", ["00", "01", "11", "15"])


@pytest.mark.shows("03.late-data-detector", 3, 7)
def test_the_guard_of_a_stream_sets_them_aside_by_the_time_of_the_micro_batch(project, kafka):
    topic = kafka.topic()
    shop = project(visits_project(kafka, topic, SEEN_AS_STREAM.replace("in_time(", "seen_in_time(")))
    for number, times in enumerate(seen_times()):
        send(kafka, topic, [visit(10 * number + i, page=at) for i, at in enumerate(times)])
        ok(shop.run(["raw", "seen_in_time"], at="2026-01-02"))
    check_unusable(shop, "seen_in_time", ["v0", "v1", "v11", "v15"])


ARRIVALS = """
    from lakewright import DeadLetter, JsonFiles, LateDataDetector, Merger, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(writer=Merger(keys=["order_id"]), guards_in={"orders": [
        DeadLetter(rules={"has_id": "order_id IS NOT NULL"}),
        LateDataDetector("1 hour", stop_above=0.6, warn_above=0.3)]})
    def known(orders):
        return orders
"""


@pytest.mark.shows("03.late-data-detector", 5)
def test_arrivals_are_judged_one_by_one_and_too_many_late_rows_stop_the_step(project):
    shop = project({"pipelines/shop.py": ARRIVALS})
    land(shop.folder, "a1.json", [order("a", "2026-01-01T10:00:00Z"), order(None, "2026-01-01T15:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    land(shop.folder, "a2.json", [order("b", "2026-01-01T09:00:00Z"), order("c", "2026-01-01T08:59:00Z"),
                                  order("f", "2026-01-01T12:00:00Z")])  # fmt: skip
    ok(shop.run(at="2026-01-02"))
    assert [row["order_id"] for row in rows_of(shop, "known", "order_id")] == ["a", "b", "f"]
    second = shop.store.receipts.live("known", "arrival-2").counters
    assert (second.read, second.held, second.written) == (3, 1, 2)
    assert second.read_by_source == {"": 3}
    (told,) = shop.store.findings.latest("known")
    assert told.message == "1 of 3 rows (33.3%) of the input in slice arrival-2 are late, more than 30.0%."

    # A repeat is judged by the watermark before it, not by its own (11:00), also when Delta has deleted all commits but
    # the last.
    land(shop.folder, "a3.json", [order("g", "2026-01-01T13:00:00Z")])
    cut_before(shop, "known", arrival=3)
    ok(shop.run(["known"], again=True, slices=["arrival-2"], at="2026-01-02"))
    again = shop.store.receipts.live("known", "arrival-2")
    assert again.version > shop.store.receipts.first("known", "arrival-3").version
    assert (again.counters.read, again.counters.held) == (3, 1)

    land(shop.folder, "a4.json", [order("d", "2026-01-01T07:00:00Z"), order("e", "2026-01-01T07:00:00Z")])
    stopped = shop.run(at="2026-01-02")
    assert stopped.exit_code == 3
    assert "2 of 2 rows (100.0%) are late" in str(stopped.errors[0])
    assert [row["order_id"] for row in rows_of(shop, "known", "order_id")] == ["a", "b", "f", "g"]
    assert shop.sql("SELECT * FROM late_rows").count() == 3

    # What the logs still hold of watermarks a rebuilt store holds, too, and people are told of the others.
    left = shop.store.receipts.live("known", "arrival-3").counters.watermark
    told = shop.rebuild_store().unknown
    assert shop.store.receipts.live("known", "arrival-3").counters.watermark == left
    assert left["at"] == "2026-01-01T12:00:00+00:00"
    assert any(text.startswith("known: the watermarks of its earlier batches") for text in told)
