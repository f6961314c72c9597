"""The replication slot of a log that we read ourselves: made, looked at, peeked into and moved, by plain SQL.

Guarantee:
    To peek moves nothing: what was peeked into comes again, the same, until `move_slot` was called. A snapshot that is
    read after `open_log` has returned, and what the slot tells from then on, leave no gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from lakewright.connectors.cdc_names import CaptureNames
from lakewright.connectors.cdc_slot import drop_slot, slot_state
from lakewright.connectors.postgres_connection import Session, TableName, ask, quoted, words
from lakewright.errors import InputError, TargetError

__all__ = ["Ahead", "Place", "look_ahead", "lsn_text", "move_slot", "open_log", "peeking", "place_of", "when_free"]

T = TypeVar("T")
_FREE_SECONDS = 20.0
_SETTLE_SECONDS = 90.0
_PAUSE_SECONDS = 0.1
_NUMBER = "(%s - '0/0'::pg_lsn)::bigint"
_NEWEST = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END"


class Place(NamedTuple):
    """Where a slot stands, as numbers."""

    confirmed: int
    """What was committed before is not told again."""
    oldest: int
    """No change that will be told lies before it in the log; what was changed before the slot was made does."""
    lost: bool


class Ahead(NamedTuple):
    """What a slot holds."""

    upto: int | None
    """Where its last whole transaction ends; None: there is none of the table."""
    changes: int
    looked: int
    """How far the log was looked at."""


def lsn_text(number: int) -> str:
    """A place in the log as PostgreSQL writes it.

    >>> lsn_text(0x1_0000_0A2B)
    '1/A2B'
    """
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def place_of(session: Session, slot: str) -> Place | None:
    """Where the slot stands; None where there is none."""
    row = ask(
        session,
        f"SELECT {_NUMBER % 'confirmed_flush_lsn'}, {_NUMBER % 'restart_lsn'}, coalesce(wal_status = 'lost', false) "
        f"FROM pg_replication_slots WHERE slot_name = {words(slot)}",
    ).fetchone()
    return None if row is None else Place(row[0] or 0, row[1] or 0, row[2])


def peeking(names: CaptureNames, *, upto: int, most: int | None = None) -> str:
    """SQL for what the slot holds, up to a place: whole transactions, until there are ``most`` messages."""
    return (
        f"pg_logical_slot_peek_binary_changes({words(names.slot)}, {words(lsn_text(upto))}::pg_lsn, "
        f"{most or 'NULL'}, 'proto_version', '1', 'publication_names', {words(names.publication)})"
    )


def look_ahead(session: Session, names: CaptureNames, *, most: int, who: str) -> Ahead:
    """What comes next; the database counts, and sends no change."""
    row = ask(session, f"SELECT {_NUMBER % f'({_NEWEST})'}").fetchone()
    assert row is not None
    looked = int(row[0])
    statement = (
        f"SELECT {_NUMBER % 'max(lsn) FILTER (WHERE get_byte(data, 0) = ascii($$C$$))'}, "
        "count(*) FILTER (WHERE chr(get_byte(data, 0)) IN ('I', 'U', 'D', 'T')) "
        f"FROM {peeking(names, upto=looked, most=most)}"
    )
    found = when_free(session, names.slot, lambda: ask(session, statement).fetchone(), who=who)
    assert found is not None
    return Ahead(found[0], found[1], looked)


def move_slot(session: Session, slot: str, place: Place, to: int, *, who: str) -> None:
    """Let the database forget what is in the lake; not backwards."""
    if place.confirmed >= to:
        return
    statement = f"SELECT {_NUMBER % 'end_lsn'} FROM pg_replication_slot_advance({words(slot)}, {words(lsn_text(to))})"
    row = when_free(session, slot, lambda: ask(session, statement).fetchone(), who=who)
    if row is None or row[0] < to:
        raise InputError(
            f"{who}: the log of the database does not reach {lsn_text(to)}, up to where it was already read: it was "
            "brought back to an earlier state. Nothing was read.",
            hint="Its changes since then differ from those that were taken: declare the source under a new name.",
        )


def open_log(session: Session, names: CaptureNames, table: str, *, anew: bool, who: str) -> Place:
    """Make publication and slot where they are not there, and wait until a snapshot sees all that the slot leaves out.

    ``anew`` drops a slot that is there. One that an earlier attempt has made is kept otherwise.
    """
    listed = TableName.parse(table).sql
    there = ask(session, f"SELECT count(*) FROM pg_publication WHERE pubname = {words(names.publication)}").fetchone()
    if there == (0,):
        ask(session, f"CREATE PUBLICATION {quoted(names.publication)} FOR TABLE {listed}")
    elif not is_published(session, names, table):
        ask(session, f"ALTER PUBLICATION {quoted(names.publication)} ADD TABLE {listed}")
    if anew:
        drop_slot(session, names.slot, who=who)
    if place_of(session, names.slot) is None:
        ask(session, f"SELECT pg_create_logical_replication_slot({words(names.slot)}, 'pgoutput')")
    _settle(session, who)
    place = place_of(session, names.slot)
    assert place is not None
    return place


def is_published(session: Session, names: CaptureNames, table: str) -> bool:
    """Whether the publication still holds the table under this name."""
    schema, _, name = table.partition(".")
    row = ask(
        session,
        f"SELECT count(*) FROM pg_publication_tables WHERE pubname = {words(names.publication)} "
        f"AND schemaname = {words(schema)} AND tablename = {words(name)}",
    ).fetchone()
    return row is not None and row[0] > 0


def when_free(session: Session, slot: str, asked: Callable[[], T], *, who: str) -> T:
    """Ask, again and again while somebody else reads the slot: one of ours is done soon."""
    from psycopg.errors import ObjectInUse

    deadline = time.monotonic() + _FREE_SECONDS
    while True:
        try:
            return asked()
        except ObjectInUse:
            session.rollback()
            if time.monotonic() > deadline:
                raise _taken(session, slot, who) from None
            time.sleep(_PAUSE_SECONDS)


def _taken(session: Session, slot: str, who: str) -> TargetError:
    state = slot_state(session, slot)
    pid = None if state is None else state.active_pid
    reader = "" if state is None else f" ({state.reader or 'unnamed'})"
    return TargetError(
        f"{who}: the replication slot '{slot}' is taken: process {pid} of the database{reader} reads it. Nothing was "
        "read.",
        hint=f"End it (SELECT pg_terminate_backend({pid});), or give this source a slot of its own: slot='...'.",
    )


def _settle(session: Session, who: str) -> None:
    """Wait for the transactions that are under way.

    One whose commit is in the log before the slot's place, and which is not told by the slot, may still be waiting for
    its disk or its replica, and so not be seen by a snapshot yet.
    """
    begun = ask(session, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        oldest = ask(session, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint").fetchone()
        assert begun is not None
        assert oldest is not None
        if oldest[0] >= begun[0]:
            return
        if time.monotonic() > deadline:
            raise TargetError(
                f"{who}: a transaction of the database is under way for more than {_SETTLE_SECONDS:.0f} s, and a "
                "snapshot has to wait for it. Nothing was read.",
                hint="See SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start; then run again.",
            )
        time.sleep(_PAUSE_SECONDS)
