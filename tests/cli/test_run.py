"""What a run shows and how it ends; the run itself is replaced here, and real in test_end_to_end."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, cast

import pytest

from lakewright.cli.run import parse_share
from lakewright.cli.run_progress import _live, _Running
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError, LimitExceeded, StepFailed
from lakewright.masking import MaskedStream, remember
from lakewright.model.receipts import Counters, Receipt
from lakewright.pipelines.progress import Note, Outcome, RunSummary, SliceDone, SliceStarted
from lakewright.pipelines.project import Project

from .conftest import Lakewright

Answer = Callable[[RunSummary], None]


def receipt(dataset: str, slice_id: str, rows: int, **counters: Any) -> Receipt:
    counted = Counters(written=rows, **counters)
    at = datetime(2026, 1, 8, tzinfo=UTC)
    return Receipt(dataset, slice_id, "data", 0, None, 1, at, rows=rows, counters=counted)


def made(dataset: str, slice_id: str, rows: int, **counters: Any) -> Outcome:
    return Outcome(
        dataset, slice_id, "ok", "it was never made", 1.24, receipt=receipt(dataset, slice_id, rows, **counters)
    )


@pytest.fixture
def run_ends_with(monkeypatch: pytest.MonkeyPatch, shop: Path) -> Callable[..., dict[str, Any]]:
    """Let the run tell these outcomes and end in this state; returns what it was called with."""

    def end(state: str, outcomes: Sequence[Outcome] = (), **fields: Any) -> dict[str, Any]:
        called: dict[str, Any] = {}

        def run(self: Project, select: Sequence[str] = (), *, listener: Any, **options: Any) -> RunSummary:
            called.update(options, select=list(select))
            print("a step that prints")  # noqa: T201
            for outcome in outcomes:
                listener(SliceStarted(outcome.dataset, outcome.slice_id, outcome.reason))
                listener(SliceDone(outcome))
            for note in fields.get("notes", ()):
                listener(note)
            return RunSummary("20260108-000000-abc", state, list(outcomes), seconds=14.21, **fields)  # type: ignore[arg-type]

        for name in ("run", "backfill", "retry"):
            monkeypatch.setattr(Project, name, run)
        return called

    return end


def test_a_run_with_nothing_to_do_says_that_everything_is_fresh(lakewright: Lakewright, run_ends_with: Any):
    run_ends_with("ok", fresh=["a", "b", "c", "d", "e"])
    result = lakewright("run")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == "Everything is fresh: 5 datasets, nothing to do."


def test_a_run_tells_each_slice_on_standard_error_and_accounts_on_standard_output(
    lakewright: Lakewright, run_ends_with: Any
):
    run_ends_with(
        "ok",
        [
            made("raw_orders", "arrival-1", 3389, read=3389, rejected={"unreadable record": 2}),
            made("orders", "2026-01-05", 3200, read=3387, rejected={"has_id": 7}, duplicates=180, late=0),
            made("daily_orders", "2026-01-05", 4, read=None),
        ],
    )
    result = lakewright("run")
    assert result.exit_code == 0
    told = result.stderr.splitlines()
    assert "raw_orders arrival-1 ok 1.2 s, 3,389 rows" in told
    assert told[-1] == "Done in 14.2 s. 3 ok, 0 warnings, 0 failed, 0 skipped."
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["dataset", "slice", "why", "read", "kept", "rejected", "duplicates", "late", "seconds"]
    assert lines[2][-9:] == ["3,389", "3,387", "2", "(unreadable", "record", "2)", "-", "-", "1.2"]
    assert lines[3][-8:] == ["3,387", "3,200", "7", "(has_id", "7)", "180", "0", "1.2"]
    # Unknown is not the same as not applicable.
    assert lines[4][-6:] == ["?", "4", "-", "-", "?", "1.2"]


def test_what_a_step_prints_is_no_data(lakewright: Lakewright, run_ends_with: Any):
    run_ends_with("ok", [made("raw_orders", "arrival-1", 1, read=1)])
    result = lakewright("run", "--json")
    assert json.loads(result.stdout)["state"] == "ok"
    assert "a step that prints" in result.stderr


def test_a_failed_run_ends_with_1_and_the_error_and_its_hint(lakewright: Lakewright, run_ends_with: Any):
    error = StepFailed("shop.py:9: the step orders failed.", hint="Does it end with return?")
    run_ends_with("failed", [Outcome("orders", "2026-01-05", "failed", "late", 0.4, error=error)], failed=["orders"])
    result = lakewright("run")
    assert result.exit_code == 1
    assert (
        "orders 2026-01-05 failed 0.4 s: shop.py:9: the step orders failed. Does it end with return?" in result.stderr
    )
    assert "error: shop.py:9: the step orders failed.\nhint: Does it end with return?\n" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Failed in 14.2 s.")


def test_an_unexpected_error_is_told_in_one_line(lakewright: Lakewright, run_ends_with: Any):
    error = KeyError("x\n  a plan of many lines")
    run_ends_with("failed", [Outcome("orders", "2026-01-05", "failed", "late", 0.4, error=error)], failed=["orders"])
    result = lakewright("run")
    assert result.exit_code == 1
    assert "hint: The same command with --debug shows where it happened." in result.stderr


def test_a_guard_that_refused_ends_with_3(lakewright: Lakewright, run_ends_with: Any):
    error = LimitExceeded("30% broke a rule. Nothing was published.", dataset="orders", slice_id="2026-01-05")
    run_ends_with("refused", [Outcome("orders", "2026-01-05", "refused", "late", 0.4, error=error)], failed=["orders"])
    result = lakewright("run", "--json")
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert found["error"]["type"] == "LimitExceeded"
    assert found["slices"][0]["state"] == "refused"


def test_an_interrupted_run_ends_with_130(lakewright: Lakewright, run_ends_with: Any):
    run_ends_with("interrupted", skipped=["orders"])
    result = lakewright("run")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1].startswith("Interrupted in 14.2 s.")


def test_ctrl_c_ends_with_130_and_no_stack_trace(lakewright: Lakewright, monkeypatch: pytest.MonkeyPatch, shop: Path):
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Project, "run", stop)
    result = lakewright("run")
    assert result.exit_code == 130
    assert result.stderr == "error: Interrupted.\n"


def test_the_run_as_json_has_stable_keys(lakewright: Lakewright, run_ends_with: Any):
    run_ends_with("ok", [made("orders", "2026-01-05", 3, read=4, duplicates=1)], notes=[Note("look", "warning")])
    found = json.loads(lakewright("run", "--json").stdout)
    assert list(found) == [
        *("run_id", "state", "exit_code", "seconds", "slices", "fresh", "skipped", "failed", "notes", "message"),
        *("error", "errors"),
    ]
    assert set(found["slices"][0]) == {
        *("dataset", "slice", "state", "reason", "seconds", "attempts", "version", "rows", "counters", "error"),
    }
    assert found["slices"][0]["counters"]["duplicates"] == 1
    assert found["slices"][0]["counters"]["held"] is None


def test_quiet_leaves_only_warnings_and_errors(lakewright: Lakewright, run_ends_with: Any):
    run_ends_with("ok", [made("orders", "2026-01-05", 3, read=3)], notes=[Note("one"), Note("two", "warning")])
    result = lakewright("run", "--quiet")
    assert result.stdout == ""
    assert result.stderr == "a step that prints\nwarning: two\n"


def test_options_reach_the_project(lakewright: Lakewright, run_ends_with: Any):
    called = run_ends_with("ok")
    words = ["--select", "orders+", "-s", "users", "--at", "2026-01-08", "--slice", "2026-01-05", "--wait", "5"]
    lakewright("run", *words, "--parallel", "3", "--sample", "1%", "--param", "layout=new")
    assert called == {
        "select": ["orders+", "users"],
        "at": "2026-01-08",
        "again": True,
        "slices": ["2026-01-05"],
        "parallel": 3,
        "wait_seconds": 5.0,
        "sample": 0.01,
        "empty": False,
        "order": None,
        "parameters": {"layout": "new"},
    }


def test_a_share_that_is_none_ends_with_2_before_anything_starts(lakewright: Lakewright):
    assert parse_share("0.5%") == 0.005
    for text in ("0", "120%", "some"):
        with pytest.raises(ConfigurationError):
            parse_share(text)
    assert lakewright("run", "--sample", "some").exit_code == 2


def test_retry_ends_like_a_run(lakewright: Lakewright, run_ends_with: Any):
    run_ends_with("ok", [made("orders", "2026-01-05", 3, read=3)])
    assert lakewright("retry").stderr.splitlines()[-1].startswith("Done in 14.2 s. 1 ok")


def test_retry_without_a_run_ends_with_2(lakewright: Lakewright, shop: Path):
    result = lakewright("retry")
    assert result.exit_code == 2
    assert "There is no run to retry yet." in result.stderr


def test_a_backfill_shows_what_it_makes_and_then_makes_it(
    lakewright: Lakewright, run_ends_with: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        Project, "backfill", lambda self, start, end, **options: RunSummary("x", "ok", fresh=["orders"])
    )
    result = lakewright("backfill", "--from", "2026-01-05", "--to", "2026-01-06", "--select", "orders")
    assert result.exit_code == 0
    assert "orders  silver, by event day" in result.stdout
    assert "daily_orders  gold" in result.stdout
    assert "raw_orders  bronze" not in result.stdout


def test_a_backfill_that_says_nothing_to_repeat_ends_with_2(lakewright: Lakewright, shop: Path):
    result = lakewright("backfill")
    assert result.exit_code == 2
    assert "--from 2026-01-01" in result.stderr


def test_a_dry_backfill_makes_nothing(lakewright: Lakewright, run_ends_with: Any):
    called = run_ends_with("ok")
    assert lakewright("backfill", "--outdated", "--dry-run").exit_code == 0
    assert called == {}


def test_the_slices_under_way_are_shown_with_their_time():
    now = [0.0]
    running = _Running(lambda: now[0])
    running.note(SliceStarted("orders", "2026-01-05", "late"))
    now[0] = 7.0
    running.note(SliceStarted("users", "arrival-1", "due"))
    assert str(running.lines()) == "  orders 2026-01-05 ... 7 s\n  users arrival-1 ... 0 s"
    running.note(SliceDone(Outcome("orders", "2026-01-05", "ok", "late", 7.0)))
    assert str(running.lines()) == "  users arrival-1 ... 0 s"


def test_a_secret_that_is_wider_than_the_terminal_is_masked_where_a_project_prints_or_logs_it():
    from rich.console import Console

    token = "Lv71-" + "0123456789 abcdef" * 12
    remember(token)
    shown = io.StringIO()
    screen = Screen()
    screen.__dict__["err"] = Console(file=cast(TextIO, MaskedStream(shown)), width=80, force_terminal=True)
    with _live(screen):
        print("token is", token)  # noqa: T201
        print("token is", token, file=sys.stderr)  # noqa: T201
        handler = logging.StreamHandler()
        handler.emit(logging.makeLogRecord({"msg": f"logged {token}"}))
    assert shown.getvalue().count("***") == 3
    assert "0123456789" not in shown.getvalue()


def test_a_narrow_terminal_gets_the_account_without_the_reasons(shop: Path):
    from rich.console import Console

    from lakewright.cli.run_report import made_table

    outcomes = [made("orders", "2026-01-05", 3200, read=3387, rejected={"has_id": 7}, duplicates=180, late=0)]
    with Project(shop) as project:
        wide, narrow = (made_table(outcomes, project.graph, why=why) for why in (True, False))
    screen = Screen()
    screen.__dict__["out"] = Console(width=90)
    assert not screen.fits(wide)
    assert screen.fits(narrow)
