"""Streaming datasets within runs: each record once, every row accounted for, whatever is killed in between."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from lakewright import KafkaTopic, Merger, Pipeline, Scd2
from lakewright.errors import ConfigurationError, LeaseHeldError, LimitExceeded
from lakewright.failpoints import FailpointReached, arm
from lakewright.model.identity import Identity
from lakewright.model.receipts import Counters, Receipt
from lakewright.pipelines.accounts import accounts_of
from lakewright.pipelines.streams.now import total_of
from lakewright.pipelines.streams.row_wise import mark_followed, what_needs_other_rows
from tests.pipelines.shop import made, ok, rows_of
from tests.pipelines.streaming import send, until, visit, visits_project


def ids(project, name="raw"):
    return sorted(row["id"] or "" for row in rows_of(project, name, "id"))


@pytest.mark.shows("03.dead-letter", 1)
def test_a_run_reads_what_is_there_and_tells_bad_records_with_their_place(project, kafka, monkeypatch):
    topic = kafka.topic(partitions=2)
    send(kafka, topic, [visit(1), "{broken", visit(2, at="yesterday")])
    send(kafka, topic, [None, visit(3), {"id": "v8"}], partition=1)
    shop = project(visits_project(kafka, topic))

    first = ok(shop.run(at="2026-01-03"))

    assert ids(shop) == ["v1", "v3"]
    assert ids(shop, "clean") == ["v1", "v3"]
    assert ("clean", "2026-01-01") in made(first)
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True).collect()
    # Each kind by its own name, with what there is of it: its text where it cannot be read, its columns where it can.
    place = "partition", "offset", "rules", "raw", "record"
    assert sorted(tuple(row[name] for name in place) for row in letters) == [
        (0, 1, ["unreadable record"], "{broken", "{}"),
        (0, 2, ["unreadable record"], '{"id": "v2", "at": "yesterday", "page": "/"}', '{"id":"v2","page":"/"}'),
        (1, 0, ["record without a value"], "", "{}"),
        (1, 2, ["no usable event time"], None, '{"id":"v8"}'),
    ]
    for row in letters:
        assert (row["topic"], row["file"]) == (topic, f"{topic}/{row['partition']}")
        assert (row["dataset"], row["input"], row["rule"]) == ("raw", "raw", row["rules"][0])
        assert (row["run_id"], row["code"]) == (first.run_id, shop.codes["raw"])
        assert row["file_version"] == str(row["offset"])
        assert row["run_time"] is not None
    # in = valid + dead
    receipts = [r for r in shop.store.receipts.history("raw") if r.kind == "data"]
    assert sum(r.counters.read for r in receipts) == 6
    assert sum(r.counters.rejected_rows for r in receipts) == 4

    second = ok(shop.run(at="2026-01-03"))
    assert not second.made

    # A late one is repaired the next day, and only its slice; a broker that is away for a moment is asked again.
    send(kafka, topic, [visit(4, at="2026-01-02T09:00:00Z"), visit(5)])
    behind, away = KafkaTopic.behind, [ConnectionError("the broker has failed over")]

    def looking(*given):
        if away:
            raise away.pop()
        return behind(*given)

    monkeypatch.setattr(KafkaTopic, "behind", looking)
    monkeypatch.setattr("lakewright.pipelines.runner.random.Random.random", lambda self: -0.5)
    third = ok(shop.run(at="2026-01-04"))
    assert "raw: the broker has failed over Trying again in 0.0 s." in [note.message for note in third.notes]
    assert {(name, slice_id) for name, slice_id in made(third) if name == "clean"} == {
        ("clean", "2026-01-01"),
        ("clean", "2026-01-02"),
    }
    assert ids(shop, "clean") == ["v1", "v3", "v4", "v5"]


def test_the_report_of_a_run_adds_up_its_micro_batches():
    def receipt(version, read, written, **rejected):
        counters = Counters(read=read, written=written, rejected=rejected)
        return Receipt("raw", f"arrival-{version}", "data", version, None, 1, datetime.now(UTC), rows=written,
                       counters=counters)  # fmt: skip

    told = total_of([receipt(1, 5, 5, broken=2), receipt(2, 3, 3, broken=1, late=1)])
    assert (told.slice_id, told.rows, told.counters.read) == ("whole", 8, 8)
    assert told.counters.rejected == {"broken": 3, "late": 1}
    assert total_of([receipt(1, None, 5), receipt(2, 3, 3)]).counters.read is None


def test_a_stream_cannot_promise_to_preserve_rows_or_keep_a_history():
    visits = Pipeline("visits", start="2026-01-01")
    versions = Merger(keys=["user_id"], history=Scd2(valid_from="at"))
    with pytest.raises(ConfigurationError, match="nothing tells the order of its changes"):
        visits.add(lambda raw: raw, name="users", mode="stream", writer=versions)
    with pytest.raises(ConfigurationError, match=r'test_streams\.py.*rows="preserve" cannot be checked on a stream'):

        @visits.dataset(mode="stream", event_time="at", rows="preserve")
        def paged(raw):
            return raw


def test_a_step_is_row_wise_when_each_of_its_rows_comes_from_one_that_it_follows(spark):
    followed = mark_followed(spark.createDataFrame([], "page string, visits int"))
    other = spark.createDataFrame([("/", 1)], "page string, owner int")
    owners = other.groupBy("page").agg(F.max("owner").alias("owner"))
    newest_first = Window.partitionBy("page").orderBy("visits")

    for frame in (
        followed.where("visits > 1").union(followed.withColumn("visits", F.lit(0))),
        followed.join(owners, "page", "left").join(other.limit(1), "owner", "left_anti").orderBy("page"),
        owners.join(followed, "page", "right").select(F.explode(F.sequence(F.lit(1), "visits"))),
    ):
        assert what_needs_other_rows(frame) is None
    for frame, word in (
        (followed.groupBy("page").count(), "Aggregate"),
        (followed.withColumn("rank", F.row_number().over(newest_first)), "Window"),
        (followed.distinct(), "Distinct|Deduplicate"),
        (followed.dropDuplicates(["page"]), "Deduplicate"),
        (followed.orderBy("visits").limit(3), "GlobalLimit"),
        (followed.exceptAll(other), "Except"),
        (other.intersect(followed), "Intersect"),
        (followed.sample(0.5, seed=1), "Sample"),
        (followed.join(followed.groupBy("page").count(), "page"), "Aggregate|themselves"),
        (followed.alias("a").join(followed.alias("b"), "page"), "themselves"),
        (owners.join(followed, "page", "left"), "Join LeftOuter"),
        (owners.join(followed, "page", "full"), "Join FullOuter"),
    ):
        assert re.search(word, what_needs_other_rows(frame) or ""), word


@pytest.fixture
def failing():
    """``failing("batch_done")``: the next time this place is reached, the work fails there."""

    def at(name: str) -> None:
        arm({"LAKEWRIGHT_FAILPOINT": name, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})

    yield at
    arm({})


GUARDED = """
    @visits.dataset(mode="stream", event_time="seen",
                    guards_in={"raw": [DeadLetter(rules={"has_page": "page > ''"}, stop_above=0.6, warn_above_rows=0)]})
    def paged(raw):
        '''Visits of a page; nobody knows when the lost ones were seen.'''
        return raw.selectExpr("id", "page", "CASE WHEN page <> '/lost' THEN at END AS seen")

    @visits.dataset(mode="stream", writer=Merger(keys=["page"]))
    def pages(daily):
        '''What is known of a page on the last day that it was seen, kept up with the table that it comes from.'''
        return daily.select("page", "visits")

    visits.sql("daily", "SELECT page, count(*) AS visits FROM clean WHERE page IS NOT NULL GROUP BY 1",
               inputs={"clean": Whole()}, layer="silver")
