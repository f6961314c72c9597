"""The skew buffer of a stream: no partition above its quota, the surplus later and once, whatever is killed."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from lakewright import JsonFiles, KafkaTopic, Merger, Pipeline, SkewBuffer
from lakewright.errors import DefinitionError, InputError
from lakewright.failpoints import FailpointReached, arm
from lakewright.model.streams import Generation, Progress
from lakewright.pipelines.accounts import accounts_of
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.streams import watched
from lakewright.pipelines.streams.skew import Kept, Standing
from tests.pipelines.shop import ok
from tests.pipelines.streaming import delete_before, send, until, visit, visits_project
from tests.pipelines.test_streams import ids

QUOTA = 4
BUFFER = f'mode="stream", skew_buffer=SkewBuffer(quota={QUOTA}), max_records='


def skewed_project(kafka, topic, more="", *, max_records=10, option=BUFFER):
    files = visits_project(kafka, topic, more, max_records=max_records)
    text = files["pipelines/visits.py"].replace("import DeadLetter", "import SkewBuffer, DeadLetter")
    files["pipelines/visits.py"] = text.replace('mode="stream", max_records=', option)
    return files


def failing(place):
    arm({"LAKEWRIGHT_FAILPOINT": place, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})


@pytest.fixture(autouse=True)
def disarmed():
    yield
    arm({})


def delivered(shop, name="raw"):
    """Rows by partition and arrival; each partition is delivered from its beginning, in order and without a gap."""
    frame = shop.lake.read(name, system_columns=True).select("_lw_partition", "_lw_arrival", "_lw_offset")
    rows = sorted(tuple(row) for row in frame.collect())
    for partition in (0, 1):
        places = [offset for p, _, offset in rows if p == partition]
        assert places == list(range(len(places)))
    return Counter((partition, arrival) for partition, arrival, _ in rows)


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
@pytest.mark.shows("08.horizontal-partitioner", 7)
def test_a_skewed_partition_keeps_its_quota_and_its_surplus_comes_later_once(project, kafka):
    topic = kafka.topic(partitions=2)
    send(kafka, topic, [visit(n) for n in range(8)] + ["{broken"])
    send(kafka, topic, [visit(90)], partition=1)
    shop = project(skewed_project(kafka, topic))

    # Between the surplus and the rows, between the rows and Spark's own note, and in batches of the buffer alone, of
    # which the last takes all out of it.
    for place, waiting in (("surplus_kept", 5), ("batch_done", 5), ("surplus_kept", 1), ("surplus_kept:2", 0)):
        failing(place)
        assert shop.run(["raw"], at="2026-01-03").state == "failed"
        assert shop.streams()[0].buffered == waiting
    (outcome,) = ok(shop.run(["raw"], at="2026-01-03")).made

    first, *later = (1_000_000_000 + n for n in range(3))
    assert delivered(shop) == {(0, first): 4, (0, later[0]): 4, (0, later[1]): 1, (1, first): 1}
    assert outcome.receipt.rows == 1  # what the last batch had taken out of the buffer when it was killed
    assert shop.streams()[0].buffered == 0
    assert sum(account.read for account in accounts_of(shop.store, "raw", is_source=True)) == 10
    assert [row["offset"] for row in shop.lake.read("_lakewright/dead_letters").collect()] == [8]
    assert not ok(shop.run(["raw"], at="2026-01-03")).made

    # More comes, and the stream is rewound to where that began, while some of it still waits.
    since = datetime.now(UTC)
    send(kafka, topic, [visit(n) for n in range(20, 26)])
    failing("surplus_kept:2")
    assert shop.run(["raw"], at="2026-01-03").state == "failed"
    shop.rewind("raw", to=since)
    assert shop.streams()[0].buffered == 0
    # Another failure, and the option is taken away: what waits is delivered all the same.
    failing("batch_done")
    assert shop.run(["raw"], at="2026-01-03").state == "failed"
    shop = project(visits_project(kafka, topic))
    ok(shop.run(at="2026-01-03"))

    assert delivered(shop) == {
        (0, first): 4, (0, later[0]): 4, (0, later[1]): 1, (1, first): 1, (0, 2 * first): 4, (0, 2 * first + 1): 2,
    }  # fmt: skip
    assert ids(shop, "clean") == sorted(f"v{n}" for n in [*range(8), *range(20, 26), 90])


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
@pytest.mark.parametrize("cut_short_at", [None, "generation_recorded", "fenced"])
def test_rows_that_left_the_buffer_and_are_gone_at_the_source_count_as_lost(project, kafka, cut_short_at):
    topic = kafka.topic()
    send(kafka, topic, [visit(n) for n in range(9)])
    shop = project(skewed_project(kafka, topic))
    failing("surplus_kept:2")  # four are delivered, the next four have left the buffer, and one waits there
    assert shop.run(["raw"], at="2026-01-03").state == "failed"
    assert shop.streams()[0].buffered == 1
    arm({})
    if cut_short_at is not None:  # nothing was deleted by then, and what waits is given up by the next rewind as well
        failing(cut_short_at)
        with pytest.raises(FailpointReached):
            shop.rewind("raw")
        arm({})
    delete_before(kafka, topic, 6)
    with pytest.raises(InputError, match="rows wait in its skew buffer") as refused:
        shop.rewind("raw")
    assert ("no run delivers them" in refused.value.hint) == (cut_short_at is not None)
    gone = shop.rewind("raw", lost="delete")
    assert (gone.deleted, gone.rows_lost, gone.lost_waiting) == (4, 6, 2)
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v6", "v7", "v8"]


STEP = """
    @visits.dataset(mode="stream", event_time="at", skew_buffer=SkewBuffer(quota=3, by="page", order="at"))
    def paged(raw):
        '''Visits, of each page only so many at once.'''
        return raw
