"""Errors of Delta and Spark in words for people. No Spark."""

from __future__ import annotations

import pytest

from lakewright.lake.delta_errors import explain_gone_version, explain_write_error
from lakewright.masking import remember


@pytest.mark.parametrize("length", [280, 285, 290])
def test_a_secret_where_a_message_is_cut_is_masked_as_a_whole(length: int) -> None:
    remember("De21-word-of-a-store")
    said = f"{'x' * length}De21-word-of-a-store: No space left on device DELTA_VERSION_NOT_FOUND"
    full = explain_write_error(OSError(said), dataset="clean", path="/lake/clean")
    gone = explain_gone_version(OSError(said), dataset="clean", version=3)
    for told in (full, gone):
        assert told is not None
        assert "De21" not in str(told)
        assert "x***" in str(told)


def test_a_broken_constraint_is_told_by_its_name_and_of_a_row_only_what_tells_its_slice() -> None:
    said = "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint {} violated by row with values:\n - {}"
    where = "at = '2026-01-01'"

    def told(constraint: str, values: str) -> str:
        error = ValueError(said.format(constraint, values))
        return str(explain_write_error(error, dataset="clean", path="/lake/clean", where=where))

    outside = told(f"EXPRESSION(({where})) ({where})", "at : 2026-01-02\n - email : ann@example.com")
    assert "a row lies outside the slice that is being replaced (at = '2026-01-01'): at = 2026-01-02. " in outside
    own = told("few (amount < 5)", "amount : 9")
    assert own.startswith("clean: a row breaks the table's own constraint few (amount < 5). Nothing was written.")
    strange = told("no-zero, ever (amount > 0)", "amount : 0")
    assert strange.startswith("clean: a row breaks the table's own constraint no-zero, ever (amount > 0). ")
    generated = told("Generated Column (day <=> CAST(at AS DATE))", "at : 2026-01-01\n - day : 2026-01-02")
    assert "own constraint Generated Column (day <=> CAST(at AS DATE)). " in generated
    long = told(f"listed ({' OR '.join(f'(amount = {n})' for n in range(60))})", "amount : 99")
    assert "own constraint listed ((amount = 0) OR (amount = 1)" in long
    assert " .... Nothing was written." in long
    assert len(long) < 500
    assert "ann@example.com" not in outside
    assert "9" not in own
