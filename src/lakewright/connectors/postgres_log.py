"""Change Data Capture without a broker: the changes of a table of PostgreSQL, read from its log by each run.

Problem:
    Hard deletes and what changed twice between two runs are wanted, and some minutes of delay are fine: Kafka, a worker
    of Kafka Connect and Debezium are three services too many for that.
Guarantee:
    Each committed insert, update, delete and truncate of the table arrives once, with the columns that
    ``ChangeDataCapture`` gives, so that `LatestValue` and `RowVersions` follow either. Arrivals are recorded ranges of
    the log, of whole transactions; they are peeked into, and the slot is moved behind one only after it is in the
    dataset: a kill at any moment loses and doubles nothing. First comes a snapshot, read after the slot was made.
Consequences:
    - What changed between the making of the slot and the snapshot is in both. Rows of the snapshot have a place in the
      log before every change that follows, so the changes win, deletes hold, and a copy is right once the next arrival
      is in.
    - The slot holds back the database's log from run to run: let it run often enough, watch ``slot().lag_bytes`` of
      ``project.capture(name)``, and ``decommission()`` what is no longer wanted.
    - An arrival that is in the dataset is not read again: repeats begin there.
    - To look makes the database decode what the arrival will hold, and to read it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, get_args

from lakewright.connectors.cdc_changes import CHANGE_COLUMNS, complete_schema
from lakewright.connectors.cdc_names import CaptureNames, check_slot_name, derived_name, qualified
from lakewright.connectors.cdc_reach import Reach
from lakewright.connectors.postgres_connection import Session, ask, connection_arguments, words
from lakewright.connectors.postgres_log_decoder import relation_of
from lakewright.connectors.postgres_log_feed import LogFeed
from lakewright.connectors.postgres_log_slot import open_log, peeking, place_of, when_free
from lakewright.connectors.postgres_log_windows import IfLost, bounds_of, first_window, gone_of, look_on
from lakewright.errors import ConfigurationError, SchemaChangeError, did_you_mean
from lakewright.model.arrivals import Arrival, Window
from lakewright.model.connections import Connections
from lakewright.model.protocols import Found, SourceContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakewright.connectors.postgres_log_reading import Reading

__all__ = ["PostgresLog"]


@dataclass(frozen=True, slots=True)
class PostgresLog:
    """The changes of a table: ``PostgresLog("blog_db", "public.visits")``."""

    connection: str
    """A connection of the kind postgresql."""
    table: str
    """With its schema; ``public`` where none is given."""
    _: KW_ONLY
    snapshot: bool = True
    """Whether the rows that are there already come first; without, only what changes from the first run on."""
    max_changes: int = 100_000
    """About so many changes in one arrival; a transaction is never cut, however many it holds."""
    if_lost: IfLost = "fail"
    """What to do where the slot was lost, dropped, or moved by somebody else: refuse, or begin with a new snapshot."""
    slot: str | None = None
    """By itself, like the publication: ``lw_PROJECT_DATASET``. Each source has its own."""
    publication: str | None = None

    def __post_init__(self) -> None:
        if not self.connection:
            raise ConfigurationError("PostgresLog: the connection is empty.")
        (table,) = qualified([self.table], who="PostgresLog")
        object.__setattr__(self, "table", table)
        if self.max_changes < 1:
            raise ConfigurationError(f"PostgresLog: max_changes is {self.max_changes}. At least 1.")
        if self.if_lost not in get_args(IfLost):
            raise ConfigurationError(f"PostgresLog: if_lost is 'fail' or 'snapshot', not {self.if_lost!r}.")
        if self.if_lost == "snapshot" and not self.snapshot:
            raise ConfigurationError("PostgresLog: if_lost='snapshot' needs snapshot=True.")
        for option in ("slot", "publication"):
            check_slot_name(option, getattr(self, option), who="PostgresLog")

    @property
    def repeatable(self) -> bool:
        """No: what is in the dataset, the slot has left behind."""
        return False

    @property
    def takes_part(self) -> str:
        """Why an arrival is only a part of the table."""
        return "the log tells only what has changed"

    def names(self, project: str, dataset: str) -> CaptureNames:
        """What slot and publication are called."""
        name = derived_name(project, dataset)
        return CaptureNames(name, self.slot or name, self.publication or name, name)

    def feed(self, connections: Connections, *, project: str, dataset: str) -> LogFeed:
        """Its slot and publication: what they lack, how they stand, and their end; asks nobody yet."""
        reach = Reach(dataset, connections, self.connection)
        return LogFeed(dataset, self.names(project, dataset), self.table, self.snapshot, reach)

    def look(self, ctx: SourceContext) -> Found | None:
        """The changes since the last arrival. Moves the slot behind what is in the dataset, and makes nothing."""
        if ctx.waiting:  # the slot stands before it: it is read first
            return None
        feed = self._feed(ctx)
        with feed.reach.asking() as session:
            if ctx.last_window is None:
                feed.refuse_problems(session)
                return first_window(self.table, feed.names, snapshot=self.snapshot, again=False)
            return look_on(session, feed.names, self.table, ctx, most=self.max_changes, if_lost=self.if_lost)

    def gone(self, arrival: Arrival, ctx: SourceContext) -> Sequence[str]:
        """That the slot is lost, or was moved by somebody else."""
        feed = self._feed(ctx)
        with feed.reach.asking() as session:
            return gone_of(arrival.window, place_of(session, feed.names.slot))

    def read(
        self, arrival: Arrival, *, spark: SparkSession, schema: StructType | None, ctx: SourceContext
    ) -> DataFrame:
        """Every change of the window, or the snapshot, for which the slot is made here; the rows are lazy."""
        from lakewright.connectors.postgres_log_reading import fetch_texts
        from lakewright.connectors.postgres_log_rows import as_changes

        if schema is None:
            raise ConfigurationError(
                f"{ctx.dataset}: PostgresLog needs a schema.",
                hint="Declare its columns: schema='id INT, page STRING'; docs/cdc.md tells which types.",
            )
        own = type(schema)([field for field in schema.fields if field.name not in CHANGE_COLUMNS])
        feed = self._feed(ctx)
        with feed.reach.asking() as session:
            reading = self._reading(session, feed, arrival.window, own, ctx)
        texts = fetch_texts(spark, reading, len(own.fields))
        return as_changes(texts, own, schema, dataset=ctx.dataset, table=self.table)

    def complete_schema(self, schema: StructType | None) -> StructType | None:
        """The declared columns, and those that tell of the change."""
        return complete_schema(schema)

    def gained_columns(self, arrival: Arrival, *, schema: StructType, ctx: SourceContext) -> dict[str, str]:
        """Nothing: columns that the schema does not name are not seen."""
        return {}

    def _feed(self, ctx: SourceContext) -> LogFeed:
        return self.feed(ctx.connections, project=ctx.project_name, dataset=ctx.dataset)

    def _reading(
        self, session: Session, feed: LogFeed, window: Window, own: StructType, ctx: SourceContext
    ) -> Reading | None:
        from lakewright.connectors.postgres_log_reading import Reading
        from lakewright.connectors.postgres_log_values import way_of

        columns = tuple((field.name, way_of(field.dataType)) for field in own.fields)
        arguments = connection_arguments(feed.reach.database())
        if "snapshot" in window:
            place = open_log(session, feed.names, self.table, anew=bool(window["again"]), who=ctx.dataset)
            if not window["snapshot"]:
                return None
            self._refuse_missing(own.names, _columns(session, self.table)[0], ctx)
            again = bool(window["again"])
            return Reading(arguments, feed.names, self.table, columns, snapshot_at=place.oldest, again=again)
        if not window["changes"]:
            return None
        start, end = bounds_of(window)
        present, keys = _columns(session, self.table)
        if not set(own.names) <= set(present):  # a column that came later is NULL before; one that went is refused
            self._refuse_missing(own.names, self._told_columns(session, feed, end, ctx), ctx)
        return Reading(arguments, feed.names, self.table, columns, keys=keys, start=start, end=end)

    def _told_columns(self, session: Session, feed: LogFeed, end: int, ctx: SourceContext) -> list[str]:
        """The columns that the table has had throughout a window."""
        statement = f"SELECT DISTINCT data FROM {peeking(feed.names, upto=end)} WHERE get_byte(data, 0) = ascii('R')"
        rows = when_free(session, feed.names.slot, lambda: ask(session, statement).fetchall(), who=ctx.dataset)
        told = [found.columns for row in rows if (found := relation_of(row[0])).table == self.table]
        return [name for name in told[0] if all(name in columns for columns in told)] if told else []

    def _refuse_missing(self, declared: Sequence[str], present: Sequence[str], ctx: SourceContext) -> None:
        if missing := [name for name in declared if name not in present]:
            raise SchemaChangeError(
                f"{ctx.dataset}: the table {self.table} has no column {', '.join(missing)} any more, or never had. "
                "Nothing was read.",
                hint=did_you_mean(missing[0], present) or "Take it out of the schema, or bring it back.",
            )


def _columns(session: Session, table: str) -> tuple[list[str], tuple[str, ...]]:
    """The columns of a table as it is now, and its primary key."""
    schema, _, name = table.partition(".")
    rows = ask(
        session,
        "SELECT a.attname, coalesce(i.indisprimary, false) FROM pg_attribute a "
        "JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY (i.indkey) "
        f"WHERE n.nspname = {words(schema)} AND c.relname = {words(name)} AND a.attnum > 0 AND NOT a.attisdropped "
        "ORDER BY a.attnum",
    ).fetchall()
    return [str(row[0]) for row in rows], tuple(str(row[0]) for row in rows if row[1])
