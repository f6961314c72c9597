"""Sessions in pipelines: slices that carry open sessions on, late visits, kills; and streams."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql import functions as F

from lakewright import JsonFiles, Lookback, Merger, Pipeline, Sessions
from lakewright.errors import DefinitionError, InputError
from lakewright.patterns.data_value.incremental_sessionizer import build_sessions, keep_final_sessions
from lakewright.pipelines.session_chain import drop_unchanged
from lakewright.pipelines.streams.server_side import is_remote
from lakewright.store import open_store
from tests.pipelines.lab import LOOKED_AT, lab
from tests.pipelines.shop import land, made, ok, rows_of
from tests.pipelines.streaming import send, visits_project
from tests.processes import LAKEWRIGHT, killed

HOURS = """
    from lakewright import JsonFiles, Pipeline, Sessions

    blog = Pipeline("blog", schedule="@hourly", start="2026-01-01")
    blog.source("visits", JsonFiles("landing/visits"), schema="user string, at timestamp, page string", event_time="at")

    @blog.dataset(layer="gold", sessions=Sessions(keys=["user"], gap="2 hours", collect={"pages": "page"}))
    def sessions(visits):
        '''Who read what in one go.'''
        return visits
"""


def visit(user, at, page="/", day=1):
    return {"user": user, "at": None if at is None else f"2026-01-0{day}T{at}:00Z", "page": page}


def sessions_in(shop, *columns):
    """What a table of sessions holds, by the slice that completed it."""
    rows = shop.lake.read("sessions", system_columns=True).select("_lw_event", *columns).collect()
    return sorted(tuple(row) for row in rows)


def pending_in(shop, slice_id, *columns):
    rows = shop.lake.read("sessions_pending", system_columns=True).where(f"_lw_event = '{slice_id}'")
    return sorted(tuple(row) for row in rows.select(*columns).collect())


def day(hour):
    return f"2026-01-01T{hour:02d}"


def three_hours(shop):
    rows = [visit("u1", "09:50", "/"), visit(None, "09:55"), visit("u2", None), visit("u1", "11:30", "/b"),
            visit("u1", "10:40", "/a"), visit("u3", "11:00")]  # fmt: skip
    land(shop.folder, "a.json", rows, folder="visits")
    ok(shop.run(at="2026-01-01T12:00"))
    ok(shop.run(at="2026-01-01T15:00"))  # those of 13:00 and 14:00 did not happen


@pytest.mark.shows("05.incremental-sessionizer", 1, 3, 8)
def test_a_session_over_three_slices_is_completed_by_the_one_in_which_it_expires(prepared):
    shop = prepared("sessions of hours", {"pipelines/blog.py": HOURS}, three_hours)
    # Nothing has arrived for the last two hours: they are made because sessions run out in them.
    written = {hour: shop.store.receipts.live("sessions", day(hour)).rows for hour in range(9, 14)}
    assert written == {9: 0, 10: 0, 11: 0, 12: 0, 13: 2}
    assert sessions_in(shop, "user", "pages", "is_final") == [
        (day(13), "u1", ["/", "/a", "/b"], True), (day(13), "u3", ["/"], True)
    ]  # fmt: skip
    waiting = {hour: pending_in(shop, day(hour), "user", "events") for hour in range(9, 14)}
    assert waiting == {9: [("u1", 1)], 10: [("u1", 2)], 11: [("u1", 3), ("u3", 1)], 12: [("u1", 3), ("u3", 1)], 13: []}
    assert day(14) not in shop.store.receipts.live_slices("sessions"), "nothing is open any more"
    counters = shop.store.receipts.live("sessions", day(9)).counters
    assert (counters.read, counters.rejected) == (2, {"no user": 1})
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True).collect()
    assert sorted((row["dataset"], row["rule"]) for row in letters) == [
        ("sessions", "no user"), ("visits", "no usable event time")
    ]  # fmt: skip


@pytest.mark.shows("05.incremental-sessionizer", 4, 6, 7)
def test_a_late_visit_makes_its_slice_and_the_later_ones_again_also_after_a_failure(prepared, failing):
    shop = prepared("sessions of hours", {"pipelines/blog.py": HOURS}, three_hours)
    land(shop.folder, "late.json", [visit("u1", "11:10", "/late"), visit("u4", "11:20", "/")], folder="visits")
    failing("private_written")  # the pending sessions of 11:00 are there, the completed ones are not
    assert shop.run(at="2026-01-01T15:00").state == "failed"
    again = ok(shop.run(at="2026-01-01T15:00"))
    assert {one for name, one in made(again) if name == "sessions"} == {day(hour) for hour in range(11, 14)}
    visits = shop.lake.read("visits").where("user IS NOT NULL AND at IS NOT NULL")
    declared = replace(shop.graph["sessions"].sessions, time="at")
    anew = build_sessions(visits, sessions=declared, until="2026-01-01T14:00")
    columns = ("session_id", "user", "start_time", "end_time", "events", "pages", "truncated", "is_final")
    assert rows_of(shop, "sessions", *columns) == sorted(anew.completed.select(*columns).collect(), key=str)
    assert sessions_in(shop, "user", "pages") == [
        (day(13), "u1", ["/", "/a", "/late", "/b"]), (day(13), "u3", ["/"]), (day(13), "u4", ["/"])
    ]  # fmt: skip
    assert pending_in(shop, day(13), "user") == []
    assert not [state for state in shop.plan(["sessions"], at="2026-01-01T15:00")["sessions"].states if state.make]


DAYS = """
    from lakewright import JsonFiles, Pipeline, Sessions

    blog = Pipeline("blog", start="2026-01-01")
    blog.source("visits", JsonFiles("landing/visits"), schema="user string, at timestamp, page string", event_time="at")

    @blog.dataset(layer="gold", sessions=Sessions(keys=["user"], gap="30 minutes", time="seen", partial=True,
                  collect={"pages": "page"}, ends="page = '/bye'"))
    def sessions(visits):
        '''Who read what in one go; what still goes on is told too.'''
        return visits.withColumnRenamed("at", "seen")