"""


def test_a_continuous_stream_delivers_what_waits_when_nothing_new_comes(project, kafka):
    topic = kafka.topic(partitions=2)
    send(kafka, topic, [visit(n) for n in range(9)])
    send(kafka, topic, [visit(90, page="/b")], partition=1)
    shop = project(skewed_project(kafka, topic, STEP))
    done = []
    worker = threading.Thread(target=lambda: done.append(shop.run_continuous()))
    worker.start()
    beside = project()

    def taken(name, count):
        return lambda: sum(r.rows for r in beside.store.receipts.history(name) if r.kind == "data") >= count

    until(taken("raw", 5))
    until(taken("raw", 10))
    until(taken("paged", 10))
    (running,) = beside.store.runs.unfinished()
    beside.store.runs.request_cancel(running.run_id)
    worker.join(60)

    assert done[0].state == "ok"
    assert [one.rows for one in done[0].streams] == [10, 10]
    assert max(delivered(shop).values()) == QUOTA
    assert ids(shop, "paged") == sorted(f"v{n}" for n in [*range(9), 90])
    by_page = shop.lake.read("paged", system_columns=True).groupBy("_lw_arrival", "page").count().collect()
    assert max(row["count"] for row in by_page) == 3


def test_what_waits_is_delivered_by_a_query_that_knows_what_the_one_before_has_read():
    """What it had read when it was started may be gone at the source by now, and would be missed."""
    begun = [Generation("raw", 1, datetime(2026, 1, 1, tzinfo=UTC), progress=Progress(3, "then"))]

    class Running:
        """A query that has nothing to do, and has read four micro-batches."""

        running = idle = True
        standing = Standing(in_use=True)

        def __init__(self, _, generation, **options):
            self.generation = generation
            begun.append(generation)

        def progress(self):
            return Progress(7, "now")

        def stop(self, **_): ...

        dropped = settle = abandon = lambda self, *_: None

    store = SimpleNamespace(streams=SimpleNamespace(advance=lambda *_, **__: None, current=lambda _: None))
    graph = SimpleNamespace(streamed_input=lambda _: None)
    shop: Any = SimpleNamespace(store=store, lake=None, graph=graph, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    raw = SimpleNamespace(name="raw", every=timedelta(0), is_source=True)
    current: Any = SimpleNamespace(dataset=raw)
    stream = watched.WatchedStream(shop, current, watched.StreamOutcome("raw"), lambda _: None)
    with patch.multiple(
        watched,
        Query=Running,
        prepare=lambda _: ([], begun[0]),
        harvest_stream=lambda *_, **__: [],
        last_kept=lambda *_: Kept(7, 2, None, None, drain=False, drains=0),
        _QUIET=0.0,
    ):
        for _ in range(3):  # it is started, told of, and found to have nothing to do
            stream.look()
    assert [one.progress.offsets for one in begun[1:]] == ["then", "now"]


def kafka_source(**options):
    Pipeline("visits").source("raw", KafkaTopic("broker", "visits"), schema="id string", **options)


def file_source(**options):
    Pipeline("visits").source("raw", JsonFiles("landing"), schema="id string", **options)


def step(**options):
    visits = Pipeline("visits")
    visits.source("raw", KafkaTopic("broker", "visits"), schema="id string", mode="stream")
    visits.dataset(**options)(unchanged)
    Graph(visits.datasets)


def unchanged(raw):
    return raw


@pytest.mark.parametrize(
    ("declare", "options", "word"),
    [
        (kafka_source, {"skew_buffer": SkewBuffer(1)}, 'mode="stream" is missing'),
        (kafka_source, {"skew_buffer": 5, "mode": "stream"}, "SkewBuffer"),
        (kafka_source, {"skew_buffer": SkewBuffer(1, by="id"), "mode": "stream"}, "Leave by and order out"),
        (file_source, {"skew_buffer": SkewBuffer(1), "mode": "stream"}, "JsonFiles"),
        (step, {"skew_buffer": SkewBuffer(1, by="id"), "mode": "stream"}, "in which order"),
        (step, {"skew_buffer": SkewBuffer(1, "id", "id"), "mode": "stream", "writer": Merger(keys=["id"])}, "changes"),
    ],
)
def test_a_buffer_that_cannot_work_is_refused_when_the_file_is_loaded(declare, options, word):
    with pytest.raises(DefinitionError, match=word):
        declare(**options)