"""


FOLLOWING = """
    @visits.dataset(mode="stream", writer=Merger(keys=["visits"]))
    def popular(daily):
        return daily.groupBy("visits").count()

    @visits.dataset(mode="stream", writer=Merger(keys=["id"]), inputs={"daily": Whole()})
    def seen(clean, daily):
        # what is done with another input is free
        return clean.select("id", "page").join(daily.groupBy("page").sum("visits").toDF("page", "visits"), "page")
"""


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
def test_a_batch_that_failed_after_its_commit_is_not_added_twice_and_streams_follow_streams(project, kafka, failing):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(2, page=None), visit(3, page="/b"), visit(4, page="/lost")])
    shop = project(visits_project(kafka, topic, GUARDED))

    for place in ("batch_done", "before_receipt"):
        failing(place)
        assert shop.run(["raw"], at="2026-01-03").state == "failed"
    ok(shop.run(at="2026-01-03"))

    assert ids(shop) == ["v1", "v2", "v3", "v4"]
    assert ids(shop, "paged") == ["v1", "v3"]
    # What the guards set aside stays when the rows without a time are told under the same micro-batch.
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True).where("dataset = 'paged'").collect()
    assert {(row["rule"], row["input"], row["offset"]) for row in letters} == {
        ("has_page", "raw", 1), ("no usable event time", "paged", None),
    }  # fmt: skip
    counters = shop.store.receipts.history("paged")[0].counters
    assert (counters.read, counters.written) == (None, 3)
    assert counters.rejected == {"has_page": 1, "no usable event time": 1}
    (told,) = shop.store.findings.latest("paged")
    assert (told.subject, told.message.partition(" (")[0]) == ("dead letters", "2 of 5 rows")
    assert {(row["page"], row["visits"]) for row in rows_of(shop, "pages")} == {("/", 1), ("/b", 1), ("/lost", 1)}

    # The table above `pages` loses a row and gains a visit: both reach the stream below it.
    shop.lake.session().sql(f"DELETE FROM delta.`{shop.lake.resolve('daily')}` WHERE page = '/b'")
    ok(shop.run(["pages"], at="2026-01-03"))
    assert sorted((row["page"], row["visits"]) for row in rows_of(shop, "pages")) == [("/", 1), ("/lost", 1)]
    send(kafka, topic, [visit(5), visit(6, page="/b")])
    ok(shop.run(["raw", "clean", "paged"], at="2026-01-03"))
    ok(shop.run(["daily"], at="2026-01-03", again=True))
    ok(shop.run(["pages"], at="2026-01-03"))
    pages = sorted((row["page"], row["visits"]) for row in rows_of(shop, "pages"))
    assert pages == sorted((row["page"], row["visits"]) for row in rows_of(shop, "daily"))
    assert pages == [("/", 2), ("/b", 2), ("/lost", 1)]

    # What would make wrong rows of changes alone is refused, and so is a table that tells no changes.
    shop = project(visits_project(kafka, topic, GUARDED + FOLLOWING))
    refused = shop.run(["popular"], at="2026-01-03").errors[0]
    assert isinstance(refused, ConfigurationError)
    assert "popular follows the changes of daily, and its step is not row-wise: it holds Aggregate" in str(refused)
    assert not shop.lake.log("popular").exists()
    silent = shop.run(["seen"], at="2026-01-03").errors[0]
    assert isinstance(silent, ConfigurationError)
    assert "follows the changes of clean, whose change feed is off" in silent.message
    shop.spark().sql(silent.hint.partition('sql("')[2].removesuffix('")'))
    ok(shop.run(["seen"], at="2026-01-03"))
    seen = sorted((row["id"], row["visits"]) for row in rows_of(shop, "seen") if row["page"] == "/b")
    assert seen == [("v3", 2), ("v6", 2)]

    # A rule that most records break stops the stream before it writes, at every attempt; mended, it goes on from there.
    def letters_of_rule():
        letters = shop.lake.read("_lakewright/dead_letters", system_columns=True)
        return sorted(row["offset"] for row in letters.where("rule = 'has_page'").collect())

    send(kafka, topic, [visit(7, page=""), visit(8, page=""), visit(9, page=""), visit(0, page="/c")])
    before = shop.lake.log("paged").latest()
    for select in (["raw", "paged"], ["paged"]):
        refused = shop.run(select, at="2026-01-03")
        assert (refused.exit_code, type(refused.errors[0])) == (3, LimitExceeded)
        assert "3 of 4 rows (75.0%) broke a rule, more than the limit of 60.0%" in str(refused.errors[0])
        assert shop.lake.log("paged").latest() == before
        assert letters_of_rule() == [1, 6, 7, 8]
    shop = project(visits_project(kafka, topic, GUARDED.replace("page > ''", "page IS NOT NULL")))
    ok(shop.run(["paged"], at="2026-01-03"))
    assert ids(shop, "paged") == ["v0", "v1", "v3", "v5", "v6", "v7", "v8", "v9"]
    assert letters_of_rule() == [1]


def test_a_stop_limit_of_a_stream_is_a_refusal_with_its_facts_wherever_the_micro_batch_runs(project, kafka):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(7, page=""), visit(8, page=""), visit(9, page="")])
    shop = project(visits_project(kafka, topic, GUARDED))
    refused = shop.run(["raw", "paged"], at="2026-01-03")
    assert (refused.state, refused.exit_code) == ("refused", 3)
    (error,) = refused.errors
    assert (type(error), error.dataset, error.share, error.rows) == (LimitExceeded, "paged", 0.75, 3)
    assert error.slice_id.startswith("arrival-")
    assert "3 of 4 rows (75.0%) broke a rule, more than the limit of 60.0%" in error.message
    # Kept going, it ends with the same words and the same code, and nothing of it is there.
    ended = shop.run_continuous(["paged"])
    assert (ended.state, ended.exit_code) == ("refused", 3)
    assert (type(ended.failed[0].error), ended.failed[0].error.message) == (LimitExceeded, error.message)
    assert not shop.lake.log("paged").exists()


TAKEN = """
    @visits.dataset(guards_in={"raw": [DeadLetter(rules={"has_page": "page > ''"})]})
    def taken(raw):
        return raw
