"""What every command has in common: help, wrong usage, errors for people and for scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakewright.cli.commands import COMMANDS, build

from .conftest import Lakewright


def test_all_commands_are_there():
    assert set(COMMANDS) == {
        *("init", "demo", "doctor", "plan", "run", "retry", "backfill", "status", "ready", "filters", "show", "sql"),
        *("rollback", "repartition", "maintain"),
        *("cancel", "unlock", "adopt", "patterns", "store rebuild", "store upgrade", "spark packages", "spark archive"),
        *("services up", "services status", "services down", "stream show", "stream rewind", "stream move"),
        *("up", "schedules", "consumers", "pause", "resume", "work", "export airflow"),
        *("listen", "triggers list", "triggers show", "triggers replay", "triggers retire"),
        *("dead-letters list", "dead-letters show", "dead-letters replay", "dead-letters retire"),
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_an_example_and_documents_every_option(lakewright: Lakewright, command: str):
    result = lakewright(*command.split(), "--help")
    assert result.exit_code == 0
    assert result.stdout.strip().splitlines()[-1].strip().startswith(f"Example: lakewright {command}")
    assert "--json" in result.stdout
    built = build(command.split()[-1], COMMANDS[command])
    assert all(getattr(parameter, "help", None) for parameter in built.params)


def test_no_command_shows_the_help(lakewright: Lakewright):
    result = lakewright()
    assert result.exit_code == 0
    assert "Usage: lakewright" in result.stdout


def test_an_unknown_command_ends_with_2_and_the_nearest_one(lakewright: Lakewright):
    result = lakewright("pln")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines()[0].startswith("error: There is no command 'pln'.")
    assert result.stderr.splitlines()[1] == "hint: Did you mean 'plan'?"


def test_an_unknown_command_of_a_group_ends_with_2_and_the_nearest_one(lakewright: Lakewright):
    result = lakewright("store", "rebuidl")
    assert result.exit_code == 2
    assert "hint: Did you mean 'rebuild'?" in result.stderr


def test_an_unknown_option_ends_with_2_and_the_nearest_one(lakewright: Lakewright):
    result = lakewright("run", "--agian")
    assert result.exit_code == 2
    assert "error: `lakewright run` has no option `--agian`." in result.stderr
    assert "hint: Did you mean `--again`?" in result.stderr


@pytest.mark.parametrize(
    "words",
    [["show"], ["run", "--parallel", "x"], ["run", "--wait", "-1"], ["store"], ["sql", "SELECT 1", "--format", "xml"]],
)
def test_wrong_usage_ends_with_2_and_a_hint(lakewright: Lakewright, words: list[str]):
    result = lakewright(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "hint: " in result.stderr
    assert "Traceback" not in result.stderr


def test_wrong_usage_is_one_object_with_json(lakewright: Lakewright):
    result = lakewright("show", "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "UsageError"
    assert error["exit_code"] == 2
    assert set(error) == {"type", "message", "hint", "exit_code"}
    assert result.stderr == ""


@pytest.mark.parametrize("command", ["plan", "run", "retry", "status", "show x", "cancel", "store upgrade"])
def test_outside_a_project_the_error_names_the_places_looked_in(lakewright: Lakewright, command: str):
    result = lakewright(*command.split())
    assert result.exit_code == 2
    assert "error: There is no project here" in result.stderr
    assert "hint: To start a project: lakewright init NAME" in result.stderr


def test_an_error_with_json_has_type_message_hint_and_exit_code(lakewright: Lakewright):
    result = lakewright("plan", "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "ConfigurationError"
    assert error["hint"] == "To start a project: lakewright init NAME"


@pytest.mark.parametrize("words", [["--debug", "plan"], ["plan", "--debug"]])
def test_only_debug_shows_a_stack_trace(lakewright: Lakewright, words: list[str]):
    assert "Traceback" in lakewright(*words).stderr
    assert "Traceback" not in lakewright("plan").stderr


def test_a_project_may_be_named_before_or_after_the_command(lakewright: Lakewright, shop: Path):
    (shop / "elsewhere").mkdir()
    for words in (["--project", str(shop), "status"], ["status", "--project", str(shop / "landing")]):
        assert lakewright(*words).exit_code == 0


def test_a_syntax_error_in_a_project_file_is_told_with_its_line(lakewright: Lakewright, shop: Path):
    (shop / "pipelines" / "shop.py").write_text("x = (\n")
    result = lakewright("plan")
    assert result.exit_code == 2
    assert "shop.py:1: this is not valid Python" in result.stderr


def test_an_unknown_target_ends_with_2_and_the_known_ones(lakewright: Lakewright, shop: Path):
    result = lakewright("status", "--target", "devv")
    assert result.exit_code == 2
    assert "hint: Did you mean 'dev'?" in result.stderr


def test_the_version_is_printed(lakewright: Lakewright):
    assert lakewright("--version").stdout.startswith("lakewright ")
