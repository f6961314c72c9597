"""Windows of a log: places in it from the end of one transaction to the end of another, recorded before a row is read.

Guarantee:
    A window is peeked into, so that it can be read again as it is; the slot is moved behind it only when all that was
    recorded is in the dataset, at the next look. So a kill at any moment loses nothing and doubles nothing. Where
    somebody else has moved or dropped the slot, or it was lost, that is noticed by the places and told.
"""

from __future__ import annotations

from typing import Literal, cast

from lakewright.connectors.cdc_names import CaptureNames
from lakewright.connectors.postgres_connection import Session, TableName, quoted
from lakewright.connectors.postgres_log_slot import Place, is_published, look_ahead, lsn_text, move_slot, place_of
from lakewright.errors import InputError
from lakewright.model.arrivals import JsonValue, Window
from lakewright.model.protocols import Found, SourceContext

__all__ = ["IfLost", "bounds_of", "first_window", "gone_of", "look_on", "lsn_number"]

IfLost = Literal["fail", "snapshot"]
_QUIET_BYTES = 64 * 1024 * 1024
"""So much of the log without a change of the table is recorded as a window without rows: the slot follows behind it."""


def lsn_number(text: str) -> int:
    """A place in the log as a number.

    >>> lsn_number("1/A2B") == 0x1_0000_0A2B
    True
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def first_window(table: str, names: CaptureNames, *, snapshot: bool, again: bool) -> Found:
    """The first window: what is there. Nothing is made before it is read."""
    window: dict[str, JsonValue] = {"of": table, "slot": names.slot, "snapshot": snapshot, "again": again}
    return Found(window=window, summary="a snapshot, and the log from then on" if snapshot else "the log from now on")


def bounds_of(window: Window) -> tuple[int, int]:
    """Where a window of changes begins and ends."""
    return lsn_number(cast(str, window["from"])), lsn_number(cast(str, window["to"]))


def look_on(
    session: Session, names: CaptureNames, table: str, ctx: SourceContext, *, most: int, if_lost: IfLost
) -> Found | None:
    """What comes after the last window, which is in the dataset; moves the slot behind that one first."""
    last = ctx.last_window
    assert last is not None
    place = place_of(session, names.slot)
    reached = bounds_of(last)[1] if "to" in last else None
    problem = _problem(names.slot, place, reached)
    if problem is not None:
        if if_lost == "snapshot":
            return first_window(table, names, snapshot=True, again=True)
        raise InputError(
            f"{ctx.dataset}: {problem} Changes of {table} since then are lost. Nothing was read.",
            hint="To begin again with a snapshot, which also ends the rows that are gone: "
            'PostgresLog(..., if_lost="snapshot"); and raise max_slot_wal_keep_size where the slot was lost.',
        )
    assert place is not None
    start = place.confirmed if reached is None else reached
    move_slot(session, names.slot, place, start, who=ctx.dataset)
    ahead = look_ahead(session, names, most=most, who=ctx.dataset)
    if ahead.upto is None and not is_published(session, names, table):
        raise InputError(
            f"{ctx.dataset}: the publication '{names.publication}' does not hold {table} any more: the table was "
            "renamed or dropped, or taken out. Nothing was read.",
            hint=f"ALTER PUBLICATION {quoted(names.publication)} ADD TABLE {TableName.parse(table).sql}; or correct "
            "the name of the table.",
        )
    end = ahead.upto
    if end is None:
        if ahead.looked - start < _QUIET_BYTES:
            return None
        end = ahead.looked
    window: dict[str, JsonValue] = {
        "of": table, "slot": names.slot, "from": lsn_text(start), "to": lsn_text(end), "changes": ahead.changes,
    }  # fmt: skip
    return Found(window=window, summary=f"{ahead.changes:,} changes up to {lsn_text(end)}")


def gone_of(window: Window, place: Place | None) -> list[str]:
    """What of a recorded window can no longer be read, in words."""
    if "to" not in window or not window["changes"]:
        return []
    start, _ = bounds_of(window)
    if place is None or place.lost:
        return [f"the replication slot '{window['slot']}' is {'lost' if place else 'not there any more'}"]
    if place.confirmed > start:
        return [f"the replication slot '{window['slot']}' was moved to {lsn_text(place.confirmed)} by somebody else"]
    return []


def _problem(slot: str, place: Place | None, reached: int | None) -> str | None:
    if place is None:
        return f"the replication slot '{slot}' is not there any more."
    if place.lost:
        return f"the replication slot '{slot}' is lost (wal_status = 'lost'): the log that it stood on is removed."
    if reached is not None and place.confirmed > reached:
        return (
            f"somebody else has moved the replication slot '{slot}' to {lsn_text(place.confirmed)}, and it was read up "
            f"to {lsn_text(reached)}."
        )
    return None
