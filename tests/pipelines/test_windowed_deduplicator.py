"""Windowed Deduplicator in pipelines: across slices in batch, and across micro-batches on a stream."""

from __future__ import annotations

import pytest

from lakewright import KafkaTopic, LateDataDetector, Merger, Pipeline, WindowedDeduplicator
from lakewright.errors import DefinitionError
from lakewright.failpoints import arm
from lakewright.pipelines.earlier import earlier_rows
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.guard_checks import watermark_warnings
from lakewright.testing.connect import engine_of
from tests.pipelines.shop import land, made, ok, order, orders_project, rows_of
from tests.pipelines.streaming import send, visit, visits_project

ACROSS = """
    rows="preserve",
    guards_in={"orders": [WindowedDeduplicator(keys=["order_id"], window="2 days", dropped="keep")]},
"""
WHOLE_ROWS = """
    rows="preserve",
    guards_in={"orders": [WindowedDeduplicator(keys="all", window="2 days")]},
"""
BEST = """
    @shop.dataset(event_time="at", rows="preserve", guards_in={"orders": [
        WindowedDeduplicator(keys=["order_id"], order_by=["amount"], keep="last", nulls="set aside")]})
    def best(orders):
        '''The dearest of each order of a day.'''
        return orders
"""


def ids(shop, name="clean"):
    return sorted((row["order_id"] or "", str(row["at"])[8:10]) for row in rows_of(shop, name, "order_id", "at"))


@pytest.fixture
def looked_back(monkeypatch):
    """By slice the days before it of which a file is read, to know the keys that were there already."""
    found: dict[str, set[str]] = {}

    def look_back(attempt, reach):
        rows = earlier_rows(attempt, reach)
        files = [] if rows is None else rows.inputFiles()
        found[attempt.slice.id] = {file.split("_lw_event=")[1].split("/")[0] for file in files}
        return rows

    monkeypatch.setattr("lakewright.pipelines.inputs.earlier_rows", look_back)
    return found


@pytest.mark.shows("03.windowed-deduplicator", 2, 7)
def test_a_key_of_an_earlier_slice_within_the_window_is_not_loaded_again(project, looked_back):
    shop = project({name: text + BEST for name, text in orders_project(ACROSS).items()})
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 3), order("a", "2026-01-01T11:00:00Z", 2),
                                  order("a", "2026-01-01T12:00:00Z", 4), order(None, "2026-01-01T12:00:00Z", 9),
                                  order("a", "2026-01-02T10:00:00Z"), order("b", "2026-01-02T10:00:00Z"),
                                  order("a", "2026-01-04T01:00:00Z")])  # fmt: skip
    ok(shop.run(["+clean", "+best"], at="2026-01-05"))
    # On the 4th the slice of the 1st lies before the window, and that of the 2nd holds no `a`.
    expected = [("", "01"), ("a", "01"), ("a", "04"), ("b", "02")]
    assert ids(shop) == expected
    assert looked_back == {"2026-01-01": set(), "2026-01-02": {"2026-01-01"}, "2026-01-04": {"2026-01-02"}}
    repeats = shop.lake.read("_lakewright/repeats", system_columns=True)
    assert sorted((row["slice"], row["rule"], row["dataset"]) for row in repeats.collect()) == [
        *[("2026-01-01", "repeat", "clean")] * 2, ("2026-01-02", "repeat", "clean"),
    ]  # fmt: skip
    counted = [shop.store.receipts.live("clean", f"2026-01-0{day}").counters for day in (1, 2, 4)]
    assert [(c.read, c.duplicates, c.written) for c in counted] == [(4, 2, 2), (2, 1, 1), (1, 0, 1)]
    # By its order the last one is the best; a row without a key is no repeat of anything, and here it is set aside.
    kept = sorted((row["order_id"], row["amount"]) for row in rows_of(shop, "best"))
    assert kept == [("a", 1), ("a", 1), ("a", 4), ("b", 1)]
    best = shop.store.receipts.live("best", "2026-01-01").counters
    assert (best.read, best.rejected, best.duplicates, best.written) == (4, {"no key": 1}, 2, 1)
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True).collect()
    assert [(row["dataset"], row["rule"], row["slice"]) for row in letters] == [("best", "no key", "2026-01-01")]
    # A slice that is made again does not meet its own rows, and those after it follow: a late row of the 2nd leaves
    # what is there, and drops what a later slice held.
    land(shop.folder, "late.json", [order("c", "2026-01-02T12:00:00Z"), order("a", "2026-01-02T13:00:00Z")])
    looked_back.clear()
    again = ok(shop.run(["+clean"], at="2026-01-05"))
    assert looked_back == {"2026-01-02": {"2026-01-01"}, "2026-01-04": {"2026-01-02"}}
    assert {slice_id for name, slice_id in made(again) if name == "clean"} == {"2026-01-02", "2026-01-04"}
    assert ids(shop) == [*expected, ("c", "02")]


