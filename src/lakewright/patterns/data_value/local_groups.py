"""Groups of one partition: rows come sorted by key, batch by batch; a group goes out when the next key begins.

Guarantee:
    Each group of a partition comes out once, the last one at the partition's end, and of a partition without rows
    nothing comes. Only one open group is held beside the batch at hand, however large a group is (of a distinct count:
    its values).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Part", "group_batches"]

PartKind = Literal["rows", "count", "sum", "min", "max", "distinct"]


@dataclass(frozen=True, slots=True)
class Part:
    """One column of a result: made of which column (none for ``rows``), and how."""

    name: str
    kind: PartKind
    column: str | None = None


def group_batches(
    keys: Sequence[str], parts: Sequence[Part]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What ``mapInArrow`` calls for each partition of rows that are sorted by ``keys``."""
    by, wanted = tuple(keys), tuple(parts)

    def grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last: pa.Table | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            found = _reduced(batch, by, wanted)
            if last is not None:
                if _same_key(last, found, by):
                    first = _united(last, found.slice(0, 1), by, wanted)
                    found = _joined(first, found.slice(1))
                else:
                    yield from last.to_batches()
            yield from found.slice(0, found.num_rows - 1).to_batches()
            last = found.slice(found.num_rows - 1)
        if last is not None:
            yield from last.to_batches()

    return grouped


def _reduced(batch: pa.RecordBatch, keys: Sequence[str], parts: Sequence[Part]) -> pa.Table:
    """The groups of one batch, in the order in which they come."""
    import pyarrow as pa

    table = pa.Table.from_batches([batch])
    asked: list[tuple[Any, str]] = []
    for part in parts:
        if part.kind == "rows":
            asked.append(([], "count_all"))
            continue
        assert part.column is not None
        if part.kind == "sum":
            table = _wide(table, part.column)
        asked.append((part.column, part.kind))
    made = table.group_by(list(keys), use_threads=False).aggregate(asked)  # the keys first, then as asked
    return pa.table(made.columns, names=[*keys, *[part.name for part in parts]]).combine_chunks()


def _wide(table: pa.Table, column: str) -> pa.Table:
    """Whole numbers as decimals: a sum beyond 64 bits would come out wrong, not fail."""
    import pyarrow as pa
    import pyarrow.types as kinds

    place = table.schema.get_field_index(column)
    kind = table.schema.field(place).type
    if kinds.is_integer(kind):
        return table.set_column(place, column, table.column(place).cast(pa.decimal128(38, 0)))
    if kinds.is_decimal(kind) and kind.precision < 38:
        return table.set_column(place, column, table.column(place).cast(pa.decimal128(38, kind.scale)))
    return table


def _same_key(one: pa.Table, other: pa.Table, keys: Sequence[str]) -> bool:
    return all(_is_same(one.column(key)[0].as_py(), other.column(key)[0].as_py()) for key in keys)


def _is_same(one: object, other: object) -> bool:
    """As Spark groups: NaN is one group, and so is NULL."""
    return one == other or (one != one and other != other)


def _united(one: pa.Table, other: pa.Table, keys: Sequence[str], parts: Sequence[Part]) -> pa.Table:
    """The group that one batch ends with and the next begins with."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [one.column(key) for key in keys]
    for part in parts:
        kind = one.schema.field(part.name).type
        both = pa.concat_arrays([*one.column(part.name).chunks, *other.column(part.name).chunks])
        if part.kind == "distinct":
            columns.append(pa.array([pc.unique(both.flatten())], type=kind))
            continue
        unite = {"min": pc.min, "max": pc.max}.get(part.kind, pc.sum)
        columns.append(pa.array([unite(both)], type=kind))
    return pa.table(columns, names=one.column_names)


def _joined(first: pa.Table, rest: pa.Table) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([first, rest]).combine_chunks()
