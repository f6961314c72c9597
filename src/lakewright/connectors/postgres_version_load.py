"""Loading one version behind a view of PostgreSQL: an empty table, its rows, the switch; each a transaction.

Order: the attempt's number is raised in the ledger and the versioned table made anew; the rows are sent; in one
transaction they are moved into the table, counted and judged; in the last one the view shows it, older versions are
dropped and the ledger's log is written. An attempt that was overtaken is stopped by its number at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lakewright.connectors.postgres_connection import (
    ConnectionArguments,
    Session,
    TableName,
    ask,
    connect,
    connecting,
    connection_arguments,
    quoted,
)
from lakewright.connectors.postgres_errors import explain_database_error
from lakewright.connectors.postgres_ledger import Ledger
from lakewright.connectors.postgres_settling import settled_transaction
from lakewright.connectors.postgres_shape import lock_key
from lakewright.connectors.postgres_views import (
    Version,
    drop_unused,
    note_version,
    show_version,
    shown_version,
    versions_of,
)
from lakewright.errors import LeaseHeldError, TargetError
from lakewright.failpoints import failpoint
from lakewright.model.connections import Connection
from lakewright.model.identity import Identity
from lakewright.model.loads import LoadLimits
from lakewright.model.receipts import Change, Commit
from lakewright.model.slices import ANY_CELL

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["IN_DOUBT", "Filling", "VersionLoad", "filled_version", "judge_version", "next_version", "switched_to"]

IN_DOUBT = "It is not known whether the view shows the new version: look, or load it again."

_AGAIN = "_lw_again_"
_MOVED = "numOutputRows"


class Filling(Protocol):
    """Where the rows of a version come from."""

    def types(self) -> Mapping[str, str]:
        """The columns and their types in PostgreSQL."""

    def sending(
        self, session: Session, table: TableName, arguments: ConnectionArguments
    ) -> AbstractContextManager[Callable[[], int]]:
        """Bring the rows near; what it yields moves them into the table, in the caller's transaction."""


def next_version(session: Session, view: TableName) -> int:
    """The number after the last version that was shown: one that died on the way is loaded again under its own."""
    return max((one.number for one in versions_of(session, view).values() if one.was_shown), default=0) + 1


@contextmanager
def filled_version(
    session: Session,
    view: TableName,
    number: int,
    filling: Filling,
    *,
    arguments: ConnectionArguments,
    limits: LoadLimits,
    what: str,
    guard: Callable[[], None] = lambda: None,
) -> Iterator[Version]:
    """A whole, judged version that is not shown yet; ``guard`` is asked within each transaction."""
    with session.transaction():
        guard()
        current = shown_version(session, view)
        before = versions_of(session, view).get(current) if current is not None else None
        table = _empty_table(session, view, number, filling.types(), is_shown=number == current)
        note_version(session, Version(number, table, 0, False))
    with filling.sending(session, table, arguments) as move:
        failpoint("staged")
        with session.transaction():
            guard()
            version = Version(number, table, move(), False)
            judge_version(session, version, limits, what=what, rows_before=None if before is None else before.rows)
            note_version(session, version)
    failpoint("loaded")
    yield version


def switched_to(session: Session, view: TableName, version: Version, *, keep: int) -> bool:
    """Show a version, in the caller's transaction, unless a newer one is shown; drops what is no longer kept."""
    ask(session, f"SELECT pg_advisory_xact_lock({lock_key(f'view {view}')})")
    current = shown_version(session, view)
    if current is not None and current > version.number:
        return False
    show_version(session, view, version)
    if version.table.name.startswith(_AGAIN):
        name = _name(view, version.number)
        ask(session, f"DROP TABLE {view.beside(name).sql}")
        ask(session, f"ALTER TABLE {version.table.sql} RENAME TO {quoted(name)}")
    drop_unused(session, view, keep=keep)
    return True