"""


@pytest.mark.shows("05.incremental-sessionizer", 2, 5, 6)
def test_a_late_visit_joins_two_sessions_across_midnight_and_others_stay_as_they_are(project):
    shop = project({"pipelines/blog.py": DAYS})
    rows = [visit("u1", "23:40", "/"), visit("u1", "00:30", "/b", day=2), visit("u2", "23:50", "/x"),
            visit("u2", "00:10", "/bye", day=2), visit("u2", "00:15", "/", day=2), visit("u3", "10:00"),
            visit("u4", "23:55", day=3)]  # fmt: skip
    land(shop.folder, "a.json", rows, folder="visits")
    ok(shop.run(at="2026-01-04"))
    columns = ("user", "pages", "is_final")
    of_first = [
        ("2026-01-01", "u1", ["/"], False),
        ("2026-01-01", "u2", ["/x"], False),
        ("2026-01-01", "u3", ["/"], True),
    ]
    assert sessions_in(shop, *columns) == [
        *of_first,
        ("2026-01-02", "u1", ["/"], True), ("2026-01-02", "u1", ["/b"], True),
        ("2026-01-02", "u2", ["/"], True), ("2026-01-02", "u2", ["/x", "/bye"], True),
        ("2026-01-03", "u4", ["/"], False),
    ]  # fmt: skip
    others = F.col("user") != "u1"
    before = sorted(keep_final_sessions(shop.lake.read("sessions")).where(others).collect(), key=str)
    land(shop.folder, "late.json", [visit("u1", "00:05", "/late", day=2)], folder="visits")
    again = ok(shop.run(at="2026-01-04"))
    # The second day leaves nothing pending, as before: the third one stays as it is, and so does what lies between.
    assert {one for name, one in made(again) if name == "sessions"} == {"2026-01-02"}
    left = "sessions: 1 later slice stays as it is: 2026-01-02 leaves the same pending as before."
    assert left in [note.message for note in again.notes]
    assert shop.ready("sessions_pending", "2026-01-02").ready
    assert shop.plan(["sessions"], at="2026-01-04")["sessions"].to_make == ()
    assert sessions_in(shop, *columns) == [
        *of_first,
        ("2026-01-02", "u1", ["/", "/late", "/b"], True),
        ("2026-01-02", "u2", ["/"], True), ("2026-01-02", "u2", ["/x", "/bye"], True),
        ("2026-01-03", "u4", ["/"], False),
    ]  # fmt: skip
    final = keep_final_sessions(shop.lake.read("sessions"))
    assert sorted(final.where(others).collect(), key=str) == before
    # An ongoing row and the final one of the same session share its id.
    ids = [row["session_id"] for row in shop.lake.read("sessions").where(~others).collect()]
    assert len(ids) == 2
    assert len(set(ids)) == 1

    # Another declaration: what is pending does not tell what is asked for now.
    shop = project({"pipelines/blog.py": DAYS.replace("ends=", 'first={"entry": "page"}, ends=')})
    land(shop.folder, "b.json", [visit("u4", "00:05", day=4)], folder="visits")
    failed = shop.run(at="2026-01-05")
    assert isinstance(failed.errors[0], InputError)
    assert "the sessions that 2026-01-03 left pending, and they have no entry" in str(failed.errors[0])
    assert "backfill --outdated --select sessions" in str(failed.errors[0])


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def hourly(**options):
    blog = Pipeline("blog", schedule="@hourly", start="2026-01-01")
    blog.source("visits", JsonFiles("landing"), schema="user string, at timestamp", event_time="at")
    declared = {"sessions": Sessions(keys=["user"], gap="2 hours", **options.pop("rules", {})), **options}
    blog.add(lambda visits: visits, name="sessions", **declared)
    return blog


def test_slices_are_made_for_as_long_as_sessions_may_run_out_in_them(store):
    shop = lab(store, hourly())
    shop.arrive("visits", day(9))
    expected = {day(9): "missing", day(10): "waiting", day(11): "waiting"}
    assert shop.statuses("sessions", "2026-01-01T10:30") == expected | {day(9): "due"}
    assert shop.statuses("sessions", "2026-01-01T13:00") == {day(9): "missing", day(10): "due", day(11): "due"}
    shop.commit("sessions_pending", day(9), {day(9): 3})
    shop.commit("sessions", day(9), {day(9): 3}, visits=0)
    found = shop.states("sessions", "2026-01-01T11:00")
    assert {one: (state.status, state.make) for one, state in found.items()} == {
        day(10): ("due", True), day(11): ("waiting", False)
    }  # fmt: skip
    assert found[day(10)].reason == f"sessions of {day(9)} may run out in it"
    # Late visits make every later slice again, and those after it that may hold what they keep open.
    shop.commit("sessions_pending", day(10), {day(10): 3})
    shop.commit("sessions", day(10), {day(10): 3}, visits=0, sessions=0, sessions_pending=0)
    assert shop.statuses("sessions", "2026-01-01T13:00") == {day(11): "due"}
    shop.commit("sessions_pending", day(10), {day(10): -3})
    assert shop.statuses("sessions", "2026-01-01T13:00") == {}, "nothing is open any more"
    shop.arrive("visits", day(9))
    assert shop.statuses("sessions", "2026-01-01T13:00") == {day(9): "late", day(10): "stale", day(11): "due"}


def test_a_repair_goes_on_for_as_long_as_what_is_pending_changes(store):
    shop, noon = lab(store, hourly()), "2026-01-01T13:00"
    dataset, hours = shop.graph["sessions"], (9, 10, 11, 12)
    waiting = {day(13): "waiting", day(14): "waiting"}
    shop.arrive("visits", *map(day, hours))
    for place, hour in enumerate(hours):
        before = {"sessions": place - 1, "sessions_pending": place - 1} if place else {}
        shop.commit("sessions_pending", day(hour), {day(hour): 3})
        shop.commit("sessions", day(hour), {day(hour): 3}, visits=0, **before)
    assert shop.statuses("sessions", noon) == waiting
    shop.arrive("visits", day(9))
    late = shop.states("sessions", noon)
    assert [(late[day(hour)].status, late[day(hour)].if_changed) for hour in hours] == [
        ("late", False), ("stale", True), ("stale", True), ("stale", True)
    ]  # fmt: skip
    queue = [late[day(hour)] for hour in hours[1:]]
    # 9:00 leaves something else pending, so 10:00 is made; that one leaves the same, and nothing follows it.
    shop.commit("sessions_pending", day(9), {day(9): 1})
    shop.commit("sessions", day(9), {day(9): 1}, visits=1)
    assert drop_unchanged(store, dataset, queue) == queue
    shop.commit("sessions", day(10), {day(10): 1}, visits=1, sessions=4, sessions_pending=4)
    later = replace(queue[2], if_changed=False)
    assert drop_unchanged(store, dataset, queue[1:]) == []
    assert drop_unchanged(store, dataset, [queue[1], later]) == [later]
    assert shop.statuses("sessions", noon) == waiting
    # A chain that was cut short goes on where it was, whatever else is known of that slice.
    shop.commit("sessions_pending", day(10), {day(10): 1})
    shop.commit("sessions", day(10), {day(10): 1}, visits=1, sessions=5, sessions_pending=4)
    cut = shop.states("sessions", noon)
    assert cut[day(11)].reason == f"what {day(10)} leaves pending has changed since"
    assert (cut[day(11)].if_changed, cut[day(12)].if_changed) == (False, True)
    # After a rollback it stays as it is.
    undone = replace(shop.told[-1], slice_id="whole", kind="restore", version=99, number=99, touched={})
    store.receipts.add([undone])
    assert shop.statuses("sessions", noon) == waiting
    # An attempt replaced the pending sessions of a slice, and ended before it had replaced the completed ones.
    half = replace(shop.told[0], dataset="sessions_pending", slice_id=day(12), version=100, number=100)
    store.receipts.add([half])
    assert shop.statuses("sessions", noon) == waiting
    store.markers.withdraw("sessions_pending", day(12), run_id=None, now=LOOKED_AT)
    assert "ended between its pending and its completed sessions" in shop.states("sessions", noon)[day(12)].reason


def test_what_cannot_go_with_sessions_is_refused_when_the_project_is_loaded(store):
    for options, words in (
        ({"sessions": "30 minutes"}, "sessions is a declaration"),
        ({"event_time": "at"}, "tell their own times"),
        ({"rows": "preserve"}, "fewer sessions"),
        ({"writer": Merger(keys=["user"])}, "replaced as a whole"),
        ({"rules": {"expiry": "watermark"}}, "is for streams"),
        ({"mode": "stream", "writer": Merger(keys=["user"])}, "merged by its ids"),
        ({"mode": "stream"}, "is replaced or merged"),
    ):
        with pytest.raises(DefinitionError, match=words):
            lab(store, hourly(**options))
    blog = hourly()
    blog.add(
        lambda sessions: sessions, name="late_ones", event_time="end_time", inputs={"sessions": Lookback("1 hour")}
    )
    with pytest.raises(DefinitionError, match="a part of it cannot be told"):
        lab(store, blog)
    timeless = Pipeline("blog", start="2026-01-01")
    timeless.source("visits", JsonFiles("landing"), schema="user string")
    timeless.add(lambda visits: visits, name="sessions", sessions=Sessions(keys=["user"], gap="1 hour"))
    with pytest.raises(DefinitionError, match="nothing tells when a visit was"):
        lab(store, timeless)


STREAMS = """
    from lakewright import LateDataDetector, Sessions

    RULES = Sessions(keys=["id"], gap="20 minutes", collect={"pages": "page"}, partial=True, lateness="10 minutes")
    PAGES = DeadLetter(rules={"has_page": "page IS NOT NULL"})

    @visits.dataset(mode="stream", event_time="at", guards_in={"raw": [LateDataDetector("10 minutes", across="max")]})
    def on_time(raw):
        '''Visits that came in time.'''
        return raw

    @visits.dataset(mode="stream", sessions=RULES, guards_in={"on_time": [PAGES]})
    def live(on_time):
        '''Sessions within seconds.'''
        return on_time

    @visits.dataset(sessions=RULES, guards_in={"on_time": [PAGES]})
    def daily(on_time):
        '''The same sessions, a day at a time.'''
        return on_time
