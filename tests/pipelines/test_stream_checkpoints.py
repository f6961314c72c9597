"""A stream whose checkpoint is lost, older than its table, or damaged does not start, and nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lakewright import Pipeline
from lakewright.errors import InputError, TargetError
from lakewright.model.identity import Identity
from lakewright.pipelines.streams.checkpoints import explain_state_error
from tests.pipelines.shop import ok
from tests.pipelines.streaming import send, visit, visits_project
from tests.pipelines.test_streams import ids


def refused(shop, name="raw"):
    """What a run says that does not start the stream; its table stays as it is."""
    before = ids(shop, name)
    summary = shop.run([name], at="2026-01-03")
    assert summary.state == "refused"
    assert ids(shop, name) == before
    (error,) = summary.errors
    assert isinstance(error, InputError), error
    return error


@pytest.mark.shows("03.checkpointer", 6)
def test_a_stream_without_its_checkpoint_is_refused_and_nothing_is_lost_after_the_cure(project, kafka, tmp_path):
    topic = kafka.topic()
    shop = project(visits_project(kafka, topic))
    place = Path(shop.lake.checkpoint("raw", 1))
    for number in (1, 2, 3):
        send(kafka, topic, [visit(number)])
        ok(shop.run(["raw"], at="2026-01-03"))
        shutil.copytree(place, tmp_path / f"after-{number}")
    assert ids(shop) == ["v1", "v2", "v3"]
    send(kafka, topic, [visit(4), visit(5)])
    progress = shop.store.streams.current("raw").progress

    def put(copy: str | None) -> None:
        shutil.rmtree(place)
        if copy is not None:
            shutil.copytree(tmp_path / copy, place)

    # Gone, or brought back from too old a copy.
    put(None)
    error = refused(shop)
    assert f"raw: its checkpoint {place} is empty or gone, and its table holds micro-batch 2" in error.message
    assert "Nothing was read or written" in error.message
    assert "lakewright stream rewind raw --to <time>" in str(error.hint)
    assert not place.exists()
    shutil.copytree(tmp_path / "after-2", place)
    assert "knows of micro-batches up to 1 only, and its table holds micro-batch 2" in refused(shop).message
    # The log tells it without the store, and the store where the log no longer does.
    shop.rebuild_store()
    assert "knows of micro-batches up to 1 only" in refused(shop).message
    assert shop.store.streams.current("raw").progress is None
    assert progress.batch == 2

    # One file of it is damaged, or lost: it is named.
    for file, text, word in (
        ("commits/2", "", "does not begin with its version"),
        ("offsets/2", "v1\n{broken", "cannot be read"),
        ("offsets/1", "", "does not begin with its version"),
        ("metadata", "{}", "'id'"),
        ("metadata", None, "it is not there"),
    ):
        put("after-3")
        (place / file).unlink()
        if text is not None:
            (place / file).write_text(text)
        error = refused(shop)
        assert error.message.startswith(f"raw: {place / file} cannot be read")
        assert word in error.message
        assert "Bring the file back from a copy" in str(error.hint)
        assert "lakewright stream rewind raw" in str(error.hint)
    put("after-3")
    shutil.rmtree(place / "offsets")
    assert f"{place / 'offsets' / '2'} cannot be read (it is not there)" in refused(shop).message

    # The folder is put back: the stream goes on as if nothing had been.
    put("after-3")
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v1", "v2", "v3", "v4", "v5"]

    # It is gone for good: what the source holds is read again, each record once.
    send(kafka, topic, [visit(6)])
    put(None)
    refused(shop)
    shop.rewind("raw")
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v1", "v2", "v3", "v4", "v5", "v6"]
    assert shop.store.steps.open_steps() == []
    assert shop.store.leases.held(shop._now()) == []


@pytest.mark.shows("03.checkpointer", 6)
def test_a_moved_checkpoint_that_nothing_points_at_is_refused(project, kafka, tmp_path):
    topic = kafka.topic()
    shop = project(visits_project(kafka, topic))
    send(kafka, topic, [visit(1)])
    ok(shop.run(["raw"], at="2026-01-03"))
    moved = shop.move_checkpoint("raw", str(tmp_path / "safe"))
    send(kafka, topic, [visit(2)])
    pointer = Path(f"{moved.before}.moved")
    text = pointer.read_text()

    pointer.write_text("{broken")
    error = refused(shop)
    assert f"raw: {pointer} cannot be read" in error.message
    assert "Write into it where the folder lies" in str(error.hint)
    assert "`lakewright stream rewind raw --all`" in str(error.hint)
    pointer.unlink()
    error = refused(shop)
    assert f"its checkpoint {moved.before} is empty or gone, and its table holds micro-batch 0" in error.message
    assert "1.moved" in str(error.hint)
    # A continuous stream ends with the same words, and does not try again and again.
    (ended,) = shop.run_continuous(["raw"]).streams
    assert (type(ended.error), ended.restarts) == (InputError, 0)

    pointer.write_text(text)
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v1", "v2"]


@pytest.mark.classic_only(
    "the look at the checkpoint is left out in this process, and a micro-batch runs on the server"
)
def test_a_micro_batch_that_the_table_is_beyond_is_never_passed_over(project, kafka, monkeypatch):
    """Where the checkpoint cannot be seen from here, the micro-batch itself notices."""
    topic = kafka.topic()
    shop = project(visits_project(kafka, topic))
    for number in (1, 2):
        send(kafka, topic, [visit(number)])
        ok(shop.run(["raw"], at="2026-01-03"))
    send(kafka, topic, [visit(3)])
    # Another process has given this generation up, which nobody looks at once a query runs: no commit would hold what
    # it reads.
    fence = Identity("raw", "arrival-9", 1, "other", kind="fence", details={"generation": 1, "batch": 2**62})
    shop.lake.fence(["raw"], fence, ["main"])
    (error,) = shop.run(["raw"], at="2026-01-03").errors
    assert isinstance(error, TargetError), error
    assert "another process is further than micro-batch 2" in error.message

    shutil.rmtree(shop.lake.checkpoint("raw", 1))
    monkeypatch.setattr("lakewright.pipelines.streams.queries.refuse_lost_checkpoint", lambda *_: None)

    (error,) = shop.run(["raw"], at="2026-01-03").errors
    assert isinstance(error, TargetError), error
    assert "another process is further than micro-batch 0" in error.message
    assert "the stream's checkpoint is older than its table" in str(error.hint)
    assert "`lakewright stream rewind raw --all`" in str(error.hint)
    assert ids(shop) == ["v1", "v2"]


def test_a_state_that_cannot_be_used_is_told_with_its_cure():
    visits = Pipeline("visits", start="2026-01-01")
    visits.add(lambda raw: raw, name="counted", mode="stream", event_time="at")
    (counted,) = visits.datasets
    told = explain_state_error(RuntimeError("[CANNOT_LOAD_STATE_STORE.X] no file 3.delta\n\tat"), counted, "/lake/c")
    assert isinstance(told, InputError)
    assert "counted: the state in /lake/c cannot be read: a file is gone or damaged" in told.message
    assert "no file 3.delta" in told.message
    assert "lakewright stream rewind counted --all" in str(told.hint)
    assert explain_state_error(RuntimeError("something else"), counted, "/lake/c") is None