"""


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
def test_a_rewind_that_is_cut_short_again_and_again_leaves_each_record_once(project, kafka, failing):
    topic = kafka.topic(partitions=2)
    send(kafka, topic, [visit(1), visit(2)])
    shop = project(visits_project(kafka, topic, TAKEN))
    ok(shop.run(["raw"], at="2026-01-03"))
    since = datetime.now(UTC)
    send(kafka, topic, [visit(3), "{broken"])
    send(kafka, topic, [visit(4)], partition=1)
    ok(shop.run(at="2026-01-03"))
    old = shop.store.streams.current("raw")

    failing("generation_recorded")
    with pytest.raises(FailpointReached):
        shop.rewind("raw", to=since)
    for place in ("fenced", "rewound", "batch_done"):
        failing(place)
        assert shop.run(["raw"], at="2026-01-03").state == "failed"
        if place == "rewound":
            shop.rebuild_store()  # what is told of the records that are read again is withdrawn by this as well
    failing("taken_back")
    assert shop.run(at="2026-01-03").failed == ["taken"]
    assert ids(shop, "taken") == ["v1", "v2"]
    ok(shop.run(at="2026-01-03"))

    assert ids(shop) == ids(shop, "clean") == ids(shop, "taken") == ["v1", "v2", "v3", "v4"]
    new = shop.store.streams.current("raw")
    assert new.number == old.number + 1
    # The accounts and the dead letters tell each record once as well.
    accounts = accounts_of(shop.store, "raw", is_source=True)
    assert sum(account.kept + sum(account.rejected.values()) for account in accounts) == 5
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True)
    assert [row["offset"] for row in letters.collect()] == [3]
    # A process of the old generation that wakes up now adds nothing.
    late = Identity("raw", "arrival-1000000009", 1, "asleep", details={"generation": old.number, "batch": 9})
    table = shop.lake.open("raw", late)
    assert table.append(table.read(), partition_by=["_lw_day", "_lw_event"]) is None
    # Without the store the logs tell the same, and nothing is read twice.
    shop.rebuild_store()
    assert shop.store.streams.current("raw").number == new.number
    origin = {name: new.start[name] for name in ("topic", "topic_id")}
    assert shop.store.streams.current("raw").start == {**origin, "partitions": {}}
    ok(shop.run(at="2026-01-03"))
    assert ids(shop) == ["v1", "v2", "v3", "v4"]
    # Rolled back to its first version, the stream reads on from there, also where the rollback was cut short.
    failing("restored")
    with pytest.raises(FailpointReached):
        shop.rollback("raw", to=0)
    assert [marker.slice_id for marker in shop.store.markers.withdrawn("raw")] == ["*"]
    ok(shop.run(at="2026-01-03"))
    assert ids(shop) == ids(shop, "clean") == ids(shop, "taken") == ["v1", "v2", "v3", "v4"]
    assert shop.store.markers.withdrawn("raw") == []

    # Rolled back, and rewound before anything was read: it is read again from the beginning.
    shop.rollback("raw", to=0)
    failing("restore_fenced")
    with pytest.raises(FailpointReached):
        shop.rewind("raw")
    assert shop.rewind("raw").deleted == 2
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v1", "v2", "v3", "v4"]
    # By and by the log is cleaned of all that tells of it: what was read since stays.
    send(kafka, topic, [visit(5)])
    with patch("lakewright.pipelines.streams.rewind.own_commits", lambda log: iter(())):
        ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v1", "v2", "v3", "v4", "v5"]

    # Rolled back to all that there is: that is settled once.
    all_of_it = shop.lake.log("raw").latest()
    shop.lake.session().sql(f"DELETE FROM delta.`{shop.lake.resolve('raw')}` WHERE id = 'v5'")
    shop.rollback("raw", to=all_of_it)
    ok(shop.run(["raw"], at="2026-01-03"))
    standing = shop.lake.log("raw").latest(), shop.store.streams.current("raw").number
    assert not ok(shop.run(["raw"], at="2026-01-03")).outcomes
    assert (shop.lake.log("raw").latest(), shop.store.streams.current("raw").number) == standing
    assert ids(shop) == ["v1", "v2", "v3", "v4", "v5"]


def test_a_continuous_stream_goes_on_beside_the_daily_runs_and_a_late_event_is_repaired_the_next_day(project, kafka):
    topic = kafka.topic()
    shop = project(visits_project(kafka, topic, max_records=2))
    send(kafka, topic, [visit(1)])
    done = []
    worker = threading.Thread(target=lambda: done.append(shop.run_continuous()))
    worker.start()
    beside = project()

    def taken(count):
        return lambda: sum(r.rows for r in beside.store.receipts.history("raw") if r.kind == "data") == count

    until(taken(1))
    assert made(ok(beside.run(at="2026-01-02"))) == {("clean", "2026-01-01")}
    send(kafka, topic, [visit(2, at="2026-01-02T08:00:00Z"), *(visit(n, page="/late") for n in (3, 4, 5, 6))])
    until(taken(6))
    # However far it is behind, a micro-batch holds no more than it may.
    assert max(r.rows for r in beside.store.receipts.history("raw") if r.kind == "data") <= 2
    until(lambda: beside.streams()[0].behind == 0)
    (state,) = beside.streams()
    assert state.progress.batch >= 1
    assert "process" in state.running
    repaired = ok(beside.run(at="2026-01-03"))
    assert made(repaired) == {("clean", "2026-01-01"), ("clean", "2026-01-02")}
    with pytest.raises(LeaseHeldError):
        beside.rewind("raw")

    (running,) = beside.store.runs.unfinished()
    beside.store.runs.request_cancel(running.run_id)
    worker.join(60)

    (summary,) = done
    assert summary.state == "ok"
    assert [(one.rows, one.restarts) for one in summary.streams] == [(6, 0)]
    assert ids(beside, "clean") == ["v1", "v2", "v3", "v4", "v5", "v6"]
    assert beside.store.leases.held(beside._now()) == []
    assert beside.store.steps.open_steps() == []
    assert beside.streams()[0].running is None
