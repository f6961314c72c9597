"""A table of PostgreSQL that ordered records are added to, by the tasks that hold them: a feed for whoever polls it.

Guarantee:
    A request is one transaction. The table (made if it is not there) numbers its rows (``position``), so the records of
    an entity have rising positions in their order. A record is there once, however often it is sent: its id is unique,
    also after a connection that was lost in a commit, or a repeat of the whole job.
Consequences:
    - Entities of different tasks lie between each other. A reader that polls by position may not see a row whose
      transaction ends later: let it look back some seconds, or read an entity at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field

from lakewright.connectors.postgres_connection import (
    ConnectionArguments,
    Session,
    TableName,
    ask,
    connect,
    connection_arguments,
)
from lakewright.connectors.postgres_errors import explain_database_error, state_of
from lakewright.errors import ConfigurationError
from lakewright.model.connections import Connection
from lakewright.model.secrets import mask
from lakewright.patterns.data_value.ordered_sinks import Commits, Outgoing, RequestLostError

__all__ = ["PostgresSink"]

_PASSES = ("08", "40", "53", "57")
"""Classes of SQLSTATE that may pass: connection, conflict, resources, shut down."""


@dataclass(frozen=True, slots=True)
class PostgresSink:
    """A feed table of a database: ``PostgresSink(connection, "visits_feed")``."""

    connection: Connection
    table: str
    _: KW_ONLY
    tables: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Output -> its table, where there are several outputs."""
    bulk_limit: int = 1000
    arguments: ConnectionArguments | None = field(default=None, repr=False)
    """How to connect; looked up before it travels to the tasks."""

    def __post_init__(self) -> None:
        if self.bulk_limit < 1 or not (self.table or self.tables):
            raise ConfigurationError("PostgresSink: name a table; bulk_limit is at least 1.")

    @property
    def shown(self) -> str:
        return f"{self.connection.name}: {self.table or ', '.join(self.tables.values())}"

    @property
    def commits(self) -> Commits:
        return "full"

    @property
    def pipelined(self) -> bool:
        return False

    def prepared(self, producer: Mapping[str, str]) -> PostgresSink:
        """The same, its password looked up: tasks may run where it cannot be."""
        from dataclasses import replace

        return replace(self, arguments=connection_arguments(self.connection))

    def open(self, output: str = "") -> OpenFeed:
        if output and self.tables and output not in self.tables:
            raise ConfigurationError(f"PostgresSink: no table is named for '{output}': {', '.join(self.tables)}.")
        table = TableName.parse(self.tables.get(output, self.table))
        return OpenFeed(self.arguments or connection_arguments(self.connection), table, self.shown)


class OpenFeed:
    """A feed table that is being added to: fulfils ``OpenSink``."""

    def __init__(self, arguments: ConnectionArguments, table: TableName, what: str) -> None:
        arguments.mask()
        self._arguments, self._table, self._what = arguments, table, what
        self._session: Session | None = None

    def send(self, records: Sequence[Outgoing]) -> Mapping[int, str]:
        import psycopg

        rows = [(one.id, one.key, one.sequence, one.value.decode(errors="replace")) for one in records]
        try:
            session = self._connected()
            with session.transaction(), session.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {self._table.sql} (id, key, sequence, value) VALUES (%s, %s, %s, %s) "
                    "ON CONFLICT (id) DO NOTHING".encode(),
                    rows,
                )
        except psycopg.Error as error:
            self.close()  # the next try begins with a connection of its own
            if state_of(error)[:2] in _PASSES:
                raise RequestLostError(mask(str(error).strip().split("\n")[0])) from None
            explained = explain_database_error(
                error, what=self._what, effect="What was acknowledged before stays; nothing after it was written."
            )
            raise explained from explained.__cause__
        return {}

    def close(self) -> None:
        if self._session is not None:
            import psycopg

            with suppress(psycopg.Error):
                self._session.close()
            self._session = None

    def _connected(self) -> Session:
        if self._session is None:
            self._session = connect(self._arguments)
            with self._session.transaction():
                # Tasks begin at once: whoever comes second finds the table made.
                ask(self._session, "SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                ask(
                    self._session,
                    f"CREATE TABLE IF NOT EXISTS {self._table.sql} (position bigint GENERATED ALWAYS AS IDENTITY, "
                    "id text PRIMARY KEY, key text NOT NULL, sequence bigint NOT NULL, value text)",
                )
        return self._session


_LOCK = 7_205_310_518
"""An advisory lock for making feed tables."""
