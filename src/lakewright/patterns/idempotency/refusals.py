"""Checks that writers run before they change anything. Each runs a job and says so in its name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from lakewright.errors import InputError, TargetError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "SAMPLES",
    "null_keys",
    "refuse_ambiguous_keys",
    "refuse_empty",
    "refuse_no_files",
    "refuse_null_keys",
    "same_keys",
]

SAMPLES = 5
"""How many keys an error shows."""


def refuse_empty(df: DataFrame, *, what: str) -> None:
    """Runs a job that reads at most one row; refuses a frame without any."""
    if not df.take(1):
        raise InputError(
            f"{what}: the input is empty and would replace good data by nothing. The data was kept.",
            hint='If an empty slice is right, say empty="allow".',
        )


def refuse_no_files(files: Collection[str], *, what: str) -> None:
    """Refuse what a job with rows wrote where none of its files is to be found."""
    if not files:
        raise TargetError(
            f"{what}: the job has written its rows, and none of its files lies in the folder on this machine: its "
            "workers have folders of their own. The data was kept.",
            hint="Name a folder that the driver and all workers share under the same path, or write a Delta table to "
            "an object store.",
        )


def refuse_null_keys(df: DataFrame, *, keys: Sequence[str], what: str) -> None:
    """Runs a job that stops at the first rows whose key is NULL, and refuses the frame."""
    _refuse(df.where(_any_null(keys)).select(*_quoted(keys)).limit(SAMPLES), what, keys)


def refuse_ambiguous_keys(df: DataFrame, *, keys: Sequence[str], what: str, within: Sequence[str] = ()) -> None:
    """Runs a job over the key columns; refuses NULL keys and keys that occur more than once, with samples.

    ``within`` names columns that tell batches apart: a key may occur in each of them.
    """
    from pyspark.sql import functions as F

    counted = df.groupBy(*_quoted([*keys, *within])).agg(F.count(F.lit(1)).alias("_lw_times"))
    _refuse(counted.where(f"_lw_times > 1 OR {_any_null(keys)}").limit(SAMPLES), what, keys)


def null_keys(found: Sequence[Sequence[object]], *, keys: Sequence[str], what: str, count: int | None) -> InputError:
    """The complaint about rows without a key; ``count`` is how many there are, where that is known."""
    some = "some" if count is None else f"{count:,}"
    rows = "row" if count == 1 else "rows"
    return InputError(
        f"{what}: the key ({', '.join(keys)}) is NULL in {some} {rows}: {_samples(found, keys)}. Nothing was written.",
        hint="Set such rows aside with a Dead-Letter rule, or choose a key that is always there.",
    )


def same_keys(found: Sequence[Sequence[object]], *, keys: Sequence[str], what: str) -> InputError:
    """The complaint about several changes of one key that nothing orders."""
    return InputError(
        f"{what}: several changes have the same key ({', '.join(keys)}): {_samples(found, keys)}. Nothing was written.",
        hint='Say which one is the last with sequence="...", or de-duplicate before.',
    )


def _refuse(bad: DataFrame, what: str, keys: Sequence[str]) -> None:
    found = [[row[key] for key in keys] for row in bad.collect()]
    if any(value is None for row in found for value in row):
        raise null_keys(found, keys=keys, what=what, count=None)
    if found:
        raise same_keys(found, keys=keys, what=what)


def _samples(found: Sequence[Sequence[object]], keys: Sequence[str]) -> str:
    rows = (", ".join(f"{key}={value!r}" for key, value in zip(keys, row, strict=True)) for row in found)
    return ", ".join(f"({row})" for row in rows)


def _any_null(keys: Sequence[str]) -> str:
    return "(" + " OR ".join(f"`{key}` IS NULL" for key in keys) + ")"


def _quoted(keys: Sequence[str]) -> list[str]:
    return [f"`{key}`" for key in keys]
