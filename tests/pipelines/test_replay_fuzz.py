"""Fuzzed records: whatever a line holds, it is in the output or in the dead letters, by its identity."""

from __future__ import annotations

import json
import os
import random
from collections import Counter

import pytest

from lakewright.connectors.json_records import decoded_utf8
from tests.pipelines.shop import ok

PIPELINE = """
    from lakewright import DeadLetter, JsonFiles, Pipeline

    visits = Pipeline("visits", start="2026-01-01")
    visits.source("raw", JsonFiles("landing"), event_time="at",
                  schema="id string, at timestamp, n int, tags array<string>, who struct<a: int>")

    @visits.dataset(event_time="at", rows="preserve",
                    guards_in={"raw": [DeadLetter(rules={"has_id": "id IS NOT NULL", "small": "n < 1000"})]})
    def clean(raw):
        return raw
"""
GOOD = {"id": "v", "at": "2026-01-01T10:00:00Z", "n": 3, "tags": ["a"], "who": {"a": 1}}


def fuzzed(dice: random.Random) -> bytes:
    """One line that is wrong in some way, or only looks so."""
    text = json.dumps({**GOOD, "id": f"v{dice.randrange(200)}"})
    cut = dice.randrange(1, len(text))
    odd = dice.choice(["NaN", "1e999", "-0", "9" * 40, "1.5", '"3"', "[3]", "null", "true", "{}"])
    kinds = [
        lambda: bytes(dice.choices([b for b in range(256) if b not in (10, 13)], k=dice.randrange(1, 60))),
        lambda: text[:cut].encode(),
        lambda: (text + text).encode(),
        lambda: text.replace('"n": 3', f'"n": {odd}').encode(),
        lambda: text.replace('"2026-01-01T10:00:00Z"', dice.choice(["17", '"soon"', '"1999-01-01"', "null"])).encode(),
        lambda: text.replace('"v', '"\x00v').encode(),
        lambda: text.replace('"id"', '"id": "first", "id"').encode(),
        lambda: text.replace('["a"]', "[" * 700 + "]" * 700).encode(),
        lambda: text.replace('{"a": 1}', '{"a": "x"}').encode("utf-16le").replace(b"\n", b"").replace(b"\r", b""),
        lambda: ("[" + text + "]").encode(),
        lambda: text.encode()[:cut] + b"\xff\xfe" + text.encode()[cut:],
        lambda: text.encode(),
    ]
    line = dice.choice(kinds)()
    return line if line.strip(b" \t\r\n") else b"{"


def check(project, spark, *, lines: int, big: int) -> dict[str, int]:
    dice = random.Random(20261116)
    found = [fuzzed(dice) for _ in range(lines)]
    found[lines // 2] = json.dumps({**GOOD, "id": "x" * big}).encode()
    found[lines // 3] = b'{"id": "' + b"y" * big  # cut in the middle
    visits = project({"pipelines/visits.py": PIPELINE})
    landing = visits.folder / "landing"
    landing.mkdir()
    (landing / "fuzz.json").write_bytes(b"\n".join(found) + b"\n")
    ok(visits.run(at="2026-01-05"))

    # Who came: file, hash of the raw line, occurrence. The hash is that of the text, as the source decodes it.
    raw = spark.createDataFrame([(bytearray(line),) for line in found], "value binary")
    came = Counter(row[0] for row in raw.selectExpr(f"xxhash64({decoded_utf8('value')[0]})").collect())
    content = "xxhash64(id, at, n, tags, who) AS content"
    bronze = visits.lake.read("raw", system_columns=True).where("_lw_event IS NOT NULL")
    kept = bronze.selectExpr("_lw_hash", content).collect()
    letters = visits.dead_letters().select("dataset", "file", "record_hash", "rule").collect()
    aside = {name: Counter(row[2] for row in letters if row[0] == name) for name in ("raw", "clean")}
    assert {row["file"] for row in letters} == {"fuzz.json"}
    assert Counter(row[0] for row in kept) + aside["raw"] == came
    written = visits.lake.log("clean").latest()
    rows = Counter(row[0] for row in visits.lake.read("clean", version=written).selectExpr(content).collect())
    assert aside["clean"] <= Counter(row[0] for row in kept)
    # The output is what is left of bronze, row by row: the same text is always read alike.
    contents = dict(kept)
    judged_bad: Counter[int] = Counter()
    for record, times in aside["clean"].items():
        judged_bad[contents[record]] += times
    assert rows + judged_bad == Counter(row[1] for row in kept)
    return {"lines": lines, "output": rows.total(), **Counter(row["rule"] for row in letters)}


def test_every_fuzzed_line_is_in_the_output_or_in_the_dead_letters(project, spark):
    counts = check(project, spark, lines=500, big=1_000_000)
    assert counts["output"] > 20
    assert counts["unreadable record"] > 100
    assert counts["no usable event time"] > 5


@pytest.mark.chaos
def test_ten_thousand_of_them_with_texts_of_ten_megabytes(project, spark):
    lines = int(os.environ.get("LAKEWRIGHT_FUZZ", "10000"))
    print(check(project, spark, lines=lines, big=10_000_000))  # noqa: T201