def test_rows_that_are_the_same_in_every_column_are_repeats_across_slices_too(project):
    shop = project(orders_project(WHOLE_ROWS))
    at = "2026-01-01T10:00:00Z"
    land(shop.folder, "d1.json", [order("a", at, 1), order("a", at, 1), order("a", at, 2), order("a", at, None),
                                  order("a", at, None), order(None, at, None)])  # fmt: skip
    land(shop.folder, "d2.json", [order(None, at, None), order("a", "2026-01-02T10:00:00Z", None)])
    ok(shop.run(["+clean"], at="2026-01-05"))
    first = [("a", "01"), ("a", "01"), ("a", "01"), ("a", "02"), ("", "01")]
    assert ids(shop) == sorted(first)
    counted = [shop.store.receipts.live("clean", f"2026-01-0{day}").counters for day in (1, 2)]
    assert [(c.read, c.duplicates, c.written) for c in counted] == [(7, 3, 4), (1, 0, 1)]
    ok(shop.run(["clean"], at="2026-01-05", again=True))
    assert ids(shop) == sorted(first)


ONCE = """
    from lakewright import WindowedDeduplicator

    @visits.dataset(mode="stream", event_time="at", guards_in={"raw": [
        DeadLetter(rules={"has_page": "page IS NOT NULL"}), WindowedDeduplicator(keys=["id"], window="10 minutes")]})
    def once(raw):
        '''Each visit once.'''
        return raw
"""


@pytest.fixture
def failing():
    """``failing("batch_done")``: the next time this place is reached, the work fails there."""

    def at(name: str) -> None:
        arm({"LAKEWRIGHT_FAILPOINT": name, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})

    yield at
    arm({})


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
@pytest.mark.shows("03.windowed-deduplicator", 3, 4, 5)
def test_a_stream_knows_its_keys_after_a_kill_and_a_repeated_micro_batch_adds_nothing(project, kafka, failing):
    topic = kafka.topic()
    # The bad copy of v2 is set aside, and is not what the good one is a repeat of.
    send(kafka, topic, [visit(1), visit(2, page=None), visit(2), {**visit(9), "id": None}, {**visit(9), "id": None}])
    shop = project(visits_project(kafka, topic, ONCE))
    ok(shop.run(["raw"], at="2026-01-03"))
    failing("batch_done")  # after the commit, before Spark notes that the micro-batch is done
    assert shop.run(["once"], at="2026-01-03").state == "failed"

    send(kafka, topic, [visit(1, at="2026-01-01T10:05:00Z"), visit(3, at="2026-01-01T10:30:00Z")])
    ok(shop.run(["raw", "once"], at="2026-01-03"))
    # What it knows outlives a change of the step and of its rules.
    changed = ONCE.replace("page IS NOT NULL", "length(page) > 0").replace("return raw", "return raw.where('true')")
    shop = project(visits_project(kafka, topic, changed))
    send(kafka, topic, [visit(3, at="2026-01-01T10:31:00Z"), visit(1, at="2026-01-01T10:07:00Z")])
    ok(shop.run(["raw", "once"], at="2026-01-03"))

    assert sorted(row["id"] or "" for row in rows_of(shop, "once", "id")) == ["", "", "v1", "v2", "v3"]
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True).where("dataset = 'once'").collect()
    assert [(row["rule"], row["offset"]) for row in letters] == [("has_page", 1)]
    counted = [one.counters for one in shop.store.receipts.history("once") if one.kind == "data"]
    assert sum(one.duplicates or 0 for one in counted) == 2
    assert sum(one.rejected.get("behind the watermark", 0) for one in counted) == 1
    (state,) = shop.streams(["once"])
    assert state.progress.duplicates == 2
    assert state.progress.behind_watermark == 1
    assert state.progress.state_rows is not None

    # Keys of the same type would be taken for those that are known: Spark compares types alone.
    shop = project(visits_project(kafka, topic, changed.replace('keys=["id"]', 'keys=["page"]')))
    send(kafka, topic, [visit(4)])
    (error,) = shop.run(["raw", "once"], at="2026-01-03").errors
    assert "kept by other columns: StreamingDeduplicateWithinWatermark [id]" in error.message
    assert "lakewright stream rewind once --all" in str(error.hint)


