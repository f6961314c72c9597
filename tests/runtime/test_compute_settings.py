"""Computes of a target: what differs from its own Spark, and nothing where nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError
from lakewright.runtime.doctor import checks
from lakewright.runtime.settings import Target, load_settings

FILE = """
[targets.prod]
master = "spark://a.example.com:7077"
driver_memory = "1g"
spark = { "spark.executor.cores" = 2, "spark.executor.memory" = "8g" }

[targets.prod.compute.big]
spark.executor.memory = "64g"

[targets.prod.compute.here]
master = "local[2]"
driver_memory = "3g"
fast_start = true

[targets.prod.compute.server]
master = "sc://b.example.com:15002/;token=secret://env/SPARK_TOKEN"
spark = { "spark.sql.shuffle.partitions" = 8 }

[targets.prod.compute.same]
[targets.prod.compute.also_the_same]
driver_memory = "1g"
"""


def settings(folder: Path, text: str = FILE) -> Target:
    (folder / "lakewright.toml").write_text(text, encoding="utf-8")
    return load_settings(folder, environ={}).target


def test_a_compute_says_what_differs_and_an_empty_one_is_the_target_itself(tmp_path: Path) -> None:
    target = settings(tmp_path)
    big, here, server = (target.with_compute(name) for name in ("big", "here", "server"))
    assert (big.master, big.spark["spark.executor.cores"], big.spark["spark.executor.memory"]) == (
        "spark://a.example.com:7077", "2", "64g",
    )  # fmt: skip
    assert (here.master, here.driver_memory, here.fast_start, here.is_local) == ("local[2]", "3g", True, True)
    assert here.spark == target.spark
    assert server.spark == {"spark.sql.shuffle.partitions": "8"}, "a server is not asked for what starts another Spark"
    assert all(one.lake == target.lake and one.store == target.store for one in (big, here, server))
    assert target.with_compute("same") is target
    assert target.with_compute("also_the_same") is target
    assert "secret://env/SPARK_TOKEN" in {secret.reference for secret in target.secrets}


def test_a_trial_makes_every_step_in_its_own_session(tmp_path: Path) -> None:
    settings(tmp_path)
    trial = load_settings(tmp_path, environ={}).scratch("sample").target
    assert [trial.with_compute(name) is trial for name in ("big", "here", "server")] == [True, True, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[targets.dev.compute.big]\nmastr = "x"', ["'targets.dev.compute.big.mastr'", "Did you mean 'master'?"]),
        ('[targets.dev.compute.big]\nlake = "x"', ["'targets.dev.compute.big.lake'", "Known: master, spark"]),
        ('[targets.dev.compute.big]\ndriver_memory = "lots"', ["'targets.dev.compute.big.driver_memory'", '"2g"']),
        ('[targets.dev.compute."big one"]', ["'big one' is no name for a compute"]),
        ('[targets.dev.compute.big]\nmaster = "sc://h/;token=abc"', ["compute big", "'token' as plain text"]),
        (
            '[targets.dev.compute.big]\nspark = { "spark.driver.x" = "secret://env/X" }',
            ["compute big", "cannot be a secret"],
        ),
    ],
)
def test_a_wrong_compute_is_refused_with_its_place(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings(tmp_path, text)
    for word in [str(tmp_path / "lakewright.toml"), *words]:
        assert word in str(refused.value)
    assert "abc" not in str(refused.value)


def test_no_variable_of_the_environment_holds_a_table(tmp_path: Path) -> None:
    settings(tmp_path)
    environ = {"LAKEWRIGHT_COMPUTE": "x", "LAKEWRIGHT_MASTER": "local[3]"}
    target = load_settings(tmp_path, environ=environ).target
    assert (target.master, target.with_compute("big").master) == ("local[3]", "local[3]")
    assert target.with_compute("here").master == "local[2]"


def test_doctor_looks_at_every_compute_that_is_another_spark(tmp_path: Path) -> None:
    settings(tmp_path, '[targets.dev.compute.odd]\nmaster = "mesos://h"\n[targets.dev.compute.own]')
    found = {check.name: check for check in checks(load_settings(tmp_path, environ={}))}
    assert found["Master (odd)"].state == "fail"
    assert not [name for name in found if "own" in name]
