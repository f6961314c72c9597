"""Taking slices away whose arrivals their source has taken back: in one commit, from the first of them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lakewright.errors import TargetError
from lakewright.failpoints import failpoint
from lakewright.lake.side_tables import SIDE_TABLES
from lakewright.model.receipts import Receipt
from lakewright.model.slices import ARRIVAL_COLUMN, Slice
from lakewright.model.sql import text_literal
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.harvest import pin, receipt_of
from lakewright.pipelines.marking import withdraw_flag
from lakewright.pipelines.recover import recover_attempt
from lakewright.pipelines.states import SliceState
from lakewright.pipelines.workshop import Attempt, Made, Workshop

__all__ = ["take_back"]


def take_back(shop: Workshop, dataset: Dataset, state: SliceState, *, attempt: int = 1) -> Made:
    """Runs the jobs that delete the slices from one arrival on, and what their guards set aside; the public one last.

    The commit is a rewind, as that of a stream is: its receipt says that none of these slices counts any longer.
    """
    first, reason = state.slice, f"{state.status}: {state.reason}"
    with shop.attempt(dataset, first, attempt=attempt, reason=reason, whole=True) as current:
        if (made := recover_attempt(current)) is not None:
            return made
        for given in dataset.inputs:
            if (version := pin(shop.lake, shop.store, given.dataset)) is not None:
                current.inputs[given.dataset] = version
        _withdraw_markers(current)
        _withdraw_side_rows(current)
        private = [name for name, one in dataset.outputs.items() if one.writer.replaces_slice]
        made_before = [name for name in (*private, dataset.name) if shop.lake.log(name).exists()]
        receipts = _delete(current, made_before)
        failpoint("taken_back")
        return current.finish(tuple(receipts))


def _delete(current: Attempt, names: Sequence[str]) -> list[Receipt]:
    found = []
    for name in names:
        part = "main" if name == current.dataset.name else name
        identity = replace(current.identity(), kind="rewind", part=part)
        table = current.shop.lake.open(name, identity, still_mine=current.still_mine)
        commit = table.delete(_from(current.slice))
        if commit is None:
            raise TargetError(
                f"{name}, slice {current.slice.id}: a newer attempt has already committed. Nothing was deleted."
            )
        found.append(receipt_of(name, commit))
    return found


def _withdraw_markers(current: Attempt) -> None:
    shop, names = current.shop, (*current.dataset.outputs, current.dataset.name)
    live = (Slice.parse(slice_id) for slice_id in shop.store.receipts.live_slices(current.dataset.name))
    gone = [one.id for one in live if one.kind == "arrival" and one >= current.slice]
    with shop.store.transaction() as conn:
        for name in names:
            for slice_id in gone:
                shop.store.markers.withdraw(name, slice_id, run_id=shop.run.run_id, now=shop.now(), conn=conn)
    for slice_id in gone:
        withdraw_flag(shop, current.dataset, slice_id)


def _withdraw_side_rows(current: Attempt) -> None:
    """What was set aside of these arrivals is set aside anew when they come again."""
    lake, name = current.shop.lake, current.dataset.name
    number = "CAST(substr(slice, 9) AS BIGINT)"
    for part, table in SIDE_TABLES.items():
        if any(given.guards for given in current.dataset.inputs) and lake.log(table).exists():
            opened = lake.open(table, current.identity().as_part(part), still_mine=current.still_mine)
            of_these = f"slice LIKE 'arrival-%' AND {number} >= {current.slice.number}"
            opened.delete(f"dataset = {text_literal(name)} AND {of_these}")


def _from(first: Slice) -> str:
    return f"{ARRIVAL_COLUMN} >= {first.number}"
