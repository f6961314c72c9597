"""The hash of a step's code: another one for whatever changes its rows, and the same one in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakewright import DeadLetter, JsonFiles, Pipeline
from lakewright.pipelines.code import code_hash
from lakewright.pipelines.loading import load_pipelines

MODULE = '''
from functools import partial

from pyspark.sql import functions as F

from lakewright import DeadLetter, FilterInterceptor, JsonFiles, Pipeline, tolerant

shop = Pipeline("shop", start="2026-01-01")
shop.source("raw", JsonFiles("landing"), schema="id string, pages int")


def least():
    """The least."""
    return 0  # of all


def above(limit):
    return lambda: F.col("pages") > limit


class Parser:
    def __init__(self, base=10):
        self.base, self.known, self.ways, self.lock = base, {"b", "a", "c"}, {"it": self.read}, object()

    def parse(self, text):
        return self.read(text)

    def read(self, text):
        return int(text, self.base) + least()


def parse(text, base=10):
    return int(text, base) + least()


PAGES = tolerant(parse, returns="int")
LIMITS = {"pages": 0}


@shop.dataset(guards_in={"raw": [GUARD]})
def clean(raw):
    return raw
'''
OWN_LINE = """DeadLetter(
    rules={
        "has_id": "id IS NOT NULL",
        "some_pages": lambda: F.col("pages") > 0,
    },
)"""
OVER_LINES = """FilterInterceptor(filters=dict(
    some_pages=lambda: F.col("pages")
    > 0,
))"""
BESIDE = 'FilterInterceptor(filters={"some_pages": lambda: F.col("pages") > 0})'
CALLS = 'DeadLetter(rules={"some_pages": lambda: F.col("pages") > least()})'
HOLDS = 'DeadLetter(rules={"some_pages": above(0)})'
LIMITS = "DeadLetter(rules={name: lambda name=name, low=low: F.col(name) > low for name, low in LIMITS.items()})"
RULE = 'DeadLetter(rules={"number": PAGES.rule("id")})'
METHOD = RULE.replace("PAGES", 'tolerant(Parser().parse, returns="int")')
PARTIAL = RULE.replace("PAGES", 'tolerant(partial(parse, base=8), returns="int")')


def hash_of(folder: Path, guard: str, was: str = "", now: str = "") -> str:
    text = MODULE.replace("GUARD", guard)
    assert was in text
    (folder / "pipelines").mkdir(exist_ok=True)
    (folder / "pipelines" / "shop.py").write_text(text.replace(was, now) if was else text)
    (shop,) = load_pipelines(folder, ["pipelines/*.py"])
    return code_hash(shop.datasets[-1])


@pytest.mark.shows("03.filter-interceptor", 4, 6)
@pytest.mark.parametrize(
    ("guard", "was", "now"),
    [
        (OWN_LINE, "> 0", "> 5"),
        (OVER_LINES, "> 0", "> 5"),
        (BESIDE, "> 0", "> 5"),
        (CALLS, "return 0", "return 5"),
        (HOLDS, "above(0)", "above(5)"),
        (LIMITS, '"pages": 0', '"pages": 5'),
        (RULE, "return 0", "return 5"),
        (METHOD, "return 0", "return 5"),
        (METHOD, "self.read(text)", "self.read(text) + 1"),
        (METHOD, "Parser()", "Parser(16)"),
        (METHOD, "int(text, self.base)", "int(text)"),
        (PARTIAL, "base=8", "base=16"),
        (PARTIAL, "int(text, base)", "int(text)"),
    ],
)
def test_a_function_that_is_a_rule_or_a_filter_changes_the_hash_with_what_it_does(tmp_path, guard, was, now):
    before = hash_of(tmp_path, guard)
    assert hash_of(tmp_path, guard, was, now) != before
    assert hash_of(tmp_path, guard, "The least.", "The very least.") == before
    assert hash_of(tmp_path, guard, "  # of all", "") == before


def test_a_step_follows_the_functions_that_it_calls_through_something_else(tmp_path, monkeypatch):
    calls = MODULE.replace("return raw", 'return raw.select(PAGES("id"))')
    monkeypatch.setattr(sys.modules[__name__], "MODULE", calls)
    assert hash_of(tmp_path, BESIDE) != hash_of(tmp_path, BESIDE, "return 0", "return 5")


def test_a_function_without_a_text_is_told_by_what_it_is_compiled_to():
    def hash_of(rule: str) -> str:
        shop = Pipeline("shop", start="2026-01-01")
        shop.source("raw", JsonFiles("landing"), schema="id string, pages int")
        shop.sql("clean", "SELECT * FROM raw", guards_in={"raw": [DeadLetter(rules={"some": eval(rule)})]})
        return code_hash(shop.datasets[-1])

    rules = ["lambda: col('pages') > 0", "lambda: col('pages') > 5", "lambda: col('sites') > 5", "lambda: column('a')"]
    assert len({hash_of(rule) for rule in rules}) == len(rules)
    assert hash_of(rules[0]) == hash_of(rules[0])


def test_every_process_gives_the_same_hash(tmp_path):
    here = [hash_of(tmp_path, guard) for guard in (METHOD, PARTIAL, OWN_LINE)]
    script = (
        "import sys; from pathlib import Path; from tests.pipelines import test_code as told\n"
        "print(*[told.hash_of(Path(sys.argv[1]), one) for one in (told.METHOD, told.PARTIAL, told.OWN_LINE)])"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        there = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
        )
        assert there.stdout.split() == here
