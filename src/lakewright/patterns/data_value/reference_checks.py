"""Checks of a reference before it is joined. Each runs a job over the columns that it names, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.errors import InputError
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.join_checks import check_keys, kinds_of, refuse_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

__all__ = ["refuse_duplicate_keys", "refuse_overlaps"]

_SAMPLES = 5


def refuse_duplicate_keys(reference: DataFrame, *, keys: Sequence[str], what: str = "the reference") -> None:
    """Runs a job over the key columns; refuses a key that is there more than once, with samples.

    Rows whose key is NULL match nothing and may be as many as they like.
    """
    keys = check_keys(keys, "refuse_duplicate_keys")
    refuse_missing(keys, kinds_of(reference), f"refuse_duplicate_keys ({what})")
    known = reference.where(_known(keys))
    counted = known.groupBy(*map(quoted, keys)).count().withColumnRenamed("count", "_lw_times")
    if found := counted.where("_lw_times > 1").limit(_SAMPLES).collect():
        samples = ", ".join(f"({_key(row, keys)}: {row['_lw_times']} rows)" for row in found)
        raise InputError(
            f"Static Joiner: {what} has more than one row of the same key: {samples}. Each row joined with it would be "
            "multiplied. Nothing was joined.",
            hint="Keep one row of each key before, or let a Merger with these keys make the reference.",
        )


def refuse_overlaps(
    versions: DataFrame,
    *,
    keys: Sequence[str],
    valid_from: str = "valid_from",
    valid_to: str = "valid_to",
    what: str = "the reference",
) -> None:
    """Runs a job over the keys and the two times; refuses versions of a key that are valid at the same moment, that
    begin at no time, or that end before they begin, with samples.
    """
    keys = check_keys(keys, "refuse_overlaps")
    refuse_missing([*keys, valid_from, valid_to], kinds_of(versions), f"refuse_overlaps ({what})")
    order = f"OVER (PARTITION BY {', '.join(map(quoted, keys))} ORDER BY _lw_from)"
    chained = (
        versions.where(_known(keys))
        .selectExpr(*map(quoted, keys), f"{quoted(valid_from)} AS _lw_from", f"{quoted(valid_to)} AS _lw_to")
        .selectExpr("*", f"lead(_lw_from) {order} AS _lw_next")
        .selectExpr(
            *map(quoted, keys),
            "CASE WHEN _lw_from IS NULL THEN 'begins at no time' "
            "WHEN _lw_to < _lw_from THEN 'ends before it begins' "
            "WHEN coalesce(_lw_next < _lw_to, _lw_next IS NOT NULL) THEN 'ends after the next one begins' "
            "END AS _lw_wrong",
            "concat(coalesce(CAST(_lw_from AS STRING), 'NULL'), ' to ', coalesce(CAST(_lw_to AS STRING), 'open')) "
            "AS _lw_span",
        )
    )
    if found := chained.where("_lw_wrong IS NOT NULL").limit(_SAMPLES).collect():
        samples = ", ".join(f"({_key(row, keys)}: {row['_lw_span']} {row['_lw_wrong']})" for row in found)
        raise InputError(
            f"Static Joiner: {what} has versions of the same key that overlap, or have no beginning: {samples}. "
            "Nothing was joined.",
            hint="A version ends where the next one begins, and the newest has no end. Merger with history=Scd2(...) "
            "keeps them so.",
        )


def _known(keys: Sequence[str]) -> str:
    return " AND ".join(f"{quoted(key)} IS NOT NULL" for key in keys)


def _key(row: Row, keys: Sequence[str]) -> str:
    return ", ".join(f"{key} = {row[key]!r}" for key in keys)
