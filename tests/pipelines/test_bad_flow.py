"""Bad input of flows: circles, datasets that are gone, code that ends the process or never ends. Without Spark."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lakewright.cli.main import app
from lakewright.errors import DefinitionError, StepFailed
from lakewright.model.schedules import OnDatasets
from lakewright.patterns.data_flow.isolated_sequencer import After, WhenReady
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.linking import check_links
from lakewright.pipelines.make import call_step
from lakewright.pipelines.project import Project
from lakewright.pipelines.time_limits import TookTooLong, stopped_after
from lakewright.testing.plugin import write_files


def pair(**options: Any) -> list[Pipeline]:
    """Two pipelines, of which the second reads the first."""
    one, two = Pipeline("one", **options), Pipeline("two", schedule=After("one"))
    one.sql("upper", "SELECT * FROM raw")
    two.sql("lower", "SELECT * FROM upper")
    return [one, two]


def test_circles_across_pipelines_are_refused_by_name(tmp_path: Path) -> None:
    one, two = Pipeline("one"), Pipeline("two")
    one.sql("upper", "SELECT * FROM lower")
    two.sql("lower", "SELECT * FROM upper")
    with pytest.raises(DefinitionError, match=r"in a circle: (upper -> lower -> upper|lower -> upper -> lower)"):
        Graph([*one.datasets, *two.datasets])
    for options in (
        {"schedule": OnDatasets("lower")},
        {"schedule": After("two")},
        {"waits_for": WhenReady("lower")},
    ):
        with pytest.raises(DefinitionError, match=r"wait for each other in a circle: (one -> two|two -> one)"):
            check_links(pair(**options), tmp_path)


CONSUMERS = """
    from lakewright import (
        After, ByDate, ExclusiveChoice, JsonFiles, OnDatasets, Pipeline, UnalignedFanIn, WhenReady
    )

    visits = Pipeline("visits", start="2026-01-01")
    visits.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")
    visits.sql("clean", "SELECT * FROM raw", layer="silver", event_time="at")
    below = Pipeline("below", {link})
    below.sql("figures", "SELECT * FROM {read}", event_time="at")
    below.sql("others", "SELECT * FROM {read}", event_time="at")
"""


def plan(folder: Path, text: str) -> Result:
    write_files(folder, {"lakewright.toml": 'name = "shop"\n', "pipelines/shop.py": text})
    (folder / "landing").mkdir(exist_ok=True)
    return CliRunner().invoke(app, ["plan", "--project", str(folder)])


@pytest.mark.parametrize(
    ("link", "read", "word"),
    [
        ('start="2026-01-01"', "clean", "figures reads 'clean', which no pipeline declares"),
        ('schedule=OnDatasets("clean")', "raw", "OnDatasets names 'clean', which no pipeline of this project makes"),
        ('schedule=After("visits", task="clean")', "raw", "After names the unknown task 'clean'"),
        ('waits_for=WhenReady("clean")', "raw", "WhenReady names the unknown dataset 'clean'"),
    ],
)
def test_a_dataset_that_was_removed_is_missed_by_each_of_its_consumers_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str, read: str, word: str
) -> None:
    monkeypatch.setattr(Project, "spark", lambda self: pytest.fail("Spark was started"))
    text = CONSUMERS.replace("{link}", link).replace("{read}", read)
    assert plan(tmp_path, text).exit_code == 0
    gone = "\n".join(line for line in text.splitlines() if '"clean", "SELECT' not in line)
    result = plan(tmp_path, gone)
    assert result.exit_code == 2
    assert word in result.stderr
    assert "shop.py:" in result.stderr


def test_code_of_the_project_that_ends_the_process_has_failed_whatever_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # While its file is read,
    result = plan(tmp_path, "import sys\nsys.exit(0)\n")
    assert result.exit_code == 2
    assert "shop.py:2: the file ends the process (sys.exit(0))" in result.stderr

    # in a step,
    shop = Pipeline("shop")
    shop.add(lambda raw: sys.exit(0), name="clean")
    (dataset,) = shop.datasets
    graph = SimpleNamespace(owners={}, datasets={})
    current: Any = SimpleNamespace(
        dataset=dataset, slice=SimpleNamespace(id="whole"), shop=SimpleNamespace(graph=graph)
    )
    given: Any = SimpleNamespace(given=SimpleNamespace(parameter="raw"), frame=None)
    with pytest.raises(StepFailed, match="clean failed on slice whole: SystemExit: 0"):
        call_step(current, [given])

    # and wherever else.
    def ends(self: Project, *words: object, **options: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(Project, "run", ends)
    monkeypatch.setattr(Project, "spark", lambda self: pytest.fail("Spark was started"))
    write_files(tmp_path, {"pipelines/shop.py": CONSUMERS.replace("{link}", "").replace("{read}", "clean")})
    result = CliRunner().invoke(app, ["run", "--project", str(tmp_path)])
    assert result.exit_code == 1
    assert "error: Something in the project ended the process (sys.exit(0))." in result.stderr


def go_on(caught: list[int]) -> None:
    """A loop that also catches whatever stops it, once."""
    while True:
        try:
            while True:
                time.sleep(0.001)
        except Exception:
            caught.append(1)
            if len(caught) == 2:
                raise


def test_a_loop_of_a_steps_own_is_left_after_its_time_and_a_call_to_spark_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakewright.pipelines.time_limits._LOOK", 0.01)
    caught: list[int] = []
    with pytest.raises(TookTooLong), stopped_after(timedelta(seconds=0.02)):
        go_on(caught)
    assert caught == [1, 1]

    inside: dict[str, Any] = {"__name__": "pyspark.sql.connect.client", "time": time}
    exec("def call():\n    time.sleep(0.1)\n    return 'answer'", inside)
    with stopped_after(timedelta(seconds=0.02)):
        assert inside["call"]() == "answer"
    with stopped_after(None):
        pass
