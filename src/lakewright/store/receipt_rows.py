"""Receipts as rows of three tables, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Select, insert, select

from lakewright.model.arrivals import JsonValue
from lakewright.model.completeness import Completeness
from lakewright.model.receipts import STALING_KINDS, Change, Counters, Filtered, Receipt
from lakewright.store.tables import receipt_inputs, receipts, touched

__all__ = ["NO_CELL", "insert_receipts", "known_counters", "load_plain_receipts", "load_receipts"]

NO_CELL = ""
"""How the cell of rows without a usable time is stored: a key cannot be NULL."""

_INSERT = insert(receipts).returning(receipts.c.receipt_id, receipts.c.version)


def insert_receipts(conn: Connection, new: Sequence[Receipt]) -> None:
    """Add receipts of one dataset, all as live."""
    ids = {version: receipt_id for receipt_id, version in conn.execute(_INSERT, [_row(one) for one in new])}
    inputs = [
        {"receipt_id": ids[one.version], "input": name, "version": version}
        for one in new
        for name, version in one.inputs.items()
    ]
    if inputs:
        conn.execute(insert(receipt_inputs), inputs)
    cells = [cell for one in new for cell in _cells(one)]
    if cells:
        conn.execute(insert(touched), cells)


def _row(receipt: Receipt) -> dict[str, object]:
    return {
        "dataset": receipt.dataset,
        "slice_id": receipt.slice_id,
        "kind": receipt.kind,
        "version": receipt.version,
        "version_before": receipt.version_before,
        "number": receipt.number,
        "committed_at": receipt.committed_at,
        "run_id": receipt.run_id,
        "attempt": receipt.attempt,
        "rows": receipt.rows,
        "bytes": receipt.bytes,
        "counters": known_counters(receipt.counters),
        "code": receipt.code,
        "state": "live",
        "valid_from": receipt.valid_from,
        "recovered": receipt.recovered,
    }


def known_counters(counters: Counters) -> dict[str, JsonValue]:
    """Counters as they are stored: those that are known."""
    return {name: value for name, value in asdict(counters).items() if value is not None and value != {}}


def _cells(receipt: Receipt) -> Iterator[dict[str, object]]:
    for cell, change in receipt.touched.items():
        yield {
            "dataset": receipt.dataset,
            "cell": NO_CELL if cell is None else cell,
            "version": receipt.version,
            "staling": receipt.kind in STALING_KINDS,
            "added": change.added,
            "removed": change.removed,
        }


def load_receipts(conn: Connection, query: Select[Any]) -> list[Receipt]:
    """The receipts that a query on their table finds, in its order."""
    rows = conn.execute(query).all()
    versions: dict[str, set[int]] = {}
    for row in rows:
        versions.setdefault(row.dataset, set()).add(row.version)
    told = {dataset: _told(conn, dataset, theirs) for dataset, theirs in versions.items()}
    return [_receipt(row._mapping, *told[row.dataset][row.version]) for row in rows]


def load_plain_receipts(conn: Connection, query: Select[Any]) -> list[Receipt]:
    """The same without their inputs and cells, where many are asked for their counters."""
    return [_receipt(row._mapping, {}, {}) for row in conn.execute(query)]


def _told(
    conn: Connection, dataset: str, versions: set[int]
) -> dict[int, tuple[dict[str, int], dict[str | None, Change]]]:
    """Version -> the inputs of its receipt and the cells that it touched."""
    # By range, not by list: history is asked for in stretches, and a list has a limit of its own.
    lowest, highest = min(versions), max(versions)
    inputs = select(receipts.c.version, receipt_inputs.c.input, receipt_inputs.c.version).where(
        receipts.c.dataset == dataset,
        receipts.c.version.between(lowest, highest),
        receipt_inputs.c.receipt_id == receipts.c.receipt_id,
    )
    cells = select(touched.c.version, touched.c.cell, touched.c.added, touched.c.removed).where(
        touched.c.dataset == dataset, touched.c.version.between(lowest, highest)
    )
    inputs_of = _gathered((of, (name, version)) for of, name, version in conn.execute(inputs) if of in versions)
    touched_of = _gathered(
        (of, (None if cell == NO_CELL else cell, Change(added, removed)))
        for of, cell, added, removed in conn.execute(cells)
        if of in versions
    )
    return {of: (inputs_of.get(of, {}), touched_of.get(of, {})) for of in versions}


def _gathered(pairs: Iterable[tuple[int, tuple[Any, Any]]]) -> dict[int, dict[Any, Any]]:
    found: dict[int, dict[Any, Any]] = {}
    for version, (name, value) in pairs:
        found.setdefault(version, {})[name] = value
    return found


def _receipt(row: Any, inputs: dict[str, int], cells: dict[str | None, Change]) -> Receipt:
    plain = {name: value for name, value in row.items() if name not in ("receipt_id", "counters")}
    return Receipt(**plain, counters=_counters(dict(row["counters"])), inputs=inputs, touched=cells)


def _counters(known: dict[str, Any]) -> Counters:
    filtered, completeness = known.pop("filtered", None), Completeness.from_told(known.pop("completeness", None))
    by_input = {name: Filtered(**one) for name, one in known.pop("filtered_by_input", {}).items()}
    return Counters(
        **known,
        filtered=None if filtered is None else Filtered(**filtered),
        filtered_by_input=by_input,
        completeness=completeness,
    )