@dataclass(frozen=True, slots=True)
class VersionLoad:
    """One attempt's load: what, where, and by whom."""

    connection: Connection
    view: TableName
    dataset: str
    identity: Identity
    what: str
    still_mine: Callable[[], bool]
    keep: int
    limits: LoadLimits

    def run(self, filling: Filling, *, number: int | None = None) -> Commit | None:
        """Load and show a version (the next one, where no number is given); None where a newer attempt was first."""
        import psycopg

        arguments, ledger = connection_arguments(self.connection), Ledger(self.view, self.dataset)
        try:
            with connect(arguments) as session:
                with session.transaction():
                    ledger.create(session)
                    if not ledger.take(session, self.identity):
                        return None
                    chosen = next_version(session, self.view) if number is None else number
                loading = filled_version(
                    session,
                    self.view,
                    chosen,
                    filling,
                    arguments=arguments,
                    limits=self.limits,
                    what=self.what,
                    guard=lambda: self._refuse_overtaken(session, ledger),
                )
                with loading as version, settled_transaction(session, arguments, what=self.what, in_doubt=IN_DOUBT):
                    self._refuse_overtaken(session, ledger)
                    shown = switched_to(session, self.view, version, keep=self.keep)
                    commit = self._append(session, ledger, "SWITCH VIEW" if shown else "LOAD", version)
                failpoint(f"committed.{self.identity.part}")
                return commit
        except psycopg.Error as error:
            explained = explain_database_error(error, what=self.what, effect="The view shows what it showed.")
            raise explained from explained.__cause__

    def fence(self) -> Commit | None:
        """Record the attempt's number, so that an older attempt shows nothing any more."""
        ledger = Ledger(self.view, self.dataset)
        told = connecting(self.connection, what=self.what, effect="Nothing was written.")
        with told as session, session.transaction():
            ledger.create(session)
            if not ledger.take(session, self.identity):
                return None
            return ledger.append(session, self.identity, operation="FENCE", metrics={}, touched={})

    def show_earlier(self, position: int) -> Commit | None:
        """Show what was shown at a position of the ledger, if its table is still kept."""
        ledger = Ledger(self.view, self.dataset)
        told = connecting(self.connection, what=self.what, effect="The view shows what it showed.")
        with told as session, session.transaction():
            found = [c for c in ledger.commits(session, -1, position) if "version" in c.metrics and c.data_change]
            number = found[-1].metrics["version"] if found else None
            versions = versions_of(session, self.view)
            if number is None or number not in versions:
                kept = ", ".join(str(one) for one in sorted(versions)) or "none"
                raise TargetError(
                    f"{self.what}: version {'?' if number is None else number} is no longer kept (kept: {kept}). "
                    "The view shows what it showed.",
                    hint="Keep more of them: PostgresVersions(..., keep=...); or load again: `lakewright backfill`.",
                )
            if not ledger.take(session, self.identity):
                return None
            ledger.shut_out(session, self.identity)
            self._refuse_lost()
            show_version(session, self.view, versions[number])
            return self._append(session, ledger, "SWITCH VIEW", versions[number])

    def _append(self, session: Session, ledger: Ledger, operation: str, version: Version) -> Commit:
        metrics = {_MOVED: version.rows, "version": version.number}
        touched = {ANY_CELL: Change(version.rows, None)} if operation == "SWITCH VIEW" else {}
        return ledger.append(session, self.identity, operation=operation, metrics=metrics, touched=touched)

    def _refuse_overtaken(self, session: Session, ledger: Ledger) -> None:
        ledger.lock(session, self.identity)
        if not ledger.holds(session, self.identity):
            raise self._lost()
        self._refuse_lost()

    def _refuse_lost(self) -> None:
        if not self.still_mine():
            raise self._lost()

    def _lost(self) -> LeaseHeldError:
        return LeaseHeldError(
            f"{self.what}: another run has taken over. The view shows what it showed.",
            name=self.dataset,
            owner="another run",
        )


def _name(view: TableName, number: int) -> str:
    return f"{view.name}_{number}"


def _empty_table(
    session: Session, view: TableName, number: int, types: Mapping[str, str], *, is_shown: bool
) -> TableName:
    """The table of a version, made anew; one that readers see is made beside it."""
    table = view.beside((_AGAIN if is_shown else "") + _name(view, number))
    found = ask(session, "SELECT to_regclass(%s) IS NOT NULL", (table.sql,)).fetchone()
    if found is not None and found[0]:
        if not is_shown and number not in versions_of(session, view):
            raise TargetError(
                f"The table {table} is there already, and was not loaded for {view}. Nothing was written.",
                hint="Rename it, or choose another name for the view.",
            )
        ask(session, f"DROP TABLE {table.sql}")
    columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in types.items())
    ask(session, f"CREATE TABLE {table.sql} ({columns})")
    return table


def judge_version(
    session: Session, version: Version, limits: LoadLimits, *, what: str, rows_before: int | None
) -> None:
    """Refuse a version that is loaded and breaks a limit, in the caller's transaction."""
    broken: dict[str, int] = {}
    if limits.rules:
        asked = ", ".join(f"count(*) FILTER (WHERE NOT coalesce(({rule}), false))" for rule in limits.rules.values())
        row = ask(session, f"SELECT {asked} FROM {version.table.sql}").fetchone()
        broken = dict(zip(limits.rules, row or (), strict=True))
    limits.refuse_bad(what=what, rows=version.rows, rows_before=rows_before, broken=broken)
