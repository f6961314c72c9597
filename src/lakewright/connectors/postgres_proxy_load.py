"""One attempt's load behind a proxy: a write-once table, then the switch with the ledger's row; each a transaction."""

from __future__ import annotations

from dataclasses import dataclass

from lakewright.connectors.postgres_connection import Session, connect, connection_arguments
from lakewright.connectors.postgres_errors import explain_database_error
from lakewright.connectors.postgres_ledger import Ledger
from lakewright.connectors.postgres_settling import settled_transaction
from lakewright.connectors.postgres_version_load import IN_DOUBT, Filling, VersionLoad
from lakewright.connectors.postgres_views import Version, versions_of
from lakewright.connectors.postgres_write_once import load_once, loaded_for, point_at
from lakewright.failpoints import failpoint
from lakewright.model.receipts import Commit

__all__ = ["WriteOnceLoad"]


@dataclass(frozen=True, slots=True)
class WriteOnceLoad(VersionLoad):
    """A load that never touches a table of another one."""

    keeper: str | None = None
    made_from: str | None = None

    def run(self, filling: Filling, *, number: int | None = None) -> Commit | None:
        """Load and show one more version; None where a newer attempt was first."""
        import psycopg

        assert number is None, "numbers are given by the load"
        arguments, ledger = connection_arguments(self.connection), Ledger(self.view, self.dataset)
        try:
            with connect(arguments) as session:
                with session.transaction():
                    ledger.create(session)
                    if not ledger.take(session, self.identity):
                        return None
                    shown = self._shown(session, ledger)
                    waiting = self._waiting(session, shown)
                version = waiting or load_once(
                    session,
                    self.view,
                    filling,
                    arguments=arguments,
                    limits=self.limits,
                    what=self.what,
                    keeper=self.keeper,
                    made_from=self.made_from,
                    after=max(shown, default=0),
                    guard=lambda: self._refuse_overtaken(session, ledger),
                )
                with settled_transaction(session, arguments, what=self.what, in_doubt=IN_DOUBT):
                    self._refuse_overtaken(session, ledger)
                    point_at(session, self.view, version.number)
                    commit = self._append(session, ledger, "SWITCH VIEW", version)
                failpoint(f"committed.{self.identity.part}")
                return commit
        except psycopg.Error as error:
            explained = explain_database_error(error, what=self.what, effect="The view shows what it showed.")
            raise explained from explained.__cause__

    def _shown(self, session: Session, ledger: Ledger) -> set[int]:
        """The numbers that the view has shown: also of tables that an administrator has dropped since."""
        told = (commit.metrics.get("version") for commit in ledger.commits(session, -1, 2**62))
        return {number for number in told if number is not None}

    def _waiting(self, session: Session, shown: set[int]) -> Version | None:
        """A version that was loaded from the same, and that the view has never shown."""
        if self.made_from is None:
            return None
        number = loaded_for(session, self.view, self.made_from)
        return None if number is None or number in shown else versions_of(session, self.view)[number]
