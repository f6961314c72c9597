"""The replication slot and the publication of a capture: how far it is behind, and how both are taken away.

A slot that nobody reads holds back the database's log until its disk is full, or until ``max_slot_wal_keep_size`` is
reached and the slot is lost.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from lakewright.connectors.postgres_connection import Session, ask, quoted
from lakewright.errors import TargetError

__all__ = ["SlotState", "drop_publication", "drop_slot", "slot_state"]

_RELEASE_SECONDS = 15.0
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class SlotState:
    """A replication slot as the database sees it."""

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    """The process of the database that serves its reader; None: nobody reads it."""
    reader: str | None
    """What that reader calls itself."""
    lag_bytes: int | None
    """How much of the log lies between what the reader has confirmed and the newest of it. It does not reach zero."""
    wal_status: str | None
    """``reserved`` and ``extended`` are well; ``unreserved`` is about to be, and ``lost`` is, of no use any more."""

    @property
    def lost(self) -> bool:
        return self.wal_status == "lost"


def slot_state(session: Session, name: str) -> SlotState | None:
    """The slot now; None where there is none."""
    row = ask(
        session,
        "SELECT s.slot_name, s.plugin, s.database, s.active_pid, a.application_name, "
        "pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, "
        "s.confirmed_flush_lsn)::bigint, s.wal_status "
        "FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s",
        [name],
    ).fetchone()
    return None if row is None else SlotState(*row)


def drop_slot(session: Session, name: str, *, who: str) -> bool:
    """Drop the slot, once its reader has let go of it; False where there is none."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        state = slot_state(session, name)
        if state is None:
            return False
        if state.active_pid is None:
            ask(session, "SELECT pg_drop_replication_slot(%s)", [name])
            return True
        if time.monotonic() > deadline:
            raise TargetError(
                f"{who}: the replication slot '{name}' is still read by process {state.active_pid} of the database "
                f"({state.reader or 'unnamed'}), and cannot be dropped. It holds back the database's log.",
                hint=f"SELECT pg_terminate_backend({state.active_pid}); then decommission again.",
            )
        time.sleep(_PAUSE_SECONDS)


def drop_publication(session: Session, name: str) -> bool:
    """Drop the publication; False where there is none, or where it is somebody else's."""
    row = ask(
        session, "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s", [name]
    ).fetchone()
    if row is None or not row[0]:
        return False
    ask(session, f"DROP PUBLICATION IF EXISTS {quoted(name)}")
    return True
