"""How a stream ends, and what is known of its micro-batches then: finished, written, noted whole, or started again."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakewright import Pipeline
from lakewright.errors import InputError, TargetError
from lakewright.lake.delta_errors import has_other_columns, is_transient
from lakewright.model.findings import Finding
from lakewright.model.identity import Identity
from lakewright.model.receipts import Change, Commit
from lakewright.model.runs import Run
from lakewright.pipelines.harvest import harvest
from lakewright.pipelines.streams import harvest as indexing
from lakewright.pipelines.streams.queries import Query
from lakewright.pipelines.streams.skew import refuse_skipped
from lakewright.store import EVERY_SLICE, open_store
from tests.pipelines.streaming import until

NOW = datetime(2026, 1, 3, tzinfo=UTC)


def logged(*identities: Identity) -> Any:
    """A log with a commit of each, each of one row."""
    commits = [
        Commit(version, NOW, "WRITE", one.to_json(), {"numOutputRows": 1}, {"2026-01-01": Change(1, 0)})
        for version, one in enumerate(identities)
    ]
    return SimpleNamespace(bounds=lambda: (0, len(commits) - 1), commit=commits.__getitem__)


def micro_batch(batch: int, *, kind: Any = "data") -> Identity:
    return Identity("raw", f"arrival-{10**9 + batch}", 1, "run", kind=kind, details={"generation": 1, "batch": batch})


def restored(version: int, *, to: int) -> Identity:
    return Identity("raw", "whole", version, "run", kind="restore", details={"restored_to": to})


def stream() -> Any:
    visits = Pipeline("visits", start="2026-01-01")
    visits.add(lambda raw: raw, name="raw", mode="stream", event_time="at")
    return visits.datasets[0]


@pytest.mark.classic_only("the function of a micro-batch is held by this process")
def test_a_stop_lets_the_micro_batch_under_way_end(spark: SparkSession, tmp_path: Path) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), list[int]()

    def hold(rows: DataFrame, batch: int) -> None:
        begun.set()
        assert go_on.wait(60)
        done.append(batch)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.json").write_text('{"id": 1}\n')
    writer = spark.readStream.schema("id int").json(str(tmp_path / "in")).writeStream.foreachBatch(hold)
    query = object.__new__(Query)
    query._query = writer.option("checkpointLocation", str(tmp_path / "kept")).start()
    assert begun.wait(60)
    stopping = threading.Thread(target=query.stop, kwargs={"patience": 60.0})
    stopping.start()
    stopping.join(0.3)
    assert stopping.is_alive()
    go_on.set()
    stopping.join(60)
    assert (done, query.running, query._query.exception()) == ([0], False, None)
    assert (tmp_path / "kept" / "commits" / "0").exists()  # nothing of it is repeated


def test_a_micro_batch_that_delta_skipped_counts_only_where_its_rows_are() -> None:
    def skipped(batch: int, *log: Identity) -> None:
        lake = SimpleNamespace(delta_log=lambda _: logged(*log))
        attempt: Any = SimpleNamespace(shop=SimpleNamespace(lake=lake), dataset=stream(), generation=1, batch=batch)
        refuse_skipped(attempt, None)

    skipped(3, micro_batch(2), micro_batch(3), micro_batch(2**62, kind="fence"))
    for log in (
        (micro_batch(2), micro_batch(2**62, kind="fence")),
        (micro_batch(2), micro_batch(3), micro_batch(0, kind="rewind")),
        (micro_batch(2), micro_batch(3), micro_batch(4)),
    ):
        with pytest.raises(TargetError, match="another process is further than micro-batch 3"):
            skipped(3, *log)


def test_a_receipt_of_a_micro_batch_and_what_is_warned_of_it_are_noted_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    told = Finding("raw", "dead letters", "1 of 2 rows")
    monkeypatch.setattr(indexing, "warnings_of", lambda *_: (told,))
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        lake = SimpleNamespace(log=lambda _: logged(micro_batch(0)))
        shop = SimpleNamespace(store=store, lake=lake, run=Run("run", "visits", NOW), now=lambda: NOW)
        current: Any = SimpleNamespace(shop=shop, dataset=stream(), grant=SimpleNamespace(number=1))
        with monkeypatch.context() as dying:
            dying.setattr(type(store.findings), "add", killed)
            with pytest.raises(KeyboardInterrupt):
                indexing.harvest_stream(current)
        assert store.receipts.last_version("raw") is None
        assert [one.rows for one in indexing.harvest_stream(current)] == [1]
        assert [one.message for one in store.findings.latest("raw")] == ["1 of 2 rows"]
        assert indexing.harvest_stream(current) == []


def test_arrivals_that_a_rollback_took_away_count_no_longer_whoever_finds_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "warnings_of", lambda *_: ())
    log = logged(micro_batch(0), micro_batch(1), restored(2, to=0), micro_batch(10**9))
    lake: Any = SimpleNamespace(log=lambda _: log, is_declared=lambda _: True)
    for place in ("stream", "reader"):
        with open_store(f"sqlite:///{tmp_path}/{place}.db") as store:
            store.markers.withdraw("raw", EVERY_SLICE, run_id="run", now=NOW)
            shop = SimpleNamespace(store=store, lake=lake, run=Run("run", "visits", NOW), now=lambda: NOW)
            current: Any = SimpleNamespace(shop=shop, dataset=stream(), grant=SimpleNamespace(number=1))
            if place == "stream":
                indexing.harvest_stream(current)
                assert store.markers.withdrawn("raw") == []
            else:
                harvest(lake, store, "raw", [3, 0, 1])
                harvest(lake, store, "raw", [2])
            assert store.receipts.live_slices("raw").keys() == {"arrival-1000000000", "arrival-2000000000"}


def test_a_column_that_an_input_gains_is_told_as_what_another_query_gets_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In the words of the engine at hand."""
    table = str(tmp_path / "raw")
    spark.createDataFrame([(1,)], "id int").write.format("delta").save(table)
    query = object.__new__(Query)
    query._current = SimpleNamespace(dataset=stream(), shop=SimpleNamespace(lake=SimpleNamespace(resolve=str)))  # type: ignore[assignment]
    query._failures, query._place = [], str(tmp_path / "kept")
    writer = spark.readStream.format("delta").load(table).writeStream.format("noop")
    query._query = writer.option("checkpointLocation", query._place).trigger(processingTime="0.1 seconds").start()
    until(lambda: query._query.lastProgress is not None)
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS (page string)")
    assert query.wait(60)
    error = query.failure()
    assert isinstance(error, InputError)
    assert "raw: a table that it reads has other columns since this query began" in error.message
    assert has_other_columns(error)
    assert is_transient(error)  # in a run, the next attempt
    assert not has_other_columns(InputError("of something else"))
