"""Why each step and slice runs or not, by receipts that are told by hand: no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakewright.connectors.files import JsonFiles
from lakewright.connectors.kafka import KafkaTopic
from lakewright.model.policies import Capture, Fail
from lakewright.model.references import Whole
from lakewright.patterns.data_flow.exclusive_choice import ByParameter, ExclusiveChoice
from lakewright.patterns.idempotency.data_overwrite import DataOverwrite
from lakewright.patterns.idempotency.merger import Merger
from lakewright.patterns.idempotency.stateful_merger import StatefulMerger
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.explain import Why, explain
from lakewright.pipelines.planning import Plan
from lakewright.pipelines.replay_reach import Reach, follow
from lakewright.store import WHOLE_DATASET, Store, open_store
from lakewright.store.owners import this_process
from tests.pipelines.lab import LOOKED_AT, Lab, lab
from tests.pipelines.planned import planned


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def days(**options: Any) -> Pipeline:
    shop = Pipeline("shop", start="2026-01-01")
    shop.source("raw", JsonFiles("landing/raw"), schema="at timestamp", event_time="at")
    shop.source("users", JsonFiles("landing/users"), schema="at timestamp", event_time="at")

    def orders(raw, users):  # type: ignore[no-untyped-def]
        return raw

    shop.add(orders, **{"event_time": "at", "inputs": {"users": Whole()}, **options})
    shop.sql("daily", "SELECT * FROM orders", event_time="at", layer="gold")
    return shop


def bench_of(store: Store, **options: Any) -> Lab:
    """Three days that are made, and a fourth that has arrived."""
    bench = lab(store, days(**options))
    bench.arrive("users", "2026-01-01")
    bench.arrive("raw", "2026-01-05", "2026-01-06", "2026-01-07")
    for day in ("2026-01-05", "2026-01-06", "2026-01-07"):
        bench.commit("orders", day, {day: 3}, raw=0, users=0)
    bench.arrive("raw", "2026-01-05", "2026-01-08")
    return bench


def told(bench: Lab, plan: Plan, name: str) -> list[tuple[bool | None, str, str]]:
    return [(one.runs, one.what, one.status) for one in explain(plan, bench.graph, bench.store, LOOKED_AT)[name]]


def line(bench: Lab, plan: Plan, name: str, what: str) -> Why:
    (found,) = (one for one in explain(plan, bench.graph, bench.store, LOOKED_AT)[name] if one.what == what)
    return found


def test_every_slice_says_why_it_runs_and_the_fresh_ones_are_told_as_a_group(store: Store):
    bench = bench_of(store)
    plan = planned(bench)
    assert told(bench, plan, "orders") == [
        (True, "2026-01-05", "late"),
        (True, "2026-01-08", "missing"),
        (False, "2 slices", "fresh"),
    ]
    late = line(bench, plan, "orders", "2026-01-05")
    assert late.reason == "raw has 3 more rows for it since version 0"
    assert (late.policy, late.inputs) == ("late=Repair()", "raw 0 → 1, users 0")
    assert line(bench, plan, "orders", "2026-01-08").inputs == "raw 1, users 0"
    fresh = line(bench, plan, "orders", "2 slices")
    assert fresh.reason == "nothing newer than what they were made of (2026-01-06 … 2026-01-07)"
    assert fresh.inputs == "raw 0, users 0"
    assert told(bench, plan, "raw") == [
        (False, "new", "fresh"),
        (False, "2 arrivals", "fresh"),
    ]
    follows = line(bench, plan, "daily", "2026-01-05")
    assert (follows.runs, follows.status) == (True, "missing")


def test_what_is_not_over_yet_waits_and_says_by_which_option(store: Store):
    bench = bench_of(store, wait="2 hours")
    waits = line(bench, planned(bench, "2026-01-08T12:00"), "orders", "2026-01-08")
    assert (waits.runs, waits.status) == (False, "waiting")
    assert waits.reason == "not over yet: due at 2026-01-09 02:00 UTC"
    assert waits.policy == 'wait="2:00:00"'


def test_late_rows_that_the_policy_keeps_aside_or_refuses_name_it(store: Store):
    held = line(bench := bench_of(store, late=Capture()), planned(bench), "orders", "2026-01-05")
    assert (held.runs, held.status, held.policy) == (False, "held", "late=Capture()")
    assert held.reason.startswith("its late rows are kept aside")


def test_what_is_below_a_dataset_that_cannot_succeed_is_blocked_by_it(store: Store):
    bench = bench_of(store, late=Fail())
    plan = planned(bench)
    refused = line(bench, plan, "orders", "2026-01-05")
    assert (refused.runs, refused.policy) == (False, "late=Fail()")
    assert refused.reason.startswith("the run fails for it")
    below = explain(plan, bench.graph, store, LOOKED_AT)["daily"]
    assert below[0] == Why("all", False, "blocked", "orders above it does not succeed as it stands")
    assert not any(one.runs for one in below)


def test_an_input_that_is_read_whole_has_changed_and_makes_nothing_again(store: Store):
    bench = bench_of(store)
    bench.arrive("users", "2026-01-01")
    let_be = line(bench, planned(bench), "orders", "3 slices")
    assert let_be == Why(
        "3 slices",
        False,
        "let be",
        "users has changed since, and is read in a way that makes nothing again",
        "users=Whole()",
        "users 1 now",
    )


def test_before_the_first_run_each_step_says_what_it_waits_for(store: Store):
    bench = lab(store, days())
    plan = planned(bench)
    assert told(bench, plan, "raw") == [(False, "new", "nothing yet")]
    assert line(bench, plan, "orders", "all").reason == "raw has nothing yet"
    taken = planned(bench, new={"raw": 1})
    assert told(bench, taken, "raw") == [(True, "new", "due")]
    for name in ("orders", "daily"):
        (follows,) = explain(taken, bench.graph, store, LOOKED_AT)[name]
        assert (follows.runs, follows.status) == (None, "may follow")
        assert follows.reason.startswith("what is new in raw is read first")


def test_slices_that_depend_on_past_ones_say_so(store: Store):
    bench = bench_of(store, depends_on_past=True)
    assert line(bench, planned(bench), "orders", "2026-01-08").policy == "depends_on_past: after those before it"


@pytest.mark.parametrize("writer", [DataOverwrite(), Merger(keys=["user"]), StatefulMerger(keys=["user"])])
def test_all_later_slices_of_a_merge_follow_one_that_follows_in_a_plan_and_in_a_replay(store: Store, writer: Any):
    shop = days()
    shop.add(lambda orders: orders, name="merged", event_time="at", writer=writer)
    bench = lab(store, shop)
    bench.arrive("users", "2026-01-01")
    made = ("2026-01-05", "2026-01-06", "2026-01-07")
    bench.arrive("raw", *made)
    if isinstance(writer, Merger):
        bench.commit("merged", "whole", {}, orders=0)  # when it was not cut by days yet
    for version, day in enumerate(made):
        bench.commit("orders", day, {day: 3}, raw=0, users=0)
        bench.commit("merged", day, {day: 3}, orders=version)
    bench.arrive("raw", "2026-01-06")
    follow_each_other = made[1:] if writer != DataOverwrite() else made[1:2]
    (plan,) = [one for one in planned(bench).datasets if one.dataset.name == "merged"]
    assert tuple(state.slice.id for state in plan.to_make) == follow_each_other

    reach = Reach(cells={"raw": {"2026-01-06"}})
    follow(SimpleNamespace(graph=bench.graph, store=store), reach)  # type: ignore[arg-type]
    assert tuple(sorted(reach.slices["merged"])) == follow_each_other
    assert len(reach.notes) == (writer != DataOverwrite())


def test_a_stream_is_kept_going_reads_or_has_nothing_new(store: Store):
    shop = Pipeline("shop", start="2026-01-01")
    shop.source("raw", KafkaTopic("broker", "raw"), schema="at timestamp", event_time="at", mode="stream")
    bench = lab(store, shop)
    assert told(bench, planned(bench), "raw") == [(False, "all", "nothing yet")]
    assert told(bench, planned(bench, new={"raw": 1}), "raw") == [(True, "all", "due")]
    owner = this_process()
    store.leases.register(owner, timedelta(hours=1), LOOKED_AT)
    store.leases.acquire("raw", WHOLE_DATASET, owner_id=owner.owner_id, run_id=None, now=LOOKED_AT)
    (kept,) = explain(planned(bench, new={"raw": 1}), bench.graph, store, LOOKED_AT)["raw"]
    assert (kept.runs, kept.status) == (False, "kept going")
    assert kept.reason == f"{owner} keeps the stream going; it is read as it stands"


def test_what_is_read_from_another_target_is_not_made_here(store: Store):
    bench = bench_of(store)
    plan = replace(planned(bench), read_from={"orders": "prod"})
    assert told(bench, plan, "orders") == [(False, "all", "elsewhere")]


def test_a_branch_that_was_not_chosen_names_the_choice(store: Store):
    shop = Pipeline("shop", start="2026-01-01", parameters={"kind": ["delta", "csv"]})
    shop.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    shop.sql("tables", "SELECT * FROM raw", event_time="at")
    shop.sql("files", "SELECT * FROM raw", event_time="at")
    shop.choose("output", ExclusiveChoice(by=ByParameter("kind"), branches={"delta": "tables", "csv": "files"}))
    bench = lab(store, shop)
    bench.arrive("raw", "2026-01-05")
    plan = planned(bench, parameters={"kind": "delta"})
    assert line(bench, plan, "tables", "2026-01-05").runs
    skipped = line(bench, plan, "files", "2026-01-05")
    assert (skipped.runs, skipped.status) == (False, "skipped")
    assert "output" in skipped.policy
