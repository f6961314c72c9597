"""The examples in the docstrings of patterns are run, each with a session and an empty folder of its own."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakewright.patterns

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(lakewright.patterns.__path__, "lakewright.patterns.")
    ]
    return [test for module in modules for test in finder.find(module) if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda test: test.name.removeprefix("lakewright.patterns."))
def test_the_example_does_what_it_says(example: doctest.DocTest, spark: SparkSession, tmp_path: Path) -> None:
    example.globs |= {"spark": spark, "folder": str(tmp_path / "table")}
    said: list[str] = []
    failed = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=said.append, clear_globs=False).failed
    assert not failed, "".join(said)