EACH_TIME = """
    from lakewright import WindowedDeduplicator

    @visits.dataset(mode="stream", event_time="at", guards_in={"raw": [WindowedDeduplicator(
        keys=["id"], window="10 minutes", time_in_key=True, nulls="set aside")]})
    def once(raw):
        '''Each visit of a moment once.'''
        return raw
"""


def each_time(shop):
    return sorted((row["id"], f"{row['at']:%H:%M}") for row in rows_of(shop, "once", "id", "at"))


@pytest.mark.shows("03.windowed-deduplicator", 8)
def test_a_stream_sets_rows_without_a_key_aside_and_every_row_is_accounted_for(project, kafka, failing, request):
    topic = kafka.topic()
    nobody = {**visit(9), "id": None}
    send(kafka, topic, [visit(1), nobody, visit(1), nobody, visit(1, at="2026-01-01T10:05:00Z")])
    shop = project(visits_project(kafka, topic, EACH_TIME))
    ok(shop.run(["raw"], at="2026-01-03"))
    if engine_of(request.config) == "classic":  # over Connect a micro-batch runs on the server, out of reach
        failing("set_aside")  # the rows without a key are told, the others not written: all of it is done again
        assert shop.run(["once"], at="2026-01-03").state == "failed"
    ok(shop.run(["once"], at="2026-01-03"))
    # Another time is another row, the same time is a repeat, and without a key a row is neither.
    assert each_time(shop) == [("v1", "10:00"), ("v1", "10:05")]

    send(kafka, topic, [nobody, visit(1, at="2026-01-01T10:05:00Z"), visit(2, at="2026-01-01T10:06:00Z")])
    ok(shop.run(["raw", "once"], at="2026-01-03"))
    assert each_time(shop) == [("v1", "10:00"), ("v1", "10:05"), ("v2", "10:06")]
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True).where("dataset = 'once'").collect()
    assert sorted((row["rules"], row["offset"]) for row in letters) == [(["no key"], n) for n in (1, 3, 5)]
    assert all('"page":"/"' in row["record"] for row in letters)
    counted = [one.counters for one in shop.store.receipts.history("once") if one.kind == "data"]
    # in = written + set aside + repeats
    written, aside = sum(c.written for c in counted), sum(c.rejected.get("no key", 0) for c in counted)
    assert (written, aside, sum(c.duplicates for c in counted)) == (3, 3, 2)
    assert sum(c.rejected_rows for c in counted) == 3


BEHIND_OTHERS = """
    from lakewright import FilterInterceptor, KeyedIdempotency, WindowedDeduplicator

    GUARDS = [FilterInterceptor(filters={"of_the_blog": "page LIKE '/%'"}), KeyedIdempotency(["id"], into="key"),
              WindowedDeduplicator(keys=["key"], window="10 minutes")]

    @visits.dataset(mode="stream", event_time="at", guards_in={"raw": GUARDS})
    def once(raw):
        return raw

    @visits.dataset(event_time="at", guards_in={"raw": GUARDS}, rows="preserve")
    def once_a_day(raw):
        return raw
"""


def test_a_stream_is_judged_by_the_guards_before_the_deduplicator_as_a_batch_is(project, kafka):
    topic = kafka.topic()
    nobody = {**visit(9), "id": None}
    # What a filter removes, or has no key, is not what the good copy after it repeats. An unknown page is removed too.
    send(kafka, topic, [visit(1, page="x"), visit(1), visit(1), visit(2, page=None), nobody, visit(2), nobody])
    shop = project(visits_project(kafka, topic, BEHIND_OTHERS))
    ok(shop.run(["raw", "once", "once_a_day"], at="2026-01-03"))
    found = [sorted((row["id"], row["page"]) for row in rows_of(shop, name)) for name in ("once", "once_a_day")]
    assert found == [[("v1", "/"), ("v2", "/")]] * 2
    assert len({row["key"] for row in rows_of(shop, "once")} & {row["key"] for row in rows_of(shop, "once_a_day")}) == 2
    for name in ("once", "once_a_day"):
        counted = [one.counters for one in shop.store.receipts.history(name) if one.kind == "data"]
        assert sum(one.filtered.removed["of_the_blog"] for one in counted) == 2
        assert sum(sum(one.rejected.values()) for one in counted) == 2
        assert (sum(one.duplicates or 0 for one in counted), sum(one.written for one in counted)) == (1, 2)


