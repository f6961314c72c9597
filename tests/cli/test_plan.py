from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from lakewright.cli.plan_tree import plan_tree, state_lines
from lakewright.model.slices import event_slice
from lakewright.pipelines.decide import DatasetPlan, SliceState
from lakewright.pipelines.definitions import Slicing
from lakewright.pipelines.planning import Plan

from .conftest import Lakewright


def test_the_tree_has_sources_at_its_root_and_every_dataset_once(lakewright: Lakewright, shop: Path):
    result = lakewright("plan")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "├── raw_orders  bronze, by arrival, JsonFiles landing/orders (backfill: take again)" in lines
    assert "│   └── orders  silver, by event day, DataOverwrite (backfill: overwrite)  (also reads users)" in lines
    assert "    └── users  silver, by arrival, Merger by user (backfill: merge)" in lines
    assert sum("  silver, " in line or "  gold, " in line or "  bronze, " in line for line in lines) == 5
    assert any("new: 1 new file" in line for line in lines)


EVERY_EFFECT = """
    from lakewright import (CsvFiles, FileProxy, JsonFiles, KafkaMessages, KafkaTopic, Merger, PassthroughReplicator,
                            Pipeline, PostgresProxy, PostgresTable, StatefulMerger, Whole)

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="id string, at timestamp")
    shop.source("visits", KafkaTopic("broker", "visits"), schema="id string, at timestamp", event_time="at",
                mode="stream")
    shop.replicate("files", CsvFiles("provider"), PassthroughReplicator(), to="copies/files")

    for name, how in {
        "restored": {"writer": StatefulMerger(keys=["id"])},
        "shown": {"into": PostgresProxy("db", "shown"), "inputs": {"orders": Whole()}},
        "exported": {"into": FileProxy("exports"), "inputs": {"orders": Whole()}},
        "alerts": {"into": KafkaMessages("broker", "alerts", key="id")},
        "kept": {"writer": Merger(keys=["id", "at"]), "into": PostgresTable("db", "kept")},
    }.items():
        shop.sql(name, "SELECT * FROM orders", layer="silver", **how)

    shop.add(lambda visits: visits, name="seen", mode="stream", event_time="at")
    shop.add(lambda visits: visits, name="latest", mode="stream", writer=Merger(keys=["id"]))
"""
SHOWN = """
    orders  bronze, by arrival, JsonFiles landing/orders (backfill: take again)
    visits  bronze, by arrival, KafkaTopic (backfill: rewind)
    files  gold, by arrival, CsvFiles provider into FolderCopy (backfill: take again)
    restored  silver, by arrival, StatefulMerger by id (backfill: restore)
    shown  silver, whole, DataOverwrite into PostgresProxy (backfill: new version)
    exported  silver, whole, DataOverwrite into FileProxy (backfill: new version)
    alerts  silver, by arrival, DataOverwrite into KafkaMessages (backfill: send again)
    kept  silver, by arrival, Merger by id, at into PostgresTable (backfill: merge)
    seen  silver, by arrival, adds micro-batches (backfill: rewind)
    latest  silver, by arrival, Merger by id (backfill: rewind)
"""


def test_the_tree_tells_where_each_dataset_goes_and_what_a_backfill_does_to_it(project: Any):
    graph = project({"pipelines/shop.py": EVERY_EFFECT}).graph
    plans = tuple(DatasetPlan(graph[name], graph.slicing[name], (), 0) for name in graph.order)
    screen = Console(width=200, file=io.StringIO())
    screen.print(plan_tree(Plan(plans, datetime(2026, 1, 2, tzinfo=UTC)), graph))
    shown = {line.strip("│├└─ ") for line in screen.file.getvalue().splitlines()}
    assert {line.strip() for line in SHOWN.strip().splitlines()} <= shown


def test_the_plan_ends_with_the_command_to_run(lakewright: Lakewright, shop: Path):
    result = lakewright("plan", "--select", "+orders", "--at", "2026-01-08", "--target", "dev")
    assert result.stderr.splitlines()[-1] == "To do it: lakewright run --select +orders --at 2026-01-08 --target dev"


def test_a_dry_run_is_a_plan(lakewright: Lakewright, shop: Path):
    assert (
        lakewright("run", "--dry-run", "--at", "2026-01-08").stdout == lakewright("plan", "--at", "2026-01-08").stdout
    )
    assert not (shop / ".lakewright" / "lake").exists()


def test_the_plan_as_json_lists_slices_with_status_reason_and_whether_they_are_made(lakewright: Lakewright, shop: Path):
    found = json.loads(lakewright("plan", "--json").stdout)
    told = {"run_time", "datasets", "warnings", "to_make", "error"}
    expected = {"expected_seconds", "critical_path", "slowest_branches", "parallel", "without_past"}
    assert set(found) == told | expected
    orders = next(one for one in found["datasets"] if one["name"] == "orders")
    assert orders["slicing"] == "event"
    assert orders["reads"] == ["raw_orders", "users"]
    assert orders["read_by"] == ["daily_orders"]
    assert (orders["writer"], orders["backfill"]) == ("DataOverwrite", "overwrite")
    assert {"layer", "writer", "new", "live", "fresh", "slices", "place"} <= set(orders)


def test_an_unknown_selection_offers_the_nearest_name(lakewright: Lakewright, shop: Path):
    result = lakewright("plan", "--select", "order")
    assert result.exit_code == 2
    assert "error: There is no dataset 'order'." in result.stderr
    assert "hint: Did you mean 'orders'?" in result.stderr


def test_a_time_that_is_none_ends_with_2(lakewright: Lakewright, shop: Path):
    result = lakewright("plan", "--at", "yesterday")
    assert result.exit_code == 2
    assert "'yesterday' is not a time" in result.stderr


def plan_of(*states: SliceState, live: int = 0) -> DatasetPlan:
    dataset: Any = SimpleNamespace(name="orders")
    return DatasetPlan(dataset, Slicing("event"), states, live)


def test_many_slices_of_one_status_are_folded():
    states = [SliceState(event_slice(f"2026-01-{day:02}"), "missing", "never made") for day in range(5, 32)]
    late = SliceState(event_slice("2026-01-04"), "late", "raw_orders has 3 more rows for it")
    lines = [line for line, _ in state_lines(plan_of(late, *states, live=4))]
    assert lines == [
        "2026-01-04 late: raw_orders has 3 more rows for it",
        "2026-01-05 … 2026-01-31 (27 slices) missing: never made",
        "fresh (3 slices)",
    ]


def test_a_slice_that_is_shown_and_not_made_says_so():
    held = SliceState(event_slice("2026-01-04"), "held", "older than 7 days", make=False)
    assert next(state_lines(plan_of(held, live=1)))[0] == "2026-01-04 held (not made now): older than 7 days"


def test_a_fresh_dataset_counts_its_slices():
    assert [line for line, _ in state_lines(plan_of(live=1))] == ["fresh (1 slice)"]
