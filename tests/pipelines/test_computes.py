"""Compute per step: one run over several Sparks, and what becomes of it when one of them, or the run, is killed."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lakewright.cli.main import app
from lakewright.errors import (
    ConfigurationError,
    DefinitionError,
    LakewrightError,
    LeaseHeldError,
    LimitExceeded,
    MissingColumnsError,
    StepFailed,
)
from lakewright.model.identity import Identity
from lakewright.model.processes import process_started
from lakewright.pipelines import computes
from lakewright.pipelines.compute_messages import ToldError
from lakewright.pipelines.compute_options import check_computes
from lakewright.pipelines.computes import compute_of, continuous_compute, with_compute
from lakewright.pipelines.declare import Pipeline
from lakewright.runtime.services.processes import identify, wait_until_gone
from lakewright.runtime.settings import Target, load_settings
from lakewright.testing.plugin import write_files
from tests.pipelines.shop import ok
from tests.pipelines.streaming import until
from tests.processes import LAKEWRIGHT, environment

BIG = {"big": {"master": "spark://h:7077"}, "other": {"master": "local[1]"}, "own": {}}


def steps(mode: Any = "batch", **asked: str | None) -> Pipeline:
    """Steps by name, each with the compute that it asks for."""
    pipeline = Pipeline("main", start="2026-01-01")
    for name, compute in asked.items():
        pipeline.add(lambda raw: raw, name=name, compute=compute, mode=mode)
    return pipeline


def test_a_compute_that_the_target_does_not_have_is_refused_with_the_lines_that_mend_it(tmp_path: Path) -> None:
    datasets = steps(heavy="bigg").datasets
    with pytest.raises(DefinitionError) as refused:
        check_computes(datasets, Target.at(tmp_path, name="prod", compute=BIG))
    told = str(refused.value)
    assert "test_computes.py" in told
    assert "heavy asks for the compute 'bigg', which the target 'prod' does not have. It has big, other, own." in told
    assert "Did you mean 'big'?" in told
    assert "[targets.prod.compute.bigg]\nmaster = " in told
    with pytest.raises(DefinitionError, match=r"It has none\. Nothing was started\. Add it to lakewright\.toml"):
        check_computes(datasets, Target.at(tmp_path))
    with pytest.raises(DefinitionError, match="heavy: compute names a table"):
        steps(heavy=3)  # type: ignore[arg-type]


def test_a_step_is_made_in_the_targets_own_session_unless_its_compute_is_another_spark(tmp_path: Path) -> None:
    target = Target.at(tmp_path, compute=BIG)
    asked = {one.name: compute_of(target, one) for one in steps(a=None, b="own", c="big").datasets}
    assert asked == {"a": None, "b": None, "c": "big"}
    write_files(tmp_path, {"lakewright.toml": 'name = "shop"\n[targets.dev.compute.big]\nmaster = "spark://h:7077"\n'})
    settings = with_compute(load_settings(tmp_path, environ={}), "big")
    assert (settings.target.master, settings.target.spark) == (
        "spark://h:7077", {"spark.app.name": "lakewright shop, big"},
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_streams_that_are_kept_going_share_one_spark_or_are_told_to_go_apart(tmp_path: Path) -> None:
    target = Target.at(tmp_path, name="prod", compute=BIG)
    assert continuous_compute(target, steps("stream", a=None, b="own").datasets, running=True) is None
    alike = steps("stream", a="big", b="big").datasets
    assert continuous_compute(target, alike, running=False) == "big"
    with pytest.raises(ConfigurationError, match=r"has started already\. Nothing was started"):
        continuous_compute(target, alike, running=True)
    with pytest.raises(ConfigurationError) as refused:
        continuous_compute(target, steps("stream", a="big", b=None, c="big").datasets, running=False)
    assert "a, c: big; b: its own Spark" in str(refused.value)
    assert "`lakewright run --continuous --select a --select c` & `lakewright run --continuous --select b`" in str(
        refused.value
    )


@pytest.mark.parametrize(
    "error",
    [
        StepFailed("clean failed", hint="Mend it."),
        LimitExceeded("too many", dataset="clean", slice_id="2026-01-01", share=0.5),
        LeaseHeldError("somebody else", name="clean", owner="me"),
        MissingColumnsError(pattern="Merger", missing=["idd"], present=["id"]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_from_the_worker_as_it_was(error: LakewrightError) -> None:
    told = pickle.loads(pickle.dumps(ToldError.of(error))).error()
    assert (type(told), str(told), told.exit_code) == (type(error), str(error), error.exit_code)
    assert vars(told) == vars(error)


PLANNED = """
    from lakewright import JsonFiles, Pipeline

    main = Pipeline("main", start="2026-01-01")
    main.source("devices", JsonFiles("landing"), schema="type string", compute="big")
    main.sql("kinds", "SELECT DISTINCT type FROM devices", compute="big")
