"""A table or query of PostgreSQL as a source.

Guarantee:
    With ``cursor`` (a rising column) each arrival is the range of it after the last one, up to the highest value when
    the arrival was recorded; both ends stand in the window and are pushed down to the database. Without one an arrival
    is a snapshot, and there is one only where the table has changed since the last: the server compares a count and a
    sum of row hashes, in one query. With ``key`` the rows are read in ``partitions`` parallel parts between the real
    bounds of it, which are asked when the arrival is recorded.
Consequences:
    - Rows of a database change, so an arrival that is in bronze is never read again: repeats begin at bronze. One that
      was recorded and not yet read is read as recorded; a snapshot then holds what is there by now.
    - A cursor sees no deletes, and no row that is committed late with a value equal to or below one that was already
      taken: use a column that the database sets at the change, and a snapshot from time to time. A date is equal for a
      whole day, so a run warns of it: load whole days (``IncrementalLoader(every="1 day")``). Rows whose cursor is
      NULL, infinite or no number are refused, since they, or all that comes later, would never arrive.
    - Parallel parts are read by sessions of their own: choose a key that does not change (an id), or a row could be
      read twice or not at all while it moves.
    - A snapshot's fingerprint makes the server read the table once. For a large one name a cursor.
    - What arrives: numeric(p, s) as decimal(p, s), plain numeric as decimal(38, 18); timestamptz as timestamp,
      timestamp as timestamp_ntz; uuid, json, jsonb, inet, enums as string; bytea as binary; arrays as arrays. Other
      types (interval, time, ranges, money, points, bits, composites) are refused by the column's name: cast them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from lakewright.connectors.postgres_connection import connecting, jdbc_options, quoted
from lakewright.errors import ConfigurationError
from lakewright.model.arrivals import Arrival, JsonValue, Window
from lakewright.model.connections import Connection
from lakewright.model.loads import CursorCut
from lakewright.model.protocols import Found, SourceContext

if TYPE_CHECKING:  # a project file names sources before Spark is there
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakewright.connectors.jdbc_questions import FoundColumn
    from lakewright.connectors.postgres_connection import Session

__all__ = ["Jdbc"]


@dataclass(frozen=True, slots=True)
class Jdbc:
    """A table (``users``, ``shop.users``) or a query of a connection in ``lakewright.toml``."""

    connection: str
    table: str | None = None
    query: str | None = None
    key: str | None = None
    """A number, date or time column to read in parallel."""
    partitions: int = 4
    cursor: str | None = None
    """A rising column: only what is above its last value arrives; what comes later with an equal one does not."""
    columns: Sequence[str] = ()
    fetch_size: int = 10_000

    def __post_init__(self) -> None:
        if (self.table is None) == (self.query is None):
            raise ConfigurationError(
                'Jdbc: give a table or a query, such as Jdbc("blog_db", table="users"), and not both.'
            )
        if isinstance(self.columns, str):
            raise ConfigurationError('Jdbc: columns is a list, such as columns=["user_id", "country"].')
        for option in ("partitions", "fetch_size"):
            if getattr(self, option) < 1:
                raise ConfigurationError(f"Jdbc: {option} is at least 1, not {getattr(self, option)}.")
        if self.query is not None:
            object.__setattr__(self, "query", self.query.strip().rstrip(";"))
        object.__setattr__(self, "columns", tuple(self.columns))

    @property
    def repeatable(self) -> bool:
        """No: rows of a database change under their key."""
        return False

    @property
    def takes_part(self) -> str | None:
        """Why an arrival is only a part of the table; None where it is the whole."""
        return None if self.cursor is None else f"the cursor '{self.cursor}' takes only what is new"

    @property
    def shown(self) -> str:
        return self.table or "query"

    def look(self, ctx: SourceContext) -> Found | None:
        """What is above the cursor, or the table if it has changed; None where nothing is new."""
        if self.cursor is not None:
            return next(iter(self.look_by(CursorCut(self.cursor), ctx)), None)
        with self._asking(ctx) as session:
            from lakewright.connectors.jdbc_questions import ask_columns

            return self._changed(session, ask_columns(session, self, what=self._what(ctx)), ctx)

    def look_by(self, cut: CursorCut, ctx: SourceContext) -> Sequence[Found]:
        """The windows of a rising column that come after the last one."""
        source = replace(self, cursor=cut.cursor)
        with self._asking(ctx) as session:
            from lakewright.connectors.jdbc_questions import ask_columns
            from lakewright.connectors.jdbc_windows import cut_windows

            columns = ask_columns(session, source, what=self._what(ctx))
            return cut_windows(session, source, columns, cut, ctx, what=self._what(ctx))

    def warning(self, window: Window, *, overlaps: bool) -> str | None:
        """What speaks against the cursor, once a window tells its type; None where nothing does."""
        if overlaps or window.get("type") != "date" or "upto" not in window:
            return None
        return (
            f"'{window['cursor']}' is a date: a row of {window['upto']} that is written after this was read is never "
            'taken. Load days that are over, by IncrementalLoader(every="1 day"), or say overlap="1 day"; or use a '
            "column with the time of day."
        )

    def _asking(self, ctx: SourceContext) -> AbstractContextManager[Session]:
        return connecting(self._connection(ctx), what=self._what(ctx), effect="Nothing was read.", reading=True)

    def _what(self, ctx: SourceContext) -> str:
        return f"{ctx.dataset} ({self.connection}: {self.shown})"

    def _changed(self, session: Session, columns: dict[str, FoundColumn], ctx: SourceContext) -> Found | None:
        from lakewright.connectors.jdbc_questions import ask_bounds, ask_fingerprint

        rows, fingerprint = ask_fingerprint(session, self)
        window: dict[str, JsonValue] = {"of": self.shown, "rows": rows, "fingerprint": fingerprint}
        last = ctx.last_window
        if last is not None and (last.get("rows"), last.get("fingerprint")) == (rows, fingerprint):
            return None
        if last is None and rows == 0:
            return None
        if self.key is not None:
            window["key"] = ask_bounds(session, self, columns[self.key], "")
        return Found(window=window, summary=f"a snapshot of {rows:,} rows")

    def gone(self, arrival: Arrival, ctx: SourceContext) -> Sequence[str]:
        """Nothing: what was recorded and not yet read is read by its range."""
        return []

    def read(
        self, arrival: Arrival, *, spark: SparkSession, schema: StructType | None, ctx: SourceContext
    ) -> DataFrame:
        """Every row of the window; lazy."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        from lakewright.connectors.column_types import refuse_changed_columns
        from lakewright.connectors.records import hash_column, refuse_system_columns
        from lakewright.model.columns import FILE_COLUMN, RAW_COLUMN, VERSION_COLUMN

        frame = self._rows(arrival.window, spark, ctx)
        found = frame.schema
        own = [name for name in found.names if not self.columns or name in self.columns]
        declared = schema or StructType([found[name] for name in own])
        refuse_system_columns(ctx.dataset, declared)
        types = {field.name: field.dataType for field in found.fields}
        refuse_changed_columns(ctx.dataset, declared, self.shown, types)
        columns = [F.col(f"`{f.name}`").cast(f.dataType).alias(f.name) for f in declared.fields]
        record = frame.select(
            *columns,
            F.lit(None).cast("string").alias(RAW_COLUMN),
            F.lit(self.shown).alias(FILE_COLUMN),
            F.lit(_version_of(arrival)).cast("string").alias(VERSION_COLUMN),
        )
        return record.select("*", hash_column(declared))

    def gained_columns(self, arrival: Arrival, *, schema: StructType, ctx: SourceContext) -> dict[str, str]:
        """The columns that are there and that the schema does not name."""
        from lakewright.connectors.jdbc_questions import ask_columns

        with connecting(self._connection(ctx), what=ctx.dataset, reading=True) as session:
            found = ask_columns(session, self, what=ctx.dataset)
        return {name: column.kind for name, column in found.items() if name not in schema.names}

    def _rows(self, window: Window, spark: SparkSession, ctx: SourceContext) -> DataFrame:
        from lakewright.connectors.jdbc_errors import explain_jdbc_error
        from lakewright.connectors.jdbc_questions import relation
        from lakewright.connectors.jdbc_windows import condition

        # What decides which rows are read is selected too, or the database would not know it further out.
        cursor = cast("str | None", window.get("cursor"))
        deciding = [name for name in (self.key, cursor) if name is not None]
        listed = list(dict.fromkeys([*self.columns, *deciding])) if self.columns else []
        query = f"({relation(self, listed)}) AS r{condition(window)}"
        reader = spark.read.format("jdbc").options(**jdbc_options(self._connection(ctx)))
        reader = reader.option("fetchsize", self.fetch_size)
        reader = reader.option("dbtable", f"(SELECT * FROM {query}) AS arrival")
        bounds = cast("dict[str, Any] | None", window.get("key"))
        if bounds is not None and bounds["low"] != bounds["high"] and self.partitions > 1:
            reader = reader.option("partitionColumn", quoted(bounds["column"])).option("lowerBound", bounds["low"])
            reader = reader.option("upperBound", bounds["high"]).option("numPartitions", self.partitions)
        try:
            frame = reader.load()
            frame.schema  # noqa: B018  (over Connect nothing is looked up before)
        except Exception as error:
            explained = explain_jdbc_error(error)
            if explained is None:
                raise
            raise explained from explained.__cause__
        return frame

    def _connection(self, ctx: SourceContext) -> Connection:
        return ctx.connections.get(self.connection, kind="postgresql", asked_by=ctx.dataset)


def _version_of(arrival: Arrival) -> JsonValue:
    """What tells the rows of an arrival from the same rows of another one: without it no correction would find them.

    A table may come back to what it was, with the fingerprint that it had then: the arrival tells the two apart.
    """
    window = arrival.window
    return window.get("upto", window.get("to", f"{window.get('fingerprint', '')}-{arrival.number}"))
