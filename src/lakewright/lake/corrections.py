"""Corrections: records of a source as they should have been, each in the place of the one that arrived.

One table per source, ``_lakewright/corrections/<source>``. A correction is two kinds of row under the identity of the
original (file, version and hash; or topic, partition and offset): ``in`` holds the record as it counts from now on, in
the event cell of its corrected time; ``out`` marks the cell that the original leaves, if it had one. So the commit's
own add and remove actions tell every slice that is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from lakewright.lake.lake import SYSTEM_FOLDER, Lake
from lakewright.lake.log import DeltaLog
from lakewright.model.columns import (
    ARRIVAL_COLUMN,
    EVENT_COLUMN,
    FILE_COLUMN,
    HASH_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    TOPIC_COLUMN,
    VERSION_COLUMN,
)
from lakewright.model.receipts import Change

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "CORRECTION_PARTITIONS",
    "MARK_COLUMNS",
    "OCCURRENCE_COLUMN",
    "PART_COLUMN",
    "apply_corrections",
    "arrival_key",
    "as_arrived",
    "corrections_of",
    "identity_columns",
    "in_key",
    "matching",
    "of_records",
    "read_corrections",
    "told_changes",
    "with_record_names",
    "without_corrected",
]

PART_COLUMN = "_lw_part"
"""Whether a row of the corrections is the record that counts (``in``) or the cell that the original leaves."""
OCCURRENCE_COLUMN = "_lw_occurrence"
"""Records that are the same to the byte are told apart by counting them."""
MARK_COLUMNS = {
    "_lw_replayed_at": "timestamp",
    "_lw_replay_job": "string",
    "_lw_replay_version": "string",
    "_lw_replay_run": "string",
}
"""What a corrected record tells of the replay that brought it."""
CORRECTION_PARTITIONS = (PART_COLUMN, EVENT_COLUMN, ARRIVAL_COLUMN)


def corrections_of(source: str) -> str:
    """The name of a source's corrections."""
    return f"{SYSTEM_FOLDER}/corrections/{source}"


def identity_columns(columns: Iterable[str]) -> list[str]:
    """The columns that tell a record of a bronze table; none where it has no such identity."""
    present = set(columns)
    for wanted in ((TOPIC_COLUMN, PARTITION_COLUMN, OFFSET_COLUMN), (FILE_COLUMN, VERSION_COLUMN, HASH_COLUMN)):
        if present.issuperset(wanted):
            return list(wanted)
    return []


def read_corrections(lake: Lake, source: str, version: int | None = None) -> DataFrame | None:
    """All rows of a source's corrections; None where there are none."""
    name = corrections_of(source)
    if version is None and not lake.log(name).exists():
        return None
    return lake.read(name, version=version, system_columns=True)


def apply_corrections(bronze: DataFrame, corrections: DataFrame) -> DataFrame:
    """Each record once: corrected where there is a correction, else as it arrived. Lazy."""
    counting = corrections.where(f"{PART_COLUMN} = 'in'").drop(PART_COLUMN, OCCURRENCE_COLUMN)
    return without_corrected(bronze, corrections).unionByName(counting, allowMissingColumns=True)


def as_arrived(corrections: DataFrame, bronze: DataFrame) -> DataFrame:
    """Each correction under the arrival that its record has now: one that was read again has another. Lazy."""
    keys = identity_columns(bronze.columns)
    return corrections.drop(ARRIVAL_COLUMN).join(bronze.select(*keys, ARRIVAL_COLUMN), on=keys)


def without_corrected(bronze: DataFrame, corrections: DataFrame) -> DataFrame:
    """The records that nobody corrected; lazy."""
    return of_records(bronze, corrections.where(f"{PART_COLUMN} = 'in'"), how="left_anti")


def of_records(rows: DataFrame, records: DataFrame, *, how: Literal["left_semi", "left_anti"]) -> DataFrame:
    """The rows that are of some records (``left_semi``), or of none of them; lazy."""
    keys = identity_columns(rows.columns)
    there = records.selectExpr(*[f"{key} AS {key}_there" for key in keys]).distinct()
    return rows.join(there, _same_record(keys), how)


def with_record_names(rows: DataFrame, names: DataFrame, told: Mapping[str, str], *, name: str) -> DataFrame:
    """The rows of the records that are named in ``names``, with the name; ``told``: identity column -> column there."""
    keys = identity_columns(rows.columns)
    there = names.selectExpr(name, *[f"`{told[key]}` AS {key}_there" for key in keys]).distinct()
    return rows.join(there, _same_record(keys)).drop(*[f"{key}_there" for key in keys])


def _same_record(keys: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    # Snapshots of databases that an earlier release took have no version: there a NULL is like a NULL.
    same = [f"{key} {'<=>' if key == VERSION_COLUMN else '='} {key}_there" for key in keys]
    return F.expr(" AND ".join(same))


def in_key(cell: str) -> str:
    """Under which name a receipt counts the corrected records of a cell, beside its net change of rows."""
    return f"+{cell}"


def arrival_key(number: int) -> str:
    """Under which name a receipt tells the arrival whose records were corrected."""
    return f"@{number}"


def told_changes(log: DeltaLog, version: int) -> Mapping[str | None, Change]:
    """What a commit of corrections did to the rows that readers see, by event cell and by arrival.

    A record that comes in adds a row, one that goes out removes one; ``in_key`` counts the former alone.
    """
    totals: dict[str, list[int]] = {}

    def count(key: str, added: int, removed: int) -> None:
        found = totals.setdefault(key, [0, 0])
        found[0] += added
        found[1] += removed

    for file in log.files(version):
        rows, comes = file.rows or 0, file.partition[PART_COLUMN] == "in"
        change = (rows, 0) if file.added else (0, rows)
        net = change if comes else (change[1], change[0])
        for key in (str(file.partition[EVENT_COLUMN]), arrival_key(int(str(file.partition[ARRIVAL_COLUMN])))):
            count(key, *net)
            if comes:
                count(in_key(key), *change)
    return {key: Change(added, removed) for key, (added, removed) in totals.items()}


def matching(keys: Sequence[str]) -> str:
    """The condition under which two rows of the corrections (``t``, ``s``) are the same, as SQL."""
    return " AND ".join(f"t.{name} <=> s.{name}" for name in (PART_COLUMN, OCCURRENCE_COLUMN, *keys))
