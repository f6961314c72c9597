"""Python in the docs compiles; what is marked is run, and its tables are compared with what comes out."""

from __future__ import annotations

import ast
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.docs.pages import PAGES, Piece, pieces, title

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WITH_SPARK = [page for page in PAGES if any(piece.object == "spark" for piece in pieces(page))]


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_snippets_can_be_read(page: Path) -> None:
    for piece in pieces(page):
        if piece.kind == "python":
            compile(piece.text, f"{page}:{piece.line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif piece.kind == "toml":
            tomllib.loads(piece.text)


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_pipelines_in_the_docs_can_be_declared(page: Path) -> None:
    """Blocks that declare a pipeline or an option are executed; that needs no session."""
    for piece in pieces(page):
        declares = "Pipeline(" in piece.text or piece.text.startswith("from lakewright import")
        if piece.kind == "python" and not piece.verb and declares and "def test_" not in piece.text:
            _execute(piece, {})


def test_every_marked_block_is_known() -> None:
    for page in PAGES:
        for piece in pieces(page):
            if piece.verb == "run":
                kinds = {"spark": ("python",), "plain": ("python",), "shell": ("sh",)}
                assert piece.kind in kinds.get(piece.object, ()), f"{title(page)}:{piece.line}: {piece.object}"
            if piece.verb == "run" and piece.object == "plain":
                _execute(piece, {})


def test_the_readme_marks_the_commands_that_a_test_types() -> None:
    commands = [p.text.strip() for p in pieces(PAGES[0]) if (p.verb, p.object) == ("run", "shell")]
    assert commands[:2] == ["make demo", "make test"]
    assert commands[2].startswith("lakewright init shop && cd shop && lakewright run")
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 125, "README is two screens"


@pytest.mark.parametrize("page", WITH_SPARK, ids=title)
def test_tables_in_the_docs_are_what_the_code_makes(page: Path, spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, Any] = {"spark": spark, "folder": str(tmp_path / "table")}
    for piece in pieces(page):
        if piece.verb == "frame":
            name, _, columns = piece.object.partition(" = ")
            names[name] = _frame(spark, piece, columns)
        elif (piece.verb, piece.object) == ("run", "spark"):
            _execute(piece, names)
        elif piece.verb == "expect":
            head, *rows = piece.rows()
            made = eval(piece.object, names)
            assert made.columns == head, f"{title(page)}:{piece.line}"
            assert _texts(made) == sorted(rows), f"{title(page)}:{piece.line}"


def _frame(spark: SparkSession, piece: Piece, columns: str) -> DataFrame:
    head, *rows = piece.rows()
    kinds = dict(column.split() for column in columns.split(", "))
    assert list(kinds) == head, f"{title(piece.page)}:{piece.line}: the table has {head}"
    cells = [[None if cell == "NULL" else cell for cell in row] for row in rows]
    plain = spark.createDataFrame(cells, ", ".join(f"`{name}` string" for name in head))
    return plain.selectExpr(*[f"CAST(`{name}` AS {kind}) AS `{name}`" for name, kind in kinds.items()])


def _texts(frame: DataFrame) -> list[list[str]]:
    shown = frame.selectExpr(*[f"coalesce(CAST(`{name}` AS string), 'NULL')" for name in frame.columns])
    return sorted(list(row) for row in shown.collect())


def _execute(piece: Piece, names: dict[str, Any]) -> None:
    # Padded, so that an error gives the line of the page.
    exec(compile("\n" * piece.line + piece.text, str(piece.page), "exec"), names)


def test_json_in_the_docs_is_json_unless_it_shows_a_broken_record() -> None:
    broken = 0
    for page in PAGES:
        for piece in pieces(page):
            if piece.kind == "json":
                for line in piece.text.splitlines():
                    try:
                        json.loads(line)
                    except ValueError:
                        broken += 1
    assert broken == 1, "start.md shows one record that is cut in the middle, and nothing else is broken"
