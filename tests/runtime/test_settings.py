from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.runtime.settings import Target, load_settings


def project(folder: Path, text: str = "") -> Path:
    file = folder / "lakewright.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_an_empty_file_is_a_project_with_defaults(tmp_path: Path) -> None:
    project(tmp_path)
    settings = load_settings(tmp_path, environ={})
    assert settings.name == tmp_path.name
    assert settings.pipelines == ("pipelines/*.py",)
    assert settings.target.name == "dev"
    assert settings.target.lake == str(tmp_path / ".lakewright/lake")
    assert settings.target.store == f"sqlite:///{tmp_path}/.lakewright/store.db"
    assert settings.target.master == "local[*]"
    assert (settings.target.outdated, settings.target.outdated_limit) == ("show", 31)


def test_the_file_is_found_from_a_folder_below_and_paths_stay_with_the_file(tmp_path: Path) -> None:
    file = project(tmp_path, '[targets.dev]\nlake = "../lake"\nstore = "state/runs.db"')
    below = tmp_path / "pipelines" / "deep"
    below.mkdir(parents=True)
    settings = load_settings(below, environ={})
    assert settings.file == file
    assert settings.target.lake == str(tmp_path.parent / "lake")
    assert settings.target.store == f"sqlite:///{tmp_path}/state/runs.db"


def test_addresses_are_left_as_they_are(tmp_path: Path) -> None:
    project(tmp_path, '[targets.prod]\nlake = "s3a://b/lake"\nstore = "postgresql://lw:secret@db/lw"')
    target = load_settings(tmp_path, environ={}).target
    assert target.lake == "s3a://b/lake"
    assert target.lake_path is None
    assert target.store == "postgresql://lw:secret@db/lw"


def test_a_password_is_shown_nowhere(tmp_path: Path) -> None:
    project(tmp_path, '[targets.prod]\nstore = "postgresql://lw:p@ss@db/lw"')
    settings = load_settings(tmp_path, environ={})
    assert "p@ss" not in repr(settings)
    assert settings.target.shown_store == "postgresql://lw:***@db/lw"


@pytest.mark.parametrize(
    ("asked", "environ", "chosen"),
    [
        (None, {}, "dev"),
        (None, {"LAKEWRIGHT_TARGET": "prod"}, "prod"),
        ("test", {"LAKEWRIGHT_TARGET": "prod"}, "test"),
    ],
)
def test_the_argument_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, asked: str | None, environ: dict[str, str], chosen: str
) -> None:
    project(tmp_path, 'default_target = "dev"\n[targets.dev]\n[targets.test]\n[targets.prod]')
    assert load_settings(tmp_path, asked, environ=environ).target.name == chosen


def test_the_environment_overrides_the_chosen_target_only(tmp_path: Path) -> None:
    project(tmp_path, "[targets.dev]\nparallel = 3\n[targets.prod]\nparallel = 4")
    environ = {"LAKEWRIGHT_LAKE": "elsewhere", "LAKEWRIGHT_PARALLEL": "8", "LAKEWRIGHT_FAST_START": "true"}
    settings = load_settings(tmp_path, "dev", environ=environ)
    assert settings.target.lake == str(tmp_path / "elsewhere")
    assert (settings.target.parallel, settings.target.fast_start) == (8, True)
    assert settings.targets["prod"].parallel == 4


def test_spark_settings_may_be_quoted_or_dotted(tmp_path: Path) -> None:
    project(tmp_path, '[targets.dev]\nspark.sql.ansi.enabled = false\nspark."spark.x.y" = 4')
    assert load_settings(tmp_path, environ={}).target.spark == {
        "spark.sql.ansi.enabled": "false",
        "spark.x.y": "4",
    }


def test_the_upstreams_are_other_targets_of_the_file_the_nearest_first(tmp_path: Path) -> None:
    staging = '[targets.staging]\nlake = "/staging"\nstore = "/staging.db"\nupstream = "prod"\n'
    prod = '[targets.prod]\nlake = "/lake"\nstore = "/prod.db"\n'
    project(tmp_path, f'[targets.dev]\nupstream = "staging"\n{staging}{prod}')
    settings = load_settings(tmp_path, environ={})
    assert [target.name for target in settings.upstreams] == ["staging", "prod"]
    trial = settings.scratch("sample")
    assert [target.name for target in trial.upstreams] == ["dev", "staging", "prod"]
    assert trial.target.lake == str(tmp_path / ".lakewright" / "sample" / "lake")
    with pytest.raises(UnknownNameError, match="Did you mean 'prod'"):
        load_settings(tmp_path, environ={"LAKEWRIGHT_UPSTREAM": "prd"})


