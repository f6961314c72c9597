"""Whether a table's files are worth joining, decided from their sizes alone.

Delta joins the small files of one partition, smallest first, until they make up the target size; the same is reckoned
here before anything is started.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakewright.model.sizes import shown_size
from lakewright.patterns.ingestion.table_files import TableFiles, Values

__all__ = ["SMALL", "CompactionPlan", "Thresholds", "plan_compaction"]

SMALL = 0.75
"""A file below this share of the target size is small. One that is nearly as large as it should be stays."""

PIECE_BYTES = 1 << 30
PIECE_PARTITIONS = 100


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When joining pays."""

    target_bytes: int
    min_files: int
    min_benefit: float
    mean_below: int | None = None


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What would be done: so many files joined into so many, by statements over these partitions (None: all)."""

    reason: str
    joined: int = 0
    into: int = 0
    pieces: tuple[str | None, ...] = ()

    @property
    def due(self) -> bool:
        return bool(self.pieces)


def plan_compaction(found: TableFiles, limits: Thresholds) -> CompactionPlan:
    """Decide; where only totals are known, or Delta clusters the table, what can be joined is left to Delta."""
    if found.files < limits.min_files:
        return CompactionPlan(f"{_files(found.files)}, below {limits.min_files:,}")
    mean = found.bytes / found.files if found.files else 0
    if limits.mean_below is not None and mean >= limits.mean_below:
        return CompactionPlan(f"{_files(found.files)} of {shown_size(mean)} on average, which is large enough")
    if found.clustered:
        return CompactionPlan(f"{_files(found.files)}, to be clustered", found.files, 1, (None,))
    if found.partitions is None:
        small = mean < SMALL * limits.target_bytes
        return CompactionPlan(
            f"{_files(found.files)} of {shown_size(mean)} on average", pieces=(None,) if small else ()
        )
    bins = {values: _bins(sizes, limits.target_bytes) for values, sizes in found.partitions.items()}
    joined = sum(len(one) for packed in bins.values() for one in packed)
    into = sum(len(packed) for packed in bins.values())
    if joined < limits.min_files or not joined:
        return CompactionPlan(_too_few(found, joined, limits))
    benefit = (joined - into) / found.files
    told = f"{_files(found.files)}, of which {joined:,} can be joined into {into:,}"
    if benefit < limits.min_benefit:
        return CompactionPlan(f"{told}: {benefit:.0%} fewer, below {limits.min_benefit:.0%}")
    return CompactionPlan(
        told, joined, into, _pieces(found, {values: packed for values, packed in bins.items() if packed})
    )


def _too_few(found: TableFiles, joined: int, limits: Thresholds) -> str:
    if not joined:
        spread = len(found.partitions or {})
        where = f" in {spread:,} partitions" if spread > 1 else ""
        return f"{_files(found.files)}{where}, none of which can be joined"
    return f"{_files(found.files)}, of which {joined:,} can be joined, below {limits.min_files:,}"


def _bins(sizes: Iterable[int], target_bytes: int) -> list[list[int]]:
    """The small files of a partition as Delta packs them; one that is alone in its bin stays."""
    bins: list[list[int]] = [[]]
    filled = 0
    for size in sorted(one for one in sizes if one < SMALL * target_bytes):
        if filled + size > target_bytes and bins[-1]:
            bins.append([])
            filled = 0
        bins[-1].append(size)
        filled += size
    return [one for one in bins if len(one) > 1]


def _pieces(found: TableFiles, bins: dict[Values, list[list[int]]]) -> tuple[str | None, ...]:
    """One statement, or several over some of the partitions each: a writer waits for one of them at most."""
    total = sum(size for packed in bins.values() for one in packed for size in one)
    if not found.columns or total <= PIECE_BYTES or set(found.types) != set(found.columns):
        return (None,)
    pieces: list[str] = []
    at: list[Values] = []
    filled = 0
    for values, packed in bins.items():
        size = sum(sum(one) for one in packed)
        if at and (filled + size > PIECE_BYTES or len(at) == PIECE_PARTITIONS):
            pieces.append(_filter(found, at))
            at, filled = [], 0
        at.append(values)
        filled += size
    return (*pieces, _filter(found, at))


def _filter(found: TableFiles, partitions: Sequence[Values]) -> str:
    return " OR ".join(
        "("
        + " AND ".join(
            _equal(name, found.types[name], value) for name, value in zip(found.columns, values, strict=True)
        )
        + ")"
        for values in partitions
    )


def _equal(name: str, kind: str, value: str | None) -> str:
    if value is None:
        return f"`{name}` IS NULL"
    text = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"`{name}` = CAST('{text}' AS {kind})"


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"
