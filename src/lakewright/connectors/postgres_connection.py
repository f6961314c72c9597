"""Reaching PostgreSQL: by psycopg for questions and transactions, by Spark's JDBC source for rows.

The password is looked up here, at the last moment, and handed on as an option of its own: it is in no URL, plan or
message. What the url and the options of a connection say goes to both; an option that begins with ``spark.`` goes to
Spark's driver alone, without that prefix: libpq refuses what it does not know, such as ``socketTimeout``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from lakewright.connectors.postgres_errors import explain_database_error
from lakewright.errors import ConfigurationError, did_you_mean
from lakewright.masking import remember
from lakewright.model.connections import Connection
from lakewright.model.secrets import Secret

if TYPE_CHECKING:
    import psycopg

__all__ = [
    "KEEPALIVES",
    "LOCK_SECONDS",
    "ConnectionArguments",
    "Session",
    "TableName",
    "ask",
    "beside_values",
    "connect",
    "connecting",
    "connection_arguments",
    "jdbc_options",
    "no_such_table",
    "quoted",
    "words",
]

Session: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
Given = TypeVar("Given", bound="str | Secret")

_CONNECT_SECONDS = 10
LOCK_SECONDS = 90
_SILENT_SECONDS = 60
KEEPALIVES = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""What libpq is told: for an answer of a machine that has vanished it waits a minute, where Linux would wait for hours.

No ``tcp_user_timeout``: Linux would then leave these counts, and end a COPY into a database that is alive and does not
read for a while, as when it waits for a lock.
"""
_SPARK_ONLY = "spark."
_SESSION = (
    "SET TIME ZONE 'UTC'; SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET bytea_output = 'hex'; "
    "SET extra_float_digits = 1; SET standard_conforming_strings = on; "
    f"SET lock_timeout = '{LOCK_SECONDS}s'; "
    # A process that is stopped in the middle of a transaction must not hold up its successor for ever.
    f"SET idle_in_transaction_session_timeout = '{_SILENT_SECONDS}s'; "
    # Nor one whose machine lost its power in the middle of a COPY: the server waits for its rows for two hours.
    "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"
)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, and its schema where one is given: ``daily_pages``, ``reports.daily_pages``."""

    name: str
    schema: str | None = None

    @classmethod
    def parse(cls, text: str) -> TableName:
        schema, _, name = text.rpartition(".")
        return cls(name, schema or None)

    @property
    def sql(self) -> str:
        return quoted(self.name) if self.schema is None else f"{quoted(self.schema)}.{quoted(self.name)}"

    def beside(self, name: str) -> TableName:
        """Another table of the same schema."""
        return TableName(name, self.schema)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class ConnectionArguments:
    """What psycopg needs, as plain values that can travel to a worker."""

    values: dict[str, str] = field(repr=False)
    """With the password, so it is never shown."""
    hidden: tuple[str, ...] = field(default=(), repr=False)
    """The names of those values that are secrets."""

    def mask(self) -> None:
        """Let the secrets be masked in this process too: a worker has not looked them up itself."""
        for name in self.hidden:
            remember(self.values[name])


def quoted(name: str) -> str:
    """A name as PostgreSQL reads it.

    >>> quoted("daily pages")
    '"daily pages"'
    """
    return '"' + name.replace('"', '""') + '"'


def beside_values(statement: str) -> str:
    """SQL of others (a query, a name) for a statement that values come beside: its percent signs stay what they are.

    >>> beside_values("SELECT * FROM pages WHERE path LIKE '/blog/%'")
    "SELECT * FROM pages WHERE path LIKE '/blog/%%'"
    """
    return statement.replace("%", "%%")


def words(text: str) -> str:
    """A text as a literal, for statements that take no parameters.

    >>> words("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def ask(session: Session, statement: str, values: Sequence[object] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
    """Execute a statement that we put together; names in it are `quoted`, values come beside it.

    Where there are values, every other percent sign is doubled: see `beside_values`.
    """
    return session.execute(statement.encode(), values or None)


def connection_arguments(connection: Connection) -> ConnectionArguments:
    """The parts of a connection, its password looked up now."""
    parts = urlsplit(connection.url)
    found = {
        "host": parts.hostname or "",
        "port": str(parts.port or 5432),
        "dbname": unquote(parts.path.lstrip("/")) or unquote(parts.username or ""),
        "application_name": "lakewright",
        "connect_timeout": str(_CONNECT_SECONDS),
        **KEEPALIVES,
        **_for_both(dict(parse_qsl(parts.query))),
        **_for_both(connection.revealed_options()),
    }
    if parts.username:
        found["user"] = unquote(parts.username)
    hidden = [name for name, value in _for_both(connection.options).items() if isinstance(value, Secret)]
    if connection.password is not None:
        found["password"] = connection.password.reveal()
        hidden.append("password")
    return ConnectionArguments(found, tuple(hidden))


def connect(arguments: ConnectionArguments, *, autocommit: bool = True) -> Session:
    """A session in UTC that gives up where it would wait for ever; raises psycopg's own errors."""
    try:
        import psycopg
    except ImportError:
        raise ConfigurationError(
            "PostgreSQL needs the package psycopg, which is not installed.",
            hint='pip install "lakewright[postgres]"',
        ) from None
    values: dict[str, Any] = {**arguments.values, "autocommit": True, "prepare_threshold": None}
    made = psycopg.connect(**values)
    made.execute(_SESSION.encode())
    made.autocommit = autocommit
    return made


@contextmanager
def connecting(connection: Connection, *, what: str, effect: str = "", reading: bool = False) -> Iterator[Session]:
    """A session for some questions, each committed by itself; what PostgreSQL refuses comes out in words."""
    arguments = connection_arguments(connection)
    try:
        made = connect(arguments)
    except Exception as error:
        explained = _explained(error, what, effect, reading)
        raise explained from explained.__cause__
    try:
        with made:
            yield made
    except Exception as error:
        explained = _explained(error, what, effect, reading)
        raise explained from explained.__cause__


def _explained(error: Exception, what: str, effect: str, reading: bool) -> Exception:
    import psycopg

    if not isinstance(error, psycopg.Error):
        return error
    return explain_database_error(error, what=what, effect=effect, reading=reading)


def jdbc_options(connection: Connection) -> dict[str, str]:
    """The options of Spark's JDBC source; the password is one of its own, which Spark shows nowhere."""
    parts = urlsplit(connection.url)
    asked, own = dict(parse_qsl(parts.query)), connection.revealed_options()
    rest = {**_for_both(asked), "ApplicationName": "lakewright"}
    database = parts.path.lstrip("/") or (parts.username or "")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname  # of IPv6
    options = {
        "url": f"jdbc:postgresql://{host}:{parts.port or 5432}/{database}?{urlencode(rest)}",
        "driver": "org.postgresql.Driver",
        # A timestamp without a time zone stays one: read as UTC, it would depend on the machine.
        "preferTimestampNTZ": "true",
        # Or a machine that vanished in the middle of an answer would be waited for without end.
        "tcpKeepAlive": "true",
        **_for_both(own),
        **_for_spark({**asked, **own}),
    }
    if parts.username:
        options["user"] = unquote(parts.username)
    if connection.password is not None:
        options["password"] = connection.password.reveal()
    return options


def _for_both(options: Mapping[str, Given]) -> dict[str, Given]:
    return {name: value for name, value in options.items() if not name.startswith(_SPARK_ONLY)}


def _for_spark(options: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(_SPARK_ONLY): value for name, value in options.items() if name.startswith(_SPARK_ONLY)}


def no_such_table(session: Session, table: TableName, *, what: str) -> ConfigurationError:
    """The complaint about a table that is not there, with the nearest name that is."""
    rows = ask(
        session,
        "SELECT CASE WHEN pg_table_is_visible(c.oid) THEN c.relname ELSE n.nspname || '.' || c.relname END "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema') "
        "AND n.nspname NOT LIKE 'pg_toast%' ORDER BY 1",
    ).fetchall()
    known = [str(row[0]) for row in rows if not str(row[0]).rpartition(".")[2].startswith("_lw_")]
    listed = f" It has {', '.join(known[:8])}{' and more' if len(known) > 8 else ''}." if known else ""
    return ConfigurationError(
        f"{what}: the database has no table {table}.{listed} Nothing was read.",
        hint=did_you_mean(str(table), known) or "Correct the name, or write its schema in front of it.",
    )
