"""The pages as the tests see them: fenced blocks and tables, with the marks that stand above them.

A comment above a block says what a test does with it: ``run: spark`` runs it with a session, ``run: plain`` without,
``run: shell`` is for the test that types README's commands. ``frame: name = DDL`` makes a frame of the table below,
and ``expect: expression`` compares a frame with it. An unmarked Python block only has to compile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

_PIECE = re.compile(
    r"^<!-- (?P<mark>(?:run|frame|expect): [^\n]*?) -->$"
    r"|^```(?P<language>\w*)\n(?P<code>.*?)^```$"
    r"|^(?P<table>\|[^\n]*\n\|[ |:-]+\n(?:\|[^\n]*\n)*)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Piece:
    """One fenced block or table of a page."""

    page: Path
    line: int
    kind: str
    """The language of a block, or ``table``."""
    text: str
    verb: str = ""
    object: str = ""

    def rows(self) -> list[list[str]]:
        """The cells of a table, the head first."""
        lines = [line for number, line in enumerate(self.text.splitlines()) if number != 1]
        return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def pieces(page: Path) -> Iterator[Piece]:
    """The blocks and tables of a page in order, each with the mark directly above it."""
    text = page.read_text(encoding="utf-8")
    mark, end = "", 0
    for found in _PIECE.finditer(text):
        if text[end : found.start()].strip():
            assert not mark, f"{page}: nothing follows the mark '{mark}'"
        end = found.end()
        if found["mark"]:
            mark = found["mark"]
            continue
        verb, _, subject = mark.partition(": ")
        kind = "table" if found["table"] else found["language"]
        line = text.count("\n", 0, found.start()) + 1
        yield Piece(page, line, kind, found["table"] or found["code"], verb, subject)
        mark = ""


def title(page: Path) -> str:
    """A page's path as people see it, for the ids of tests."""
    return page.relative_to(ROOT).as_posix()
