"""The exit code of `lakewright run --continuous`: 3 where guards refused, and nothing else went wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Lakewright

from lakewright.errors import LimitExceeded, TargetError
from lakewright.pipelines.streams.watched import StreamOutcome
from lakewright.pipelines.streams.worker import WorkerSummary

REFUSED = LimitExceeded("paged: too many", dataset="paged", slice_id="arrival-1")
FAILED = TargetError("raw: the broker is gone")


@pytest.mark.parametrize(
    ("errors", "code", "state"),
    [
        ([None, None], 0, "ok"),
        ([REFUSED, None], 3, "refused"),
        ([REFUSED, REFUSED], 3, "refused"),
        ([REFUSED, FAILED], 1, "failed"),
        ([FAILED, None], 1, "failed"),
        ([ValueError("not ours"), REFUSED], 1, "failed"),
    ],
)
def test_streams_that_guards_have_refused_end_with_3_unless_another_one_failed(
    lakewright: Lakewright,
    shop: Path,
    monkeypatch: pytest.MonkeyPatch,
    errors: list[Exception | None],
    code: int,
    state: str,
) -> None:
    summary = WorkerSummary("run-1", [StreamOutcome(f"s{n}", error=error) for n, error in enumerate(errors)])
    monkeypatch.setattr("lakewright.pipelines.project.Project.run_continuous", lambda *_, **__: summary)
    assert lakewright("run", "--continuous").exit_code == code
    told = lakewright("run", "--continuous", "--json")
    assert (told.exit_code, json.loads(told.stdout)["state"]) == (code, state)