"""


def test_the_plan_shows_what_computes_make_and_refuses_one_that_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")

    def plan(*words: str) -> Any:
        return CliRunner().invoke(app, ["plan", *words, "--project", str(tmp_path)])

    write_files(tmp_path, {"lakewright.toml": "[targets.dev.compute.big]\n", "pipelines/main.py": PLANNED})
    assert {one["name"]: one["compute"] for one in json.loads(plan("--json").stdout)["datasets"]} == {
        "devices": "big", "kinds": "big",
    }  # fmt: skip
    for words in ([], ["--graph"], ["--explain"], ["--mermaid"]):
        assert "compute big" in plan(*words).stdout
    write_files(tmp_path, {"lakewright.toml": 'name = "test"\n'})
    refused = plan()
    assert refused.exit_code == 2
    assert "[targets.dev.compute.big]" in refused.stderr


SPLIT = """
    import os
    from pathlib import Path

    from lakewright import JsonFiles, Merger, Pipeline
    from pyspark.sql import functions as F

    HERE = Path(__file__).parent.parent
    CONF = ("spark.app.id", "spark.app.name", "spark.master", "spark.driver.memory", "spark.sql.shuffle.partitions")

    main = Pipeline("main", start="2026-01-01")
    main.source("devices", JsonFiles("landing"), schema="type string")

    def told(rows):
        '''Where it was made, and with which settings.'''
        conf = rows.sparkSession.conf
        shown = {name.rpartition(".")[2]: F.lit(conf.get(name, "unknown")) for name in CONF}
        return rows.withColumns({**shown, "process": F.lit(os.getpid())})

    @main.dataset(layer="gold", compute="cpu")
    def counted(devices):
        return told(devices)

    @main.dataset(layer="gold", compute="memory")
    def sorted_devices(devices):
        print("sorting")
        if not (HERE / "killed").exists():
            (HERE / "killed").touch()
            devices.sparkSession.sparkContext._gateway.proc.kill()
        return told(devices)

    @main.dataset(mode="stream", compute="memory", writer=Merger(keys=["type"]))
    def kept(sorted_devices):
        return sorted_devices.select("type", "process")
"""
PROFILES = """
    name = "split"
    [targets.dev.compute.cpu]
    [targets.dev.compute.memory]
    master = "local[1]"
    driver_memory = "768m"
    fast_start = true
    spark = { "spark.sql.shuffle.partitions" = 3 }
