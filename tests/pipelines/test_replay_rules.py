"""What a replay is asked for: told apart and refused before Spark starts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.model.receipts import Counters, Receipt
from lakewright.patterns.error_management.dead_letter import DeadLetter
from lakewright.pipelines.dead_letters import Selection
from lakewright.pipelines.definitions import Dataset, Input, Place
from lakewright.pipelines.letter_policies import letter_warnings
from lakewright.pipelines.replay_records import RecordEdit, load_edits


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
    def warnings(read: int | None, rejected: int, written: int, **limits: float) -> list[str]:
        guard = DeadLetter(rules={"has_id": "id IS NOT NULL"}, **limits)  # type: ignore[arg-type]
        dataset = Dataset("clean", None, "silver", Place("f.py", 1), inputs=(Input("raw", "raw", guards=(guard,)),))  # type: ignore[arg-type]
        receipt = Receipt(
            "clean", "2026-01-05", "data", 1, 0, 1, datetime(2026, 1, 6, tzinfo=UTC),
            counters=Counters(read=read, rejected={"has_id": rejected}, written=written),
        )  # fmt: skip
        return [finding.message for finding in letter_warnings(dataset, receipt)]

    assert warnings(100, 5, 95) == []
    assert warnings(100, 5, 95, warn_above=0.05, warn_above_rows=5) == []
    (told,) = warnings(100, 6, 94, warn_above=0.05)
    assert told == "6 of 100 rows (6.0%) of slice 2026-01-05 are dead letters (has_id 6), more than 5.0%."
    (told,) = warnings(None, 6, 94, warn_above_rows=5)  # a micro-batch
    assert "6 of 100 rows (6.0%)" in told
    for wrong in ({"warn_above": 2}, {"warn_above_rows": -1}, {"keep": "a while"}):
        with pytest.raises(ConfigurationError):
            DeadLetter(rules={"a": "b"}, **wrong)  # type: ignore[arg-type]
    assert DeadLetter(rules={"a": "b"}, keep="90 days").keep == "90 days"
