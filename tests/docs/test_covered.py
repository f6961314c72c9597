"""Every pattern, command, option, setting and error has its place in the docs, and the docs name nothing else."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.docs.pages import DOCS, PAGES, ROOT, pieces, title

from lakewright.catalogue import PATTERNS, Pattern

PRESENT = [pattern for pattern in PATTERNS if pattern.state != "planned"]
HEADINGS = (
    "Problem",
    "Before",
    "The call",
    "After",
    "Guarantee",
    "Consequences, and what to do",
    "Bad input",
)


def _maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "tools" / "make_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = _maker()


def _commands() -> dict[str, Any]:
    root = MAKER.root_command()
    assert root is not None, "lakewright.cli.main is not there yet"
    return dict(MAKER.commands(root))


@pytest.mark.parametrize("pattern", PRESENT, ids=lambda pattern: pattern.stem)
def test_a_pattern_page_has_all_its_parts(pattern: Pattern) -> None:
    text = (DOCS / pattern.page).read_text(encoding="utf-8")
    assert text.startswith(f"# {pattern.name}\n")
    for heading in (*HEADINGS, "When to choose another"):
        assert f"\n## {heading}\n" in text, f"no part '{heading}'"
    assert re.search(r"\n## (Variants and options|Options)\n", text)
    assert pattern.entry in text
    module = importlib.import_module(pattern.module)
    functions = [name for name in module.__all__ if inspect.isfunction(getattr(module, name))]
    assert [name for name in functions if name not in text] == []


@pytest.mark.parametrize("pattern", PRESENT, ids=lambda pattern: pattern.stem)
def test_every_option_of_a_pattern_is_on_its_page(pattern: Pattern) -> None:
    if pattern.option is None:
        return  # its options are those of a dataset or a target
    option = getattr(importlib.import_module("lakewright"), pattern.option)
    text = (DOCS / pattern.page).read_text(encoding="utf-8")
    assert pattern.option in text
    if pattern.option != "AsOf":  # a reference: its fields are positional and explained in concepts.md
        for field in dataclasses.fields(option):
            assert f"`{field.name}`" in text, f"{pattern.option}.{field.name} is not explained"


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


def test_every_error_is_explained() -> None:
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    for name, kind in MAKER.public_errors():
        assert f"\n## {name}\n" in text
        assert f"Exit code {kind.exit_code}." in text


def test_every_variable_that_the_code_reads_is_explained() -> None:
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    sources = [file for file in (ROOT / "src").rglob("*.py") if "templates" not in file.parts]
    named = {name for file in sources for name in re.findall(r"LAKEWRIGHT_[A-Z_]+[A-Z]", file.read_text("utf-8"))}
    assert {name for name in named if f"`{name}`" not in text} == set()


def test_the_commands_of_the_first_release_are_all_found() -> None:
    """A floor: a generator that finds nothing would leave nothing to explain."""
    first = {"init", "doctor", "plan", "run", "backfill", "retry", "cancel", "unlock", "status", "show", "sql"}
    first |= {"rollback", "adopt", "patterns", "demo", "store rebuild"}
    assert first <= set(_commands())


def test_the_settings_shown_can_be_loaded(tmp_path: Path) -> None:
    from lakewright.runtime.settings import load_settings
    from lakewright.store import open_store

    shown = [piece.text for piece in pieces(DOCS / "settings.md") if piece.kind == "toml"]
    assert shown
    for text in shown:
        (tmp_path / "lakewright.toml").write_text(text.replace("/data/", f"{tmp_path}/data/"), encoding="utf-8")
        for name in load_settings(tmp_path, environ={}).targets:
            open_store(load_settings(tmp_path, name, environ={}).target.store).close()


def test_every_command_and_option_is_explained() -> None:
    text = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    for name, command in _commands().items():
        assert f"\n## lakewright {name}\n" in text
        assert command.help, f"{name} has no help"
        assert command.epilog, f"{name} has no example"
        for parameter in MAKER.parameters(command):
            assert getattr(parameter, "help", None), f"{name}: {parameter.name} has no help"


def test_every_reference_and_policy_is_explained() -> None:
    from lakewright.model import policies, references

    text = (DOCS / "concepts.md").read_text(encoding="utf-8")
    names = {*references.__all__, *policies.__all__} - {"Reference", "LatePolicy"}
    assert {name for name in names if f"`{name}(" not in text} == set()


def test_what_a_project_can_do_is_explained() -> None:
    from lakewright import Project

    text = (DOCS / "notebook.md").read_text(encoding="utf-8")
    inner = {"backfill_wish", "plan_backfill", "exclusive", "pins", "spark", "close"}
    verbs = {name for name, found in vars(Project).items() if inspect.isfunction(found) and not name.startswith("_")}
    assert {name for name in verbs - inner if f"project.{name}(" not in text} == set()


def test_every_status_of_a_slice_is_explained() -> None:
    from typing import get_args

    from lakewright.pipelines.decide import Status

    text = (DOCS / "concepts.md").read_text(encoding="utf-8")
    asked_for = {"again", "backfill"}  # what somebody typed, not what a slice is
    assert {word for word in get_args(Status) if word not in text} <= asked_for


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_commands_in_the_docs_exist(page: Path) -> None:
    known = _commands()
    for line in _typed(page):
        _check_command(shlex.split(line)[1:], known, f"{title(page)}: `{line}`")


def test_commands_in_messages_exist() -> None:
    """What an error or a hint tells people to type, they can type."""
    known, told = _commands(), []
    groups = {"COMMAND", *(name.partition(" ")[0] for name in known if " " in name)}
    for file in sorted((ROOT / "src").rglob("*.py")):
        for line in re.findall(r"`(lakewright [^`\n]+)`", file.read_text(encoding="utf-8")):
            told.append(line)
            words = re.sub(r"\{[^{}]*\}", "X", line).split()[1:]
            if words[0] not in groups or words[1:]:  # the name of a group alone is no command, and often told of
                _check_command(words, known, f"{title(file)}: `{line}`")
    assert len(told) > 50


def _check_command(words: list[str], known: dict[str, Any], where: str) -> None:
    name = next((n for n in (" ".join(words[:2]), words[0] if words else "") if n in known), None)
    assert name is not None, f"{where}: there is no such command"
    options = {o for p in known[name].params for o in [*p.opts, *p.secondary_opts]} | {"--help"}
    for word in words:
        option = word.partition("=")[0]
        assert not option.startswith("--") or option in options, f"{where}: no {option}"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_only_what_is_planned_is_called_so(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r" \(planned\)", text):
        before = text[: found.start()]
        there = [pattern.name for pattern in PRESENT if before.endswith(pattern.name)]
        assert there == [], f"{title(page)}: {there[0]} is there: link to its page"


def _typed(page: Path) -> list[str]:
    """Whatever begins with `lakewright` in a shell block or in running text."""
    if page.name == "cli.md":
        return []
    blocks = [piece.text for piece in pieces(page) if piece.kind in ("console", "sh", "bash")]
    lines = [one.strip() for block in blocks for line in block.splitlines() for one in line.split("&&")]
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines += re.findall(r"`(lakewright [^`]+)`", prose)
    clean = [line.removeprefix("$ ") for line in lines]
    return [line for line in clean if line.startswith("lakewright ") and " lakewright" not in line[1:]]


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_the_words_are_kind(page: Path) -> None:
    text = page.read_text(encoding="utf-8").lower()
    for word in ("simply", "obviously", "just run", "of course", "easy to see"):
        assert word not in text, f"{title(page)} says '{word}'"
