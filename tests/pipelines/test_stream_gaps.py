"""Records that a topic deletes before a stream has read them: refused, or gone past and told; never skipped unsaid."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from lakewright.errors import InputError
from lakewright.model.identity import Identity
from lakewright.model.streams import Generation
from lakewright.patterns.error_management.checkpoint_files import CheckpointState
from lakewright.pipelines.streams import gaps as going_past
from lakewright.pipelines.streams.skew import Standing
from tests.pipelines.shop import ok
from tests.pipelines.streaming import delete_before, send, until, visit, visits_project
from tests.pipelines.test_streams import ids


def going_on(kafka, topic, **more):
    """A project whose stream goes on after records that are lost."""
    files = visits_project(kafka, topic, **more)
    files["pipelines/visits.py"] = files["pipelines/visits.py"].replace(
        f'KafkaTopic("broker", "{topic}")', f'KafkaTopic("broker", "{topic}", if_lost="go on")'
    )
    return files


def gaps(shop):
    return [one.message for one in shop.store.findings.latest("raw") if one.subject == "lost records"]


def test_records_deleted_before_a_stream_read_them_end_it_with_their_offsets_and_those_that_it_read_do_not(
    project, kafka
):
    topic = kafka.topic(partitions=2)
    send(kafka, topic, [visit(1), visit(2)])
    shop = project(visits_project(kafka, topic))
    ok(shop.run(["raw"], at="2026-01-03"))
    delete_before(kafka, topic, 2)
    send(kafka, topic, [visit(3)])
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v1", "v2", "v3"]

    send(kafka, topic, [visit(4), visit(5)])
    send(kafka, topic, [visit(6)], partition=1)
    delete_before(kafka, topic, 4)
    for _ in range(2):
        refused = shop.run(["raw"], at="2026-01-03").errors[0]
        assert isinstance(refused, InputError)
        assert "never read (partition 0, offsets 3 to 3). Nothing was read." in refused.message
        assert 'if_lost="go on"' in refused.hint
    assert "not read, as far as is recorded (partition 0, offsets 3 to 3)" in shop.streams()[0].problem
    ended = shop.run_continuous(["raw"])
    assert "partition 0, offsets 3 to 3" in str(ended.failed[0].error)
    assert ids(shop) == ["v1", "v2", "v3"]
    assert gaps(shop) == []

    # The user says so: it goes on, and the gap is told once.
    shop = project(going_on(kafka, topic))
    ok(shop.run(["raw"], at="2026-01-03"))
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v1", "v2", "v3", "v5", "v6"]
    (told,) = gaps(shop)
    assert "never read (partition 0, offsets 3 to 3). The stream goes on after them." in told


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
@pytest.mark.parametrize("rebuilt", [False, True], ids=["store intact", "store rebuilt"])
def test_what_was_committed_is_no_gap_though_neither_spark_nor_the_store_has_noted_it(project, kafka, failing, rebuilt):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(2)])
    shop = project(visits_project(kafka, topic))
    ok(shop.run(["raw"], at="2026-01-03"))
    send(kafka, topic, [visit(3)])
    failing("batch_done")  # between the commit and Spark's own note of it
    assert shop.run(["raw"], at="2026-01-03").state == "failed"
    delete_before(kafka, topic, 3)
    send(kafka, topic, [visit(4)])
    if rebuilt:
        shop.rebuild_store()

    ok(shop.run(["raw"], at="2026-01-03"))

    assert ids(shop) == ["v1", "v2", "v3", "v4"]
    assert gaps(shop) == []
    assert shop.store.streams.current("raw").number == 1


@pytest.mark.parametrize(
    ("before", "delivered", "reached"),
    [(4, False, 4), (4, True, 5), (None, False, 1)],
    ids=["not delivered", "delivered", "the one before is not known"],
)
def test_the_micro_batch_before_one_that_was_cut_short_is_no_gap_whatever_is_recorded(before, delivered, reached):
    def up_to(offset):
        return {"visits": {"0": offset}}

    state = CheckpointState("one", 9, 8, (up_to(5),), None, None if before is None else (up_to(before),))
    lake, dataset = SimpleNamespace(), SimpleNamespace(name="raw", is_source=True)
    current: Any = SimpleNamespace(shop=SimpleNamespace(lake=lake), dataset=dataset)
    with (
        patch.multiple(going_past, checkpoint_in_force=lambda *_: "", checkpoint_state=lambda *_: state),
        patch.multiple(going_past, standing_of=lambda *_: Standing(), is_delivered=lambda *_: delivered),
    ):
        generation = Generation("raw", 1, datetime(2026, 1, 1, tzinfo=UTC))
        assert json.loads(going_past._reached(current, generation, json.dumps(up_to(1)))) == up_to(reached)


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
@pytest.mark.parametrize("rebuilt", [False, True], ids=["store intact", "store rebuilt"])
def test_a_stream_that_goes_on_past_a_gap_has_each_record_once_whenever_it_is_killed(project, kafka, failing, rebuilt):
    topic = kafka.topic(partitions=2)
    send(kafka, topic, [visit(1), visit(2)])
    shop = project(going_on(kafka, topic))
    ok(shop.run(["raw"], at="2026-01-03"))
    send(kafka, topic, [visit(n) for n in (3, 4, 5)])
    send(kafka, topic, [visit(6)], partition=1)
    delete_before(kafka, topic, 4)

    for place in ("gap_fenced", "gap_recorded", "batch_done"):
        failing(place)
        assert shop.run(["raw"], at="2026-01-03").state == "failed"
        assert [ids(shop), shop.store.streams.current("raw").number] in (
            [["v1", "v2"], 1], [["v1", "v2"], 2], [["v1", "v2", "v5", "v6"], 2]
        )  # fmt: skip
        if rebuilt:
            shop.rebuild_store()
    send(kafka, topic, [visit(7)])
    ok(shop.run(["raw"], at="2026-01-03"))

    assert ids(shop) == ["v1", "v2", "v5", "v6", "v7"]
    assert "partition 0, offsets 2 to 3" in gaps(shop)[0]
    assert len(set(gaps(shop))) == 1
    # A process of the old generation that wakes up now adds nothing.
    late = Identity("raw", "arrival-1000000009", 1, "asleep", details={"generation": 1, "batch": 9})
    table = shop.lake.open("raw", late)
    assert table.append(table.read(), partition_by=["_lw_day", "_lw_event"]) is None


@pytest.mark.classic_only("a micro-batch runs on the server")
def test_a_stream_goes_past_what_its_very_first_micro_batch_lost_before_there_was_a_table(project, kafka):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(2)])
    shop = project(going_on(kafka, topic))
    with patch("lakewright.pipelines.streams.batches._append", side_effect=OSError("no space left on device")):
        assert shop.run(["raw"], at="2026-01-03").state == "failed"
    delete_before(kafka, topic, 2)
    send(kafka, topic, [visit(3)])
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v3"]
    assert "never read (partition 0, offsets 0 to 1). The stream goes on after them." in gaps(shop)[0]


def test_a_continuous_stream_goes_past_a_gap_and_tells_it(project, kafka):
    topic = kafka.topic()
    send(kafka, topic, [visit(1)])
    shop = project(going_on(kafka, topic))
    ok(shop.run(["raw"], at="2026-01-03"))
    send(kafka, topic, [visit(2), visit(3)])
    delete_before(kafka, topic, 2)
    heard = []
    worker = threading.Thread(target=lambda: shop.run_continuous(["raw"], listener=heard.append))
    worker.start()
    beside = project()
    beside.graph  # noqa: B018  (declares the names)
    try:
        until(lambda: ids(beside) == ["v1", "v3"])
    finally:
        (running,) = beside.store.runs.unfinished()
        beside.store.runs.request_cancel(running.run_id)
        worker.join(60)
    assert ids(shop) == ["v1", "v3"]
    assert len(gaps(shop)) == 1
    assert any("it goes on after records that are lost: partition 0, offsets 1 to 1" in str(one) for one in heard)