"""


def event(user, at, page="/"):
    return {"id": user, "at": f"2026-01-01T{at}:00Z", "page": page}


# `make chaos` kills the command with its JVM; here the same place fails.
@pytest.mark.parametrize("end", ["failed", pytest.param("killed", marks=pytest.mark.chaos)])
@pytest.mark.shows("05.stateful-sessionizer", 4, 5, 6, 7, 8)
def test_a_stream_gives_the_sessions_that_slices_give_also_after_a_kill(project, spark, kafka, failing, end):
    topic = kafka.topic()
    shop = project(visits_project(kafka, topic, STREAMS))
    send(kafka, topic, [event("u1", "10:00"), event("u2", "10:02"), event("u1", "10:19", "/b"), event(None, "10:03"),
                        event("u3", "10:04", None), "no json"])  # fmt: skip
    ok(shop.run(["raw", "on_time"], at="2026-01-03"))
    if end == "killed":
        words = (*LAKEWRIGHT, "run", "--at", "2026-01-03", "--select", "live")
        killed(shop.folder, *words, failpoint="batch_done:2")
    elif not is_remote(spark.range(1)):  # over Connect a micro-batch runs on the server, where nothing is armed
        failing("batch_done:2")  # after a commit, before Spark notes that the micro-batch is done
        assert shop.run(["live"], at="2026-01-03").state == "failed"
    ok(shop.run(["live"], at="2026-01-03"))
    # What the watermark (10:09) has passed is told of sessions that go on.
    ongoing = rows_of(shop, "live", "session_id", "id", "pages", "is_final")
    assert sorted(tuple(row)[1:] for row in ongoing) == [("u1", ["/"], False), ("u2", ["/"], False)]

    late = [event("u1", "10:12", "/a"), event("u2", "09:30", "/late"), event("u1", "10:40", "/c"), event("u9", "11:30")]
    send(kafka, topic, late)
    ok(shop.run(["raw", "on_time", "live", "daily"], at="2026-01-03"))
    final = keep_final_sessions(shop.lake.read("live"))
    told = sorted((row["id"], row["pages"], row["duration_seconds"]) for row in final.collect())
    assert told == [("u1", ["/", "/a", "/b"], 1140.0), ("u1", ["/c"], 0.0), ("u2", ["/"], 0.0)]
    assert {row["session_id"] for row in ongoing} <= {row["session_id"] for row in final.collect()}
    # A stream knows only that time has passed where a later visit came; a day is over by itself.
    daily = keep_final_sessions(shop.lake.read("daily")).where("id != 'u9'").select(*final.columns)
    assert sorted(final.collect(), key=str) == sorted(daily.collect(), key=str)
    late_rows = shop.lake.read("_lakewright/late_rows", system_columns=True).collect()
    assert [(row["dataset"], f"{row['event_time']:%H:%M}") for row in late_rows] == [("on_time", "09:30")]
    assert sum(one.counters.held or 0 for one in shop.store.receipts.history("on_time")) == 1
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True).where("dataset IN ('live', 'raw')")
    assert sorted((row["dataset"], row["rule"]) for row in letters.collect()) == [
        ("live", "has_page"), ("live", "no id"), ("raw", "unreadable record"),
    ]  # fmt: skip
    counted = [one.counters.rejected for one in shop.store.receipts.history("live") if one.kind == "data"]
    assert sum(sum(one.values()) for one in counted) == 2
    (state,) = shop.streams(["live"])
    assert state.progress.state_rows is not None

    # From the beginning once more: the same sessions, and none of those of before.
    before = sorted(final.collect(), key=str)
    shop.rewind("live")
    ok(shop.run(["live"], at="2026-01-03"))
    assert sorted(keep_final_sessions(shop.lake.read("live")).collect(), key=str) == before
