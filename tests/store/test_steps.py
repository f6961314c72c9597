from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from lakewright.store import StepRecord, Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def opened(store: Store, dataset: str = "visits", *, run_id: str = "r1", outputs: Sequence[str] = ()) -> int:
    return store.steps.open(
        run_id=run_id,
        dataset=dataset,
        slice_id="2026-01-04",
        number=3,
        attempt=1,
        reason="2 late rows",
        outputs=outputs,
        now=NOW,
    )


def test_a_step_is_recorded_before_it_writes(store: Store) -> None:
    step_id = opened(store, outputs=["visits", "visits_rejected"])
    outputs = ("visits", "visits_rejected")
    assert store.steps.open_steps() == [
        StepRecord(step_id, "r1", "visits", "2026-01-04", 3, 1, "2 late rows", "open", NOW, None, outputs)
    ]


def test_a_closed_step_is_open_no_more(store: Store) -> None:
    first, second = opened(store), opened(store)
    store.steps.close(first, "failed", now=NOW, error="boom", hint="look at it")
    assert [step.step_id for step in store.steps.open_steps()] == [second]
    of_run = store.steps.of_run("r1")
    assert [(step.state, step.error, step.hint) for step in of_run] == [
        ("failed", "boom", "look at it"),
        ("open", None, None),
    ]


def test_an_error_that_names_a_file_whose_name_is_no_text_closes_its_step(store: Store) -> None:
    store.steps.close(opened(store), "failed", now=NOW, error="caf\udce9.csv")
    assert store.steps.open_steps() == []
    assert store.steps.newest()["visits"].error == "caf?.csv"


def test_open_steps_are_found_by_what_they_write_into(store: Store) -> None:
    opened(store, "visits", outputs=["visits", "visits_rejected"])
    opened(store, "users", outputs=["users"])
    assert [step.dataset for step in store.steps.open_steps("visits_rejected")] == ["visits"]
    assert [step.dataset for step in store.steps.open_steps("users")] == ["users"]
    assert store.steps.open_steps("nothing") == []


def test_the_last_step_of_a_dataset_is_the_newest(store: Store) -> None:
    opened(store, run_id="r1")
    newest = opened(store, run_id="r2")
    opened(store, "users", run_id="r3")
    last = store.steps.last("visits")
    assert last is not None
    assert last.step_id == newest
    assert store.steps.last("nothing") is None


def test_a_step_may_join_a_transaction(store: Store) -> None:
    with store.transaction() as conn:
        step_id = store.steps.open(
            conn,
            run_id="r1",
            dataset="visits",
            slice_id="whole",
            number=1,
            attempt=1,
            reason="due",
            outputs=[],
            now=NOW,
        )
        assert store.steps.open_steps() == []
        store.steps.close(step_id, "skipped", now=NOW, conn=conn)
    assert [step.state for step in store.steps.of_run("r1")] == ["skipped"]
