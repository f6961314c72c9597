"""Receipts: every commit of every dataset, and what plans, accounts and rollbacks ask about them.

Guarantee:
    A slice of a dataset has one live data receipt at most, whatever the order in which receipts are added;
    adding one twice is the same as adding it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Select, bindparam, delete, func, insert, select, update

from lakewright.errors import ConfigurationError
from lakewright.model.completeness import Completeness
from lakewright.model.receipts import STALING_KINDS, Counters, Receipt, ReceiptKind
from lakewright.store import holds, staleness
from lakewright.store.dialect import reading, writing
from lakewright.store.holds import HeldSlice
from lakewright.store.receipt_rows import insert_receipts, known_counters, load_plain_receipts, load_receipts
from lakewright.store.settling import settle
from lakewright.store.staleness import CellHead, LiveSlice, StaleSlice
from lakewright.store.tables import held, receipt_inputs, receipts, rollbacks, touched

__all__ = ["ELSEWHERE", "Indexed", "Receipts"]

ELSEWHERE = -1
"""The version of an input that was read from another log than its receipts tell of: older than all of them."""

_PAGE = 10_000
"""So many receipts are read at a time, where it is not known before how many are wanted."""
_SUPERSEDE = (
    update(receipts)
    .where(
        receipts.c.dataset == bindparam("of"),
        receipts.c.kind == "data",
        receipts.c.state == "live",
        receipts.c.slice_id == bindparam("slice"),
        receipts.c.version < bindparam("below"),
    )
    .values(state="superseded")
)
_FROM_VERSION = select(receipts.c.version).where(
    receipts.c.dataset == bindparam("of"), receipts.c.version >= bindparam("lowest")
)
_BETWEEN = (
    receipts.c.dataset == bindparam("of"),
    receipts.c.version >= bindparam("first"),
    receipts.c.version <= bindparam("upto"),
)
_COUNT_BETWEEN = select(func.count()).select_from(receipts).where(*_BETWEEN)
_VERSIONS_BETWEEN = select(receipts.c.version).where(*_BETWEEN)
_LAST_ROLLBACK = select(func.max(rollbacks.c.version)).where(rollbacks.c.dataset == bindparam("of"))


class Head(NamedTuple):
    """How a dataset stands: its newest version, and whether it was ever rolled back."""

    version: int
    restored: bool


class Indexed(NamedTuple):
    """A commit of a table that a receipt tells of, and when it was made: by that its log is known again."""

    version: int
    committed_at: datetime


class Receipts:
    """The receipts of all datasets. Their state is decided here, by the order of the commits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, new: Sequence[Receipt], conn: Connection | None = None) -> None:
        """Index commits; a data receipt supersedes the earlier ones of its slice, a known one is ignored."""
        with writing(self._engine, conn) as c:
            for dataset in {receipt.dataset for receipt in new}:
                _add(c, dataset, [receipt for receipt in new if receipt.dataset == dataset])

    def rolled_back(self, dataset: str, above_version: int, restored_to: int, conn: Connection | None = None) -> None:
        """Take back the data receipts above a version; those that were live at it are live again.

        ``above_version`` is the version that the table was brought back to, ``restored_to`` the version that
        the restore's own commit made: receipts after that one are newer work and stay.
        """
        if restored_to <= above_version:
            raise ConfigurationError(
                f"Rollback of '{dataset}': the restore's own commit ({restored_to}) must come after "
                f"the version that it brought back ({above_version})."
            )
        with writing(self._engine, conn) as c:
            same = (rollbacks.c.dataset == dataset) & (rollbacks.c.version == restored_to)
            c.execute(delete(rollbacks).where(same))
            c.execute(insert(rollbacks).values(dataset=dataset, version=restored_to, target=above_version))
            settle(c, dataset)

    def recount(self, dataset: str, version: int, counters: Counters, conn: Connection | None = None) -> None:
        """Let a receipt tell other counters: of what it had set aside, some was corrected since."""
        mine = (receipts.c.dataset == dataset) & (receipts.c.version == version)
        with writing(self._engine, conn) as c:
            c.execute(update(receipts).where(mine).values(counters=known_counters(counters)))

    def forget(self, dataset: str, conn: Connection | None = None) -> None:
        """Drop everything known of a dataset's commits, for a rebuild; its held slices stay."""
        with writing(self._engine, conn) as c:
            for table in (touched, rollbacks, receipts):
                c.execute(delete(table).where(table.c.dataset == dataset))

    def unsettle(self, input: str, *, before: datetime | None = None, conn: Connection | None = None) -> None:
        """Whatever was made of an input (before a time) read another log than its receipts tell of from now on."""
        made = select(receipts.c.receipt_id)
        with writing(self._engine, conn) as c:
            readers = update(receipt_inputs).where(receipt_inputs.c.input == input)
            if before is not None:
                readers = readers.where(receipt_inputs.c.receipt_id.in_(made.where(receipts.c.committed_at < before)))
            c.execute(readers.values(version=ELSEWHERE))
            if before is None:
                c.execute(delete(held).where(held.c.input == input))

    # One receipt, or several in order

    def get(self, dataset: str, version: int) -> Receipt | None:
        """The receipt of one commit."""
        return self._one(select(receipts).where(receipts.c.dataset == dataset, receipts.c.version == version))

    def live(self, dataset: str, slice_id: str) -> Receipt | None:
        """The data receipt that counts for a slice."""
        return self._one(_data(dataset, slice_id).where(receipts.c.state == "live"))

    def live_version(self, dataset: str, slice_id: str, *, conn: Connection) -> int | None:
        """The version of the data receipt that counts for a slice, within a transaction."""
        counts = _data(dataset, slice_id).where(receipts.c.state == "live")
        return conn.execute(counts.with_only_columns(func.max(receipts.c.version))).scalar()

    def first(self, dataset: str, slice_id: str) -> Receipt | None:
        """The first data receipt that a slice ever had."""
        return self._one(_data(dataset, slice_id).order_by(receipts.c.version).limit(1))

    def last_version(self, dataset: str, *, below: int | None = None) -> int | None:
        """The highest version that is indexed; of those below another, where one is given."""
        highest = select(func.max(receipts.c.version)).where(receipts.c.dataset == dataset)
        if below is not None:
            highest = highest.where(receipts.c.version < below)
        with reading(self._engine) as c:
            return c.execute(highest).scalar()

    def heads(self, names: Sequence[str] | None = None) -> dict[str, Head]:
        """Every dataset (of those named) that has a receipt: its newest version, whether it was ever rolled back."""
        query = select(receipts.c.dataset, func.max(receipts.c.version)).group_by(receipts.c.dataset)
        if names is not None:
            query = query.where(receipts.c.dataset.in_(names))
        with reading(self._engine) as c:
            restored = {*c.execute(select(rollbacks.c.dataset).distinct()).scalars()}
            return {name: Head(version, name in restored) for name, version in c.execute(query)}

    def newest(self) -> dict[str, Receipt]:
        """The newest receipt of every dataset."""
        last = select(receipts.c.dataset, func.max(receipts.c.version).label("version")).group_by(receipts.c.dataset)
        top = last.subquery()
        same = (receipts.c.dataset == top.c.dataset) & (receipts.c.version == top.c.version)
        return {receipt.dataset: receipt for receipt in self._many(select(receipts).join(top, same))}

    def last_indexed(self) -> dict[str, Indexed]:
        """Of every dataset, the newest commit that is indexed; nothing of what it did."""
        last = select(receipts.c.dataset, func.max(receipts.c.version).label("version")).group_by(receipts.c.dataset)
        top = last.subquery()
        same = (receipts.c.dataset == top.c.dataset) & (receipts.c.version == top.c.version)
        query = select(receipts.c.dataset, receipts.c.version, receipts.c.committed_at).join(top, same)
        with reading(self._engine) as c:
            return {name: Indexed(version, at) for name, version, at in c.execute(query)}

    def count_live(self) -> dict[str, int]:
        """How many slices of each dataset have a receipt that counts."""
        which = (receipts.c.kind == "data") & (receipts.c.state == "live")
        query = select(receipts.c.dataset, func.count()).where(which).group_by(receipts.c.dataset)
        with reading(self._engine) as c:
            return {name: int(count) for name, count in c.execute(query)}

    def gaps(self, dataset: str, first: int, upto: int) -> list[int]:
        """The versions from ``first`` to ``upto`` that no receipt tells of, in order."""
        which = {"of": dataset, "first": first, "upto": upto}
        with reading(self._engine) as c:
            if c.execute(_COUNT_BETWEEN, which).scalar_one() == upto - first + 1:
                return []
            known = {*c.execute(_VERSIONS_BETWEEN, which).scalars()}
        return [version for version in range(first, upto + 1) if version not in known]

    def history(self, dataset: str, limit: int = 50) -> list[Receipt]:
        """The newest receipts of all kinds and states, newest first."""
        query = select(receipts).where(receipts.c.dataset == dataset)
        return self._many(query.order_by(receipts.c.version.desc()).limit(limit))

    def counting(self, dataset: str) -> Iterator[Receipt]:
        """The data receipts that count, newest first and without their inputs and cells; read as far as it is asked."""
        query = select(receipts).where(
            receipts.c.dataset == dataset, receipts.c.kind == "data", receipts.c.state == "live"
        )
        newest_first, below = query.order_by(receipts.c.version.desc()).limit(_PAGE), None
        while True:
            page = newest_first if below is None else newest_first.where(receipts.c.version < below)
            with reading(self._engine) as c:
                found = load_plain_receipts(c, page)
            yield from found
            if len(found) < _PAGE:
                return
            below = found[-1].version

    def since(self, dataset: str, after: int, upto: int, kinds: Sequence[ReceiptKind] = STALING_KINDS) -> list[Receipt]:
        """The receipts with ``after < version <= upto``, oldest first."""
        query = select(receipts).where(
            receipts.c.dataset == dataset,
            receipts.c.version > after,
            receipts.c.version <= upto,
            receipts.c.kind.in_(kinds),
        )
        return self._many(query.order_by(receipts.c.version))

    # What a plan asks

    def live_slices(self, dataset: str) -> dict[str, LiveSlice]:
        """Slice -> version, input versions and code of its live receipt."""
        with reading(self._engine) as c:
            return staleness.live_slices(c, dataset)

    def live_numbers(self, dataset: str) -> dict[str, int]:
        """Slice -> the number of the grant under which its live receipt was made."""
        which = (receipts.c.dataset == dataset) & (receipts.c.kind == "data") & (receipts.c.state == "live")
        with reading(self._engine) as c:
            found = c.execute(select(receipts.c.slice_id, receipts.c.number).where(which))
            return {row.slice_id: row.number for row in found}

    def live_number(self, dataset: str, slice_id: str) -> int | None:
        """The same of one slice; None where nothing of it counts."""
        counts = _data(dataset, slice_id).where(receipts.c.state == "live").with_only_columns(receipts.c.number)
        with reading(self._engine) as c:
            return c.execute(counts).scalar()

    def withdrawn(self, dataset: str, restored_at: int) -> set[str]:
        """The slices that a rollback took away, not those that it had left and a Stateful Merger took since."""
        with reading(self._engine) as c:
            return staleness.withdrawn(c, dataset, restored_at)

    def first_of_last_run(self, dataset: str) -> int | None:
        """The version of the first data receipt of the run that brought the newest one; without those rolled back."""
        counts = (receipts.c.dataset == dataset) & (receipts.c.kind == "data") & (receipts.c.state != "rolled back")
        newest = select(receipts.c.run_id).where(counts).order_by(receipts.c.version.desc()).limit(1)
        with reading(self._engine) as c:
            run_id = c.execute(newest).scalar()
            same = receipts.c.run_id.is_not_distinct_from(run_id)
            return c.execute(select(func.min(receipts.c.version)).where(counts, same)).scalar()

    def last_change(self, dataset: str) -> int | None:
        """The newest version that changed rows."""
        which = (receipts.c.dataset == dataset) & receipts.c.kind.in_(STALING_KINDS)
        with reading(self._engine) as c:
            return c.execute(select(func.max(receipts.c.version)).where(which)).scalar()

    def completeness(self, dataset: str) -> dict[str, Completeness]:
        """Slice -> of which of its parts it was made, where its live receipt tells."""
        query = select(receipts.c.slice_id, receipts.c.counters).where(
            receipts.c.dataset == dataset, receipts.c.kind == "data", receipts.c.state == "live"
        )
        with reading(self._engine) as c:
            told = {name: Completeness.from_told(known.get("completeness")) for name, known in c.execute(query)}
        return {slice_id: found for slice_id, found in told.items() if found is not None}

    def cells(self, dataset: str, upto: int | None = None) -> dict[str | None, CellHead]:
        """Event cell -> the last version that made readers stale, and rows; None: rows without a time."""
        with reading(self._engine) as c:
            return staleness.cells(c, dataset, upto)

    def rows_between(
        self, dataset: str, cell_from: str, cell_to: str, upto: int, after: int | None = None
    ) -> int | None:
        """Net rows of cells in ``[cell_from, cell_to)`` by commits in ``(after, upto]``; None is unknown."""
        where = [
            touched.c.dataset == dataset,
            touched.c.cell >= cell_from,
            touched.c.cell < cell_to,
            touched.c.version <= upto,
        ]
        if after is not None:
            where.append(touched.c.version > after)
        with reading(self._engine) as c:
            return staleness.net_rows(c, *where) if after is not None or _is_whole(c, dataset) else None

    def rows_in(self, dataset: str, cells: Sequence[str], upto: int, after: int | None = None) -> int | None:
        """The same of cells that are named."""
        where = [touched.c.dataset == dataset, touched.c.cell.in_(cells), touched.c.version <= upto]
        if after is not None:
            where.append(touched.c.version > after)
        with reading(self._engine) as c:
            return staleness.net_rows(c, *where) if after is not None or _is_whole(c, dataset) else None

    def rows_added(self, dataset: str, slice_id: str) -> int | None:
        """The rows with a usable time that the live receipt of a slice brought; None is unknown."""
        with reading(self._engine) as c:
            return staleness.rows_added(c, dataset, slice_id)

    def rows_total(self, dataset: str, upto: int) -> int | None:
        """The rows of the dataset at a version, those without a usable time too; None is unknown."""
        with reading(self._engine) as c:
            found = staleness.net_rows(c, touched.c.dataset == dataset, touched.c.version <= upto)
            return found if _is_whole(c, dataset) else None

    def is_whole(self, dataset: str) -> bool:
        """Whether receipts go back to the table's beginning: of one whose log was cut off, no sum is known."""
        with reading(self._engine) as c:
            return _is_whole(c, dataset)

    def stale(self, dataset: str, input: str, grid_width: int, coarser: Sequence[int] = ()) -> list[StaleSlice]:
        """The live slices in whose time the input has changed since (or since a later rollback).

        Cells meet slices by their first ``grid_width`` characters; where the input may have coarser ones as well,
        ``coarser`` tells how many characters those have.
        """
        with reading(self._engine) as c:
            return staleness.stale(c, dataset, input, grid_width, coarser)

    def missing(self, dataset: str, input: str, grid_width: int) -> list[str]:
        """The input's cells with rows for which the dataset has no live receipt, in order.

        They are cells of the dataset's grid: of a coarser one of the input, each part may have the rows. A slice that
        was rolled back is not missing until its input changes again.
        """
        with reading(self._engine) as c:
            return staleness.missing(c, dataset, input, grid_width)

    # Held slices

    def hold(self, slices: Sequence[HeldSlice], conn: Connection | None = None) -> None:
        """Note late rows that the policy left out; of the same slice and input, the newest version counts."""
        with writing(self._engine, conn) as c:
            holds.hold(c, slices)

    def held(self, dataset: str, input: str | None = None) -> dict[str, HeldSlice]:
        """Slice -> what is held; where several inputs are, name the one meant."""
        with reading(self._engine) as c:
            return holds.held_of(c, dataset, input)

    def release_held(self, dataset: str, slice_id: str, conn: Connection | None = None) -> None:
        """The held rows were taken in. A data receipt at or above the held version does it by itself."""
        with writing(self._engine, conn) as c:
            holds.release(c, dataset, slice_id)

    def _one(self, query: Select[Any]) -> Receipt | None:
        found = self._many(query)
        return found[0] if found else None

    def _many(self, query: Select[Any]) -> list[Receipt]:
        with reading(self._engine) as c:
            return load_receipts(c, query)


