"""A project whose files are changed while a run goes on: no slice is made of two versions of it."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from lakewright.errors import ConfigurationError
from lakewright.pipelines import computes
from tests.pipelines.shop import land, ok, rows_of

# The test run's server: what is seen here is not that it is a Java of its own. The other setting makes it a Spark of
# its own, also where the tests themselves work over that server.
SETTINGS = """
    name = "heavy"
    [targets.dev.compute.heavy]
    master = "{url}"
    spark = {{ "spark.sql.shuffle.partitions" = 3 }}
"""
EDITED = """
    from pathlib import Path

    from lakewright import JsonFiles, Pipeline

    main = Pipeline("main", start="2026-01-01")
    main.source("devices", JsonFiles("landing/devices"), schema="type string")

    @main.dataset()
    def near(devices):
        '''Made by the run itself, and while it is, somebody saves a file of the project.'''
        saved = Path(__file__).parent.parent / "saved.py"
        if saved.exists():
            saved.replace(__file__)
        return devices

    @main.dataset(compute="heavy")
    def far(near):
        return near.selectExpr("type", "1 AS edition")

    @main.dataset(compute="heavy", layer="silver")
    def moved(near):
        return near

    main.sql("gone", "SELECT * FROM near", compute="heavy")
"""
NEXT = (
    textwrap.dedent(EDITED)
    .replace("1 AS edition", "2 AS edition")
    .replace('layer="silver"', 'layer="gold"')
    .replace('main.sql("gone", "SELECT * FROM near", compute="heavy")', "")
)


def test_what_was_changed_while_the_run_went_on_is_not_made_and_the_next_run_makes_it(
    project: Any, connect_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[Any] = []
    begin = computes.ComputeProcess

    def counted(*given: Any, **options: Any) -> Any:
        workers.append(begin(*given, **options))
        return workers[-1]

    monkeypatch.setattr(computes, "ComputeProcess", counted)

    def run_while(saved: str) -> dict[str, str]:
        """What a run says of each slice that failed; meanwhile these words become the project's file."""
        opened = project({"lakewright.toml": SETTINGS.format(url=connect_url), "pipelines/main.py": EDITED})
        (opened.folder / "saved.py").write_text(saved)
        summary = opened.run()
        assert {type(error) for error in summary.errors} == {ConfigurationError}
        assert not any(opened.lake.has(name) for name in ("far", "moved", "gone"))
        assert opened.store.leases.held(opened._now()) == []
        assert opened.store.steps.open_steps() == []
        return {f"{one.dataset} {one.slice_id}": str(one.error) for one in summary.outcomes if one.error is not None}

    home = project().folder
    land(home, "1.json", [{"type": "phone"}], folder="devices")
    told = run_while("def far(:\n")
    assert [*sorted(told)] == ["far arrival-1", "gone arrival-1", "moved arrival-1"]
    (words,) = set(told.values())
    assert words.startswith("The files of the project could be read when the run began, and no longer can. Nothing was")
    assert "main.py:1: this is not valid Python: invalid syntax. Mend what was changed meanwhile" in words
    assert len(workers) == 1, "what does not pass by itself is not tried for every slice"

    land(home, "2.json", [{"type": "tablet"}], folder="devices")
    told = run_while(NEXT)
    for slice_id in ("arrival-1", "arrival-2"):
        assert ": far was changed while the run was going on. Nothing was written." in told[f"far {slice_id}"]
        assert ": where the tables of moved lie was changed while the run" in told[f"moved {slice_id}"]
        assert told[f"gone {slice_id}"].startswith("gone was taken out of the project while the run was going on. Noth")
    assert len(told) == 6

    opened = project()
    summary: Any = ok(opened.run())
    assert {one.dataset for one in summary.made} == {"far", "moved"}
    assert [tuple(row) for row in rows_of(opened, "far")] == [("phone", 2), ("tablet", 2)]
    assert [row["type"] for row in rows_of(opened, "moved")] == ["phone", "tablet"]
    assert opened.lake.resolve("moved").endswith("/gold/moved")