@pytest.mark.parametrize(
    ("dev", "word"),
    [
        ('upstream = "dev"', "has the lake and the store of 'dev'"),
        ('upstream = "prod"', "has the store of 'dev'"),
        ('upstream = "prod"\nlake = "/lake"\nstore = "/dev.db"', "has the lake of 'dev'"),
    ],
)
def test_an_upstream_that_is_not_another_place_is_refused(tmp_path: Path, dev: str, word: str) -> None:
    project(tmp_path, f'[targets.dev]\n{dev}\n[targets.prod]\nlake = "/lake"\n')
    with pytest.raises(ConfigurationError, match=word):
        load_settings(tmp_path, environ={})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('pipeline = ["a.py"]', ["'pipeline'", "Did you mean 'pipelines'?"]),
        ("fast_start = true", ["unknown key 'fast_start'", "write it below [targets.dev]"]),
        ("[targets.dev]\nparalel = 3", ["'targets.dev.paralel'", "Did you mean 'parallel'?"]),
        ("zzz = 1", ["'zzz'", "Known: name, pipelines"]),
        ("name = 3", ["'name'", "valid string", "3"]),
        ("[targets.dev]\nparallel = 0", ["'targets.dev.parallel'", "greater than 0"]),
        ('[targets.dev]\noutdated = "hide"', ["'targets.dev.outdated'", "'show' or 'run'", "'hide'"]),
        ('[targets.dev]\ndriver_memory = "lots"', ["'targets.dev.driver_memory'", '"2g"']),
        ('name = "a\n', [":1:"]),
        ("name = = 3", [":1:8:", "TOML"]),
    ],
)
def test_a_wrong_file_is_refused_with_place_and_cure(tmp_path: Path, text: str, words: list[str]) -> None:
    file = project(tmp_path, text)
    with pytest.raises(ConfigurationError) as error:
        load_settings(tmp_path, environ={})
    for word in [str(file), *words]:
        assert word in str(error.value)


def test_every_problem_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    project(tmp_path, "nam = 1\n[targets.dev]\nparallel = 0")
    with pytest.raises(ConfigurationError) as error:
        load_settings(tmp_path, environ={})
    assert "'nam'" in error.value.message
    assert "'targets.dev.parallel'" in error.value.message


def test_a_wrong_variable_is_named_as_such(tmp_path: Path) -> None:
    project(tmp_path)
    with pytest.raises(ConfigurationError, match="environment: 'LAKEWRIGHT_PARALLEL' should be"):
        load_settings(tmp_path, environ={"LAKEWRIGHT_PARALLEL": "many"})


def test_an_unknown_target_offers_the_nearest(tmp_path: Path) -> None:
    project(tmp_path, "[targets.dev]\n[targets.prod]")
    with pytest.raises(UnknownNameError, match="Did you mean 'prod'"):
        load_settings(tmp_path, "prodd", environ={})


def test_several_targets_need_a_default(tmp_path: Path) -> None:
    project(tmp_path, "[targets.a]\n[targets.b]")
    with pytest.raises(ConfigurationError, match="default_target"):
        load_settings(tmp_path, environ={})


def test_without_a_file_the_places_are_listed_in_order(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        load_settings(tmp_path, environ={})
    text = str(error.value)
    assert text.index(str(tmp_path / "lakewright.toml")) < text.index(str(tmp_path.parent / "lakewright.toml"))
    assert "lakewright init NAME" in text


def test_settings_are_frozen(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        Target.at(tmp_path).parallel = 3  # type: ignore[misc]


def test_reading_settings_loads_neither_spark_nor_the_store() -> None:
    code = (
        "import sys, lakewright.runtime.settings\n"
        "print([name for name in ('pyspark', 'sqlalchemy') if name in sys.modules])"
    )
    src = Path(__file__).parents[2] / "src"
    shown = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(src)}, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"
