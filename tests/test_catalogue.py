"""The list of patterns is complete, agrees with the shared index, and everything it names is there."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lakewright.catalogue import CHAPTERS, PATTERNS, Pattern

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT.parent / "shared" / "patterns" / "00-index.md"
PRESENT = [pattern for pattern in PATTERNS if pattern.state != "planned"]


def _id(pattern: Pattern) -> str:
    return pattern.stem


def test_there_are_77_patterns_numbered_from_1_on() -> None:
    assert [pattern.number for pattern in PATTERNS] == list(range(1, 78))


def test_names_are_those_of_the_shared_index() -> None:
    if INDEX.exists():
        listed = re.findall(r"^\| (\d+) \| ([^|]+?) \|", INDEX.read_text(encoding="utf-8"), re.MULTILINE)
        assert [(p.number, p.name) for p in PATTERNS] == [(int(number), name) for number, name in listed]
    else:  # a checkout without the shared folder: what the list knows of itself
        assert len({pattern.name for pattern in PATTERNS}) == 77


def test_chapters_follow_each_other_and_have_the_known_sizes() -> None:
    assert [pattern.chapter for pattern in PATTERNS] == sorted(pattern.chapter for pattern in PATTERNS)
    sizes = {number: sum(p.chapter == number for p in PATTERNS) for number in CHAPTERS}
    assert sizes == {2: 8, 3: 7, 4: 7, 5: 10, 6: 8, 7: 9, 8: 9, 9: 6, 10: 6, 11: 7}
    assert all(p.chapter_title == CHAPTERS[p.chapter].title for p in PATTERNS)


def test_ids_pages_and_modules_are_unique_and_well_formed() -> None:
    assert len({pattern.slug for pattern in PATTERNS}) == 77
    assert len({pattern.page for pattern in PATTERNS}) == 77
    for pattern in PATTERNS:
        assert re.fullmatch(rf"{pattern.chapter:02d}\.[a-z-]+", pattern.slug)
        assert re.fullmatch(r"lakewright(\.[a-z0-9_]+)+", pattern.module)
        assert pattern.entry.isidentifier()
        assert pattern.option is None or re.fullmatch(r"[A-Z][A-Za-z0-9]+", pattern.option)


def test_every_id_has_acceptance_lines_in_the_shared_catalogue() -> None:
    tool = ROOT.parent / "shared" / "tools" / "must_show"
    if tool.exists():
        listed = subprocess.run([sys.executable, tool, "list"], capture_output=True, text=True, check=True).stdout
        known = {line.split()[0] for line in listed.splitlines()}
        assert {pattern.slug for pattern in PATTERNS} <= known
    else:
        assert all(pattern.slug.count(".") == 1 for pattern in PATTERNS)


def test_each_summary_is_one_short_sentence() -> None:
    for pattern in PATTERNS:
        assert pattern.summary.endswith(".")
        assert "\n" not in pattern.summary
        assert len(pattern.summary) <= 100, pattern.name
        assert "simply" not in pattern.summary


@pytest.mark.parametrize("pattern", PRESENT, ids=_id)
def test_a_pattern_that_is_not_planned_can_be_imported(pattern: Pattern) -> None:
    module = importlib.import_module(pattern.module)
    assert hasattr(module, pattern.entry), f"{pattern.module} has no {pattern.entry}"
    if pattern.option is not None:
        import lakewright

        assert hasattr(lakewright, pattern.option), f"lakewright does not offer {pattern.option}"


@pytest.mark.parametrize("pattern", PRESENT, ids=_id)
def test_a_pattern_that_is_not_planned_has_a_test_file(pattern: Pattern) -> None:
    assert (ROOT / "tests" / "patterns" / pattern.folder / f"test_{pattern.stem}.py").is_file()


@pytest.mark.parametrize("pattern", PRESENT, ids=_id)
def test_a_pattern_that_is_not_planned_has_a_page(pattern: Pattern) -> None:
    assert (ROOT / "docs" / pattern.page).is_file()


def test_no_module_of_a_pattern_is_left_out() -> None:
    """A module under patterns/ is a pattern's own, or another one there imports it, or it imports a pattern's."""
    source = ROOT / "src"
    texts = {
        ".".join(file.relative_to(source).with_suffix("").parts): file.read_text(encoding="utf-8")
        for file in (source / "lakewright" / "patterns").rglob("*.py")
        if file.stem != "__init__"
    }
    own = {pattern.module for pattern in PRESENT}
    served = {name for name in texts if any(f"from {name} import" in text for text in texts.values())}
    serving = {name for name, text in texts.items() if any(f"from {module} import" in text for module in own)}
    assert set(texts) - own - served - serving == set()


def test_asking_for_the_list_loads_neither_spark_nor_pydantic() -> None:
    code = (
        "import sys, lakewright.catalogue as c; assert len(c.PATTERNS) == 77; "
        "heavy = {'pyspark', 'pydantic', 'sqlalchemy', 'typer', 'pandas'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT / "src")})
