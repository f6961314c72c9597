"""What a replay is asked for: told apart and refused before anything is read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import Row
from pyspark.sql.types import StructType

from lakewright.connectors.files import JsonFiles
from lakewright.connectors.json_records import one_json_value
from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.lake.corrections import (
    OCCURRENCE_COLUMN,
    PART_COLUMN,
    apply_corrections,
    corrections_of,
    with_record_names,
)
from lakewright.model.receipts import Counters, Receipt
from lakewright.patterns.error_management.dead_letter import DeadLetter
from lakewright.pipelines.dead_letters import Selection
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.definitions import Dataset, Input, Place
from lakewright.pipelines.letter_policies import letter_warnings
from lakewright.pipelines.replay_records import RecordEdit, load_edits
from lakewright.pipelines.settle import BEHIND_WATERMARK
from lakewright.store import open_store
from tests.pipelines.lab import lab


def test_a_file_of_edits_is_read_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "edits.jsonl"
    file.write_text('{"record": "ABC", "raw": "{}"}\n\n{"record": "d", "fields": {"page": null, "n": 3}}\n')
    assert load_edits(file) == (RecordEdit("abc", raw="{}"), RecordEdit("d", fields={"page": None, "n": 3}))
    for wrong in ("no json", "[]", '{"raw": "x"}', '{"record": "a"}', '{"record": "a", "raw": "x", "fields": {"b": 1}}',
                  '{"record": "a", "page": "/"}', '{"record": 3, "raw": "x"}'):  # fmt: skip
        file.write_text(f'{{"record": "a1", "raw": "x"}}\n{wrong}\n')
        with pytest.raises(ConfigurationError, match="line 2"):
            load_edits(file)
    file.write_text('{"record": "a", "raw": "x"}\n{"record": "A", "raw": "y"}\n')
    with pytest.raises(ConfigurationError, match="twice"):
        load_edits(file)


def test_a_selection_becomes_a_condition() -> None:
    assert Selection().condition() == "state IN ('open')"
    wide = Selection("clean", start=datetime(2026, 1, 5, tzinfo=UTC), states=("open", "corrected"))
    assert wide.condition() == (
        "state IN ('open', 'corrected') AND dataset = 'clean' AND run_time >= TIMESTAMP '2026-01-05 00:00:00'"
    )
    assert Selection("it's", records=("AB",), reasons=("r",), slices=("2026-01-05",)).condition() == (
        "state IN ('open') AND dataset = 'it\\'s' AND id IN ('ab') AND arrays_overlap(rules, array('r')) "
        "AND slice IN ('2026-01-05')"
    )
    assert Selection("clean").is_wide
    with pytest.raises(UnknownNameError, match="opne"):
        Selection(states=("opne",))  # type: ignore[arg-type]


def test_a_lower_limit_tells_people_and_stops_nothing() -> None:
    def warnings(read: int | None, rejected: int, written: int, dropped: int = 0, **limits: float) -> list[str]:
        guard = DeadLetter(rules={"has_id": "id IS NOT NULL"}, **limits)  # type: ignore[arg-type]
        dataset = Dataset("clean", None, "silver", Place("f.py", 1), inputs=(Input("raw", "raw", guards=(guard,)),))  # type: ignore[arg-type]
        receipt = Receipt(
            "clean", "2026-01-05", "data", 1, 0, 1, datetime(2026, 1, 6, tzinfo=UTC),
            counters=Counters(read=read, rejected={"has_id": rejected, BEHIND_WATERMARK: dropped}, written=written),
        )  # fmt: skip
        return [finding.message for finding in letter_warnings(dataset, receipt)]

    assert warnings(100, 5, 95) == []
    assert warnings(100, 5, 95, warn_above=0.05, warn_above_rows=5) == []
    (told,) = warnings(100, 6, 94, warn_above=0.05)
    assert told == "6 of 100 rows (6.0%) of slice 2026-01-05 are dead letters (has_id 6), more than 5.0%."
    (told,) = warnings(None, 6, 94, warn_above_rows=5)  # a micro-batch
    assert "6 of 100 rows (6.0%)" in told
    # What came behind the watermark of a stream's state is in no table, so it is no dead letter.
    assert warnings(None, 4, 90, dropped=6, warn_above=0.05, warn_above_rows=5) == []
    (told,) = warnings(None, 6, 90, dropped=4, warn_above=0.05)
    assert told.startswith("6 of 100 rows (6.0%) of slice 2026-01-05 are dead letters (has_id 6), more")
    for wrong in ({"warn_above": 2}, {"warn_above_rows": -1}, {"keep": "a while"}):
        with pytest.raises(ConfigurationError):
            DeadLetter(rules={"a": "b"}, **wrong)  # type: ignore[arg-type]
    assert DeadLetter(rules={"a": "b"}, keep="90 days").keep == "90 days"


def test_a_value_of_parts_that_fits_only_in_part_cannot_be_read(spark) -> None:
    kind = StructType.fromDDL("who struct<`a b`: int, tags: array<struct<c: int>>>")["who"].dataType
    texts = [
        ('{"a b": 1, "tags": [{"c": 2}]}', (1, [(2,)])),
        ("{}", (None, None)),
        ('{"a b": "x"}', None),
        ('{"tags": [{"c": "x"}]}', None),
        ("garbage", None),
        ('{"a b": 1} {"a b": 2}', None),
        ("null", None),
    ]
    rows = spark.createDataFrame([(text,) for text, _ in texts], "given string")
    found = rows.selectExpr("given", f"{one_json_value('given', kind)} AS who").collect()
    told = {row["given"]: None if row["who"] is None else (row["who"]["a b"], row["who"]["tags"]) for row in found}
    assert told == dict(texts)


def test_a_record_without_a_version_is_replaced_by_its_correction(spark) -> None:
    # So an earlier release left the rows of a snapshot.
    columns = "_lw_file string, _lw_file_version string, _lw_hash bigint, id string"
    bronze = spark.createDataFrame([("users", None, 1, "a"), ("users", None, 2, "b"), ("users", "9", 1, "c")], columns)
    corrections = spark.createDataFrame(
        [("users", None, 1, "A", "in", 1)], f"{columns}, {PART_COLUMN} string, {OCCURRENCE_COLUMN} int"
    )
    assert sorted(row["id"] for row in apply_corrections(bronze, corrections).collect()) == ["A", "b", "c"]
    names = spark.createDataFrame([("n1", "users", None, 1)], "id string, f string, v string, h bigint")
    told = {"_lw_file": "f", "_lw_file_version": "v", "_lw_hash": "h"}
    named = with_record_names(bronze, names.withColumnRenamed("id", "name"), told, name="name")
    assert named.collect() == [Row(*bronze.first(), "n1")]


def test_corrections_of_what_is_read_from_another_lake_make_nothing_stale(tmp_path: Path) -> None:
    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing"), schema="id string, at timestamp", event_time="at")
    shop.sql("clean", "SELECT * FROM orders", event_time="at")
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        bench = lab(store, shop)
        bench.arrive("orders", "2026-01-01")
        bench.commit("clean", "2026-01-01", {"2026-01-01": 3}, orders=0)
        assert bench.statuses("clean", "2026-01-03") == {}
        bench.commit(corrections_of("orders"), "whole", {"2026-01-01": 1})
        assert bench.statuses("clean", "2026-01-03") == {"2026-01-01": "stale"}
        store.origins.set(["orders"], "/another/lake")
        assert bench.statuses("clean", "2026-01-03") == {}