def _data(dataset: str, slice_id: str) -> Select[Any]:
    return select(receipts).where(
        receipts.c.dataset == dataset, receipts.c.slice_id == slice_id, receipts.c.kind == "data"
    )


def _add(conn: Connection, dataset: str, given: Sequence[Receipt]) -> None:
    by_version = {receipt.version: receipt for receipt in given}
    lowest = min(by_version)
    later = {*conn.execute(_FROM_VERSION, {"of": dataset, "lowest": lowest}).scalars()}
    new = [by_version[version] for version in sorted(by_version.keys() - later)]
    if not new:
        return
    last_rollback = conn.execute(_LAST_ROLLBACK, {"of": dataset}).scalar() or 0
    insert_receipts(conn, new)
    data = [receipt for receipt in new if receipt.kind == "data"]
    # Out of order, as a recovered commit may be, or a rewind, which takes back several: judge all of them anew.
    if later or last_rollback > lowest or any(receipt.kind == "rewind" for receipt in new):
        settle(conn, dataset)
    elif data:
        made = [{"of": dataset, "slice": one.slice_id, "below": one.version} for one in data]
        conn.execute(_SUPERSEDE, made)
    holds.release_taken_in(conn, data)


def _is_whole(conn: Connection, dataset: str) -> bool:
    first = conn.execute(select(func.min(receipts.c.version)).where(receipts.c.dataset == dataset)).scalar()
    return not first
