from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lakewright.model.findings import Finding
from lakewright.store import Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
SKEW = Finding("visits", "skew", "One key holds half of the rows.", "error", "2026-01-04", "Salt it.")
EMPTY = Finding("users", "volume", "No rows.")


def test_a_finding_comes_back_with_the_time_at_which_it_was_found(store: Store) -> None:
    earlier = replace(EMPTY, found_at=NOW - timedelta(days=1))
    store.findings.add([SKEW, earlier], run_id="r1", now=NOW)
    assert store.findings.latest() == [earlier, replace(SKEW, found_at=NOW)]


def test_the_latest_findings_are_chosen_by_dataset_run_and_number(store: Store) -> None:
    store.findings.add([SKEW, EMPTY], run_id="r1", now=NOW)
    store.findings.add([SKEW], run_id="r2", now=NOW)
    assert [finding.dataset for finding in store.findings.latest("users")] == ["users"]
    assert len(store.findings.latest(run_id="r1")) == 2
    assert len(store.findings.latest(limit=1)) == 1


def test_nothing_found_is_nothing_written(store: Store) -> None:
    store.findings.add([], run_id="r1", now=NOW)
    assert store.findings.latest() == []


def test_a_finding_of_no_run_waits_until_one_tells_it(store: Store) -> None:
    store.findings.add([SKEW, EMPTY], run_id=None, now=NOW)
    assert [finding.dataset for finding in store.findings.waiting("skew")] == ["visits"]
    assert [finding.dataset for finding in store.findings.tell("skew", run_id="r1")] == ["visits"]
    assert store.findings.waiting("skew") == []
    assert [finding.dataset for finding in store.findings.latest(run_id="r1")] == ["visits"]
    assert len(store.findings.waiting("volume")) == 1
