"""Which receipt of a slice counts: derived from the order of the commits and from the rollbacks among them.

A rollback at version N to version T joins the history up to T to what comes after N; what lies between counts
no longer. Following these joints back from the newest version gives the stretches that count; in them the
newest data receipt of a slice is live, the earlier ones are superseded, and all others are rolled back. A rewind of a
stream supersedes the arrivals that are read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from lakewright.model.receipts import ReceiptState
from lakewright.store.tables import receipts, rollbacks

__all__ = ["settle", "slices_at"]

_SET_STATE = update(receipts).where(receipts.c.receipt_id == bindparam("id")).values(state=bindparam("now"))


def settle(conn: Connection, dataset: str) -> None:
    """Give each data receipt of a dataset its state anew."""
    stretches = _stretches(_targets(conn, dataset))
    rows = conn.execute(
        select(receipts.c.receipt_id, receipts.c.slice_id, receipts.c.version, receipts.c.state)
        .where(receipts.c.dataset == dataset, receipts.c.kind == "data")
        .order_by(receipts.c.version)
    ).all()
    counting = [row for row in rows if _counts(row.version, stretches)]
    rewinds = [(version, first) for version, first in _rewinds(conn, dataset) if _counts(version, stretches)]
    newest = {row.slice_id: row.receipt_id for row in counting if not _is_read_again(row, rewinds)}
    states: dict[int, ReceiptState] = {row.receipt_id: "rolled back" for row in rows}
    states |= {row.receipt_id: "superseded" for row in counting}
    states |= dict.fromkeys(newest.values(), "live")
    before = {row.receipt_id: row.state for row in rows}
    changed = [{"id": one, "now": state} for one, state in states.items() if state != before[one]]
    if changed:
        conn.execute(_SET_STATE, changed)


def slices_at(conn: Connection, dataset: str, version: int) -> set[str]:
    """The slices that counted at a version, whatever was taken back since."""
    targets = {at: target for at, target in _targets(conn, dataset).items() if at <= version}
    stretches = _stretches(targets)
    rewinds = [one for one in _rewinds(conn, dataset) if one[0] <= version and _counts(one[0], stretches)]
    rows = conn.execute(
        select(receipts.c.slice_id, receipts.c.version).where(
            receipts.c.dataset == dataset, receipts.c.kind == "data", receipts.c.version <= version
        )
    )
    return {row.slice_id for row in rows if _counts(row.version, stretches) and not _is_read_again(row, rewinds)}


def _targets(conn: Connection, dataset: str) -> dict[int, int]:
    query = select(rollbacks.c.version, rollbacks.c.target).where(rollbacks.c.dataset == dataset)
    return {row.version: row.target for row in conn.execute(query)}


def _rewinds(conn: Connection, dataset: str) -> list[tuple[int, int]]:
    """The rewinds of a stream: their version, and the first arrival that counts no longer."""
    query = select(receipts.c.version, receipts.c.slice_id).where(
        receipts.c.dataset == dataset, receipts.c.kind == "rewind"
    )
    return [(version, _number(slice_id)) for version, slice_id in conn.execute(query)]


def _is_read_again(row: Any, rewinds: Sequence[tuple[int, int]]) -> bool:
    return any(row.version < version and _number(row.slice_id) >= first for version, first in rewinds)


def _number(slice_id: str) -> int:
    """The number of an arrival; a slice of event time, of before the dataset was a stream, came before them all."""
    told = slice_id.removeprefix("arrival-")
    return int(told) if told.isdecimal() else 0


def _counts(version: int, stretches: Sequence[tuple[float, float]]) -> bool:
    return any(after < version <= upto for after, upto in stretches)


def _stretches(targets: Mapping[int, int]) -> list[tuple[float, float]]:
    """The stretches ``(after, upto]`` of versions that count, newest first."""
    found: list[tuple[float, float]] = []
    upto = float("inf")
    while earlier := [version for version in targets if version <= upto]:
        joint = max(earlier)
        found.append((joint, upto))
        upto = targets[joint]
    return [*found, (float("-inf"), upto)]