"""


@pytest.mark.shows("06.parallel-split", 6)
def test_branches_of_one_run_are_applications_of_their_own_and_a_killed_one_is_replaced(
    project: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"lakewright.toml": PROFILES, "pipelines/split.py": SPLIT, "landing/1.json": '{"type": "phone"}\n'}
    opened = project(files)
    summary: Any = ok(opened.run(at="2026-01-02"))
    assert {one.dataset: one.attempts for one in summary.made} == {
        "devices": 1, "counted": 1, "sorted_devices": 2, "kept": 1,
    }  # fmt: skip
    told = [note.message for note in summary.notes]
    assert [one for one in told if "the compute 'memory' has ended (its Java process" in one]
    assert "sorting" in capsys.readouterr().err

    (cpu,), (memory,) = opened.lake.read("counted").collect(), opened.lake.read("sorted_devices").collect()
    assert (memory["name"], memory["master"], memory["memory"], memory["partitions"]) == (
        "lakewright split, memory", "local[1]", "768m", "3",
    )  # fmt: skip
    assert cpu["id"] != memory["id"]
    assert cpu["process"] == os.getpid() != memory["process"]
    assert [cpu["type"], memory["type"]] == ["phone"] * 2
    assert [tuple(row) for row in opened.lake.read("kept").collect()] == [("phone", memory["process"])]
    assert process_started(memory["process"]) is None, "it has ended with its run"

    made = [opened.store.receipts.history(name)[0] for name in ("counted", "sorted_devices")]
    assert made[0].inputs == made[1].inputs
    assert {one.run_id for one in made} == {summary.run_id}
    assert opened.store.leases.held(opened._now()) == []

    monkeypatch.setattr(computes, "ComputeProcess", None)
    assert not ok(opened.run(at="2026-01-02")).outcomes  # type: ignore[attr-defined]


FAR = """
    import os
    import time
    from pathlib import Path

    from lakewright import JsonFiles, Pipeline
    from pyspark.sql import functions as F

    HERE = Path(__file__).parent.parent

    main = Pipeline("main", start="2026-01-01")
    main.source("devices", JsonFiles("landing"), schema="type string")

    def told(rows):
        return rows.withColumns({"engine": F.lit(type(rows).__module__), "process": F.lit(os.getpid())})

    @main.dataset(compute="server", retries=1)
    def far(devices):
        (HERE / "at_work").write_text(str(os.getpid()))
        while not (HERE / "go").exists():
            time.sleep(0.05)
        return told(devices)

    @main.dataset()
    def near(devices):
        return told(devices)

    @main.dataset(compute="server", retries=0, timeout="2 seconds")
    def endless(devices):
        devices.sparkSession.range(0, 10**15, 1, 2).where("md5(string(id)) = 'none'").count()
        return devices

    @main.dataset(compute="nowhere")
    def nowhere(devices):
        return devices
"""


def test_one_run_spans_this_spark_and_a_connect_server_whoever_of_them_is_killed(
    project: Any, connect_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other setting makes it a Spark of its own, also where the tests themselves work over that server.
    settings = f"""
        name = "far"
        [targets.dev.compute.server]
        master = "{connect_url}"
        spark = {{ "spark.sql.shuffle.partitions" = 3 }}
        [targets.dev.compute.nowhere]
        master = "sc://127.0.0.1:1"
    """
    opened = project({"lakewright.toml": settings, "pipelines/far.py": FAR, "landing/1.json": '{"type": "phone"}\n'})
    home, command = opened.folder, [sys.executable, *LAKEWRIGHT, "run", "--select", "+far"]
    run = subprocess.Popen(command, cwd=home, env=environment(connect_url), stderr=subprocess.DEVNULL)
    until(lambda: (home / "at_work").exists() and bool((home / "at_work").read_text()))
    worker = identify(int((home / "at_work").read_text()))
    run.kill()
    run.wait()
    assert wait_until_gone([worker], 20), "a worker does not outlive its run, whatever its step waits for"

    (home / "go").touch()
    monkeypatch.setenv("LAKEWRIGHT_FAILPOINT", "published")  # for workers: this process was started without
    summary: Any = ok(opened.run(["+far", "near"], at="2026-01-02"))
    monkeypatch.delenv("LAKEWRIGHT_FAILPOINT")
    outcomes = {one.dataset: (one.state, one.attempts) for one in summary.made}
    assert outcomes == {"far": ("recovered", 2), "near": ("ok", 1)}
    told = [note.message for note in summary.notes]
    assert [one for one in told if "far arrival-1: an earlier run died here" in one]
    assert [one for one in told if "the compute 'server' has ended (killed by SIGKILL)" in one]
    (far,), (near,) = opened.lake.read("far").collect(), opened.lake.read("near").collect()
    assert "connect" in far["engine"]
    assert near["process"] == os.getpid() != far["process"]
    assert {opened.store.receipts.history(name)[-1].run_id for name in ("far", "near")} == {summary.run_id}
    kinds = [Identity.from_json(commit.metadata) for commit in opened.lake.log("far").commits()]
    assert [kind.kind for kind in kinds if kind is not None].count("data") == 1

    failed: Any = opened.run(["endless", "nowhere"], at="2026-01-02")
    errors = sorted(str(error) for error in failed.errors)
    assert "No Spark Connect server answers at sc://127.0.0.1:1" in errors[1]
    assert [one.attempts for one in failed.outcomes if one.dataset == "nowhere"] == [1]
    assert "endless, slice arrival-1 ran longer than its timeout of 2 s and was stopped" in errors[0]
    assert opened.store.steps.open_steps() == []
    assert opened.store.leases.held(opened._now()) == []