WHOLE = """
    from lakewright import WindowedDeduplicator

    @visits.dataset(mode="stream", event_time="at",
                    guards_in={"raw": [WindowedDeduplicator(keys="all", window="10 minutes")]})
    def once(raw):
        '''Each visit once, whatever of it is missing.'''
        return raw
"""


def test_a_stream_keeps_one_of_the_rows_that_are_the_same_in_every_column(project, kafka):
    topic = kafka.topic()
    shop = project(visits_project(kafka, topic, WHOLE))
    # They differ in offset and arrival, which do not count; a missing page is the same as another missing page.
    send(kafka, topic, [visit(1, page=None), visit(1, page=None), visit(1), {**visit(1), "id": None}])
    ok(shop.run(["raw", "once"], at="2026-01-03"))
    send(kafka, topic, [visit(1, page=None), {**visit(1), "id": None}, visit(1, at="2026-01-01T10:01:00Z")])
    ok(shop.run(["raw", "once"], at="2026-01-03"))
    found = [(row["id"], row["page"], row["at"].minute) for row in rows_of(shop, "once")]
    assert sorted(found, key=str) == [("v1", "/", 0), ("v1", "/", 1), ("v1", None, 0), (None, "/", 0)]
    counted = [one.counters for one in shop.store.receipts.history("once") if one.kind == "data"]
    assert sum(c.duplicates for c in counted) == 3


def test_what_cannot_work_is_refused_when_the_project_is_loaded():
    dedup = WindowedDeduplicator(keys=["id"], window="1 hour")

    def graph(**options):
        visits = Pipeline("visits", start="2026-01-01")
        visits.source("raw", KafkaTopic("broker", "visits"), schema="id string, at timestamp", mode="stream",
                      event_time="at")  # fmt: skip
        visits.add(lambda raw: raw, name="once", **options)
        return Graph(visits.datasets)

    for options, words in (
        ({"guards_in": {"raw": [dedup]}}, "no slices of event time to look back over"),
        ({"guards_in": {"raw": [WindowedDeduplicator(keys=["id"])]}, "mode": "stream"}, "remembered for ever"),
        ({"guards_in": {"raw": [LateDataDetector("1 hour"), dedup]}, "mode": "stream"}, "before LateDataDetector"),
        ({"guards_in": {"raw": [dedup]}, "mode": "stream", "writer": Merger(keys=["id"])}, "follows the changes"),
        ({"guards_in": {"raw": [LateDataDetector("1 hour")]}, "event_time": "at"}, r"late=Capture\(\)"),
        ({"guards_in": {"raw": [LateDataDetector("1 hour")] * 2}, "mode": "stream"}, "it can have one"),
    ):
        with pytest.raises(DefinitionError, match=words):
            graph(**options)
    graph(guards_in={"raw": [dedup]}, mode="stream")


def test_rows_that_a_detector_above_lets_pass_are_not_dropped_in_silence():
    def graph(**options):
        visits = Pipeline("visits", start="2026-01-01")
        visits.source("raw", KafkaTopic("broker", "visits"), schema="id string, at timestamp, web string",
                      mode="stream", event_time="at")  # fmt: skip
        visits.add(lambda raw: raw, name="in_time", mode="stream", event_time="at",
                   guards_in={"raw": [LateDataDetector(**options)]})  # fmt: skip
        visits.add(lambda in_time: in_time, name="same", mode="stream", event_time="at")
        visits.add(lambda same: same, name="once", mode="stream",
                   guards_in={"same": [WindowedDeduplicator(keys=["id"], window="10 minutes")]})  # fmt: skip
        return Graph(visits.datasets)

    for lateness in ("30 minutes", "10 minutes"):
        with pytest.raises(DefinitionError, match=r"once: WindowedDeduplicator drops .* and in_time lets pass") as told:
            graph(lateness=lateness, across="max")
        assert 'a lateness shorter than "10 minutes"' in str(told.value.hint)
    graph(lateness="30 minutes", across="max", event_time="web")  # another time of the rows
    short = {"lateness": "9 minutes", "across": "max"}
    assert watermark_warnings(graph(**short)) == ()
    (told,) = watermark_warnings(graph(**{**short, "across": "min"}))
    assert told.startswith("once: its state follows the newest event time of all rows, and in_time waits")
    (told,) = watermark_warnings(graph(**short, source="web"))
    assert told.endswith('With over_sources="max" the LateDataDetector of in_time captures it.')
