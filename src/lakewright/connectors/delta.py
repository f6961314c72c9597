"""A Delta table of somebody else's as a source.

Guarantee:
    The first arrival is the table at a definite version, each later one what the versions after it brought;
    together they hold every appended row once. Commits that only move rows (OPTIMIZE) are no arrival. With ``start``
    the first one begins at a version or a time, and what was there before is left out.
Consequences:
    - With the change feed on, an updated row arrives again with its new values, and deleted rows are left
      out, unless the schema declares ``_change_type``: then it tells ``insert``, ``update_postimage`` or
      ``delete``, and deletes arrive too. ``_commit_version`` and ``_commit_timestamp`` (NULL where no feed
      is read) can be declared as well.
    - Without it only appends can be followed: a commit that takes rows away is refused, by its version. Spark
      then scans the table to find the rows of the added files; turn the feed on for a large one.
    - An arrival can be read again while the table keeps its versions (``delta.deletedFileRetentionDuration``,
      7 days by default); after that, repeat from bronze.
    - ``_lw_file`` names the commit, ``_delta_log/00000000000000000012.json``; in a first arrival the version
      that was read.
    - To open a table at a version, Delta may run small jobs over its log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, cast

from lakewright.connectors.delta_history import TableCommit, TableHistory
from lakewright.connectors.listing import resolve_folder
from lakewright.errors import ConfigurationError, InputError
from lakewright.model.arrivals import Arrival, Window
from lakewright.model.protocols import Found, SourceContext
from lakewright.model.times import parse_time

if TYPE_CHECKING:  # a project file names sources before Spark is there
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["DeltaTable"]

_FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A Delta table in a local folder: relative to the project, absolute, or a ``file:`` URI."""

    path: str
    start: int | str | None = None
    """The first version to take changes of, or a time (UTC): the first one committed at or after it. Left out: the
    table as it is."""
    max_versions: int | None = None
    """At most so many versions that brought or took rows in one arrival; the table as it is counts as one."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigurationError("DeltaTable: the path is empty. Name the table's folder.")
        if isinstance(self.start, str):
            parse_time(self.start)
        elif self.start is not None and self.start < 0:
            raise ConfigurationError(f"DeltaTable: start is a version from 0 on, or a time, not {self.start}.")
        if self.max_versions is not None and self.max_versions < 1:
            raise ConfigurationError(f"DeltaTable: max_versions is at least 1, not {self.max_versions}.")

    @property
    def repeatable(self) -> bool:
        """Yes, as long as the table keeps its versions."""
        return True

    @property
    def takes_part(self) -> str | None:
        """None where the first arrival is the whole table, and a later one all that came since."""
        given = next((name for name in ("start", "max_versions") if getattr(self, name) is not None), None)
        return None if given is None else f"{given} takes only a part"

    def look(self, ctx: SourceContext) -> Found | None:
        """The versions since the last arrival that brought rows; None where there are none."""
        history = TableHistory(resolve_folder(self.path, ctx.project))
        latest = history.versions()[-1]
        if ctx.last_window is None and self.start is not None:
            return self._later(history, self._first(history, ctx) - 1, latest, ctx)
        if ctx.last_window is None:
            window = self._window(history, None, latest, latest, feed=False)
            return Found(window=window, summary=f"the table at version {latest}")
        last = cast(int, ctx.last_window["to"])
        state = history.state_at(latest)
        if state.id != ctx.last_window["id"] or latest < last:
            raise InputError(
                f"{ctx.dataset}: the table at {history.folder} was dropped and made anew since version "
                f"{last} was taken. Nothing was read.",
                hint="Declare the source under a new name to take the new table from its beginning.",
            )
        return self._later(history, last, latest, ctx)

    def _later(self, history: TableHistory, last: int, latest: int, ctx: SourceContext) -> Found | None:
        """As many versions as can be read in one way: by the feed, or by the files that they added."""
        feed = history.state_at(max(last, history.versions()[0])).has_feed
        taken: list[TableCommit] = []
        by_feed = feed
        to = last
        for version in range(last + 1, latest + 1):
            commit = history.commit(version)
            feed = feed if commit.state is None else commit.state.has_feed
            if commit.changes_data:
                if taken and (feed != by_feed or len(taken) == self.max_versions):
                    break
                if commit.removes_rows and not feed:
                    if taken:
                        break
                    _refuse_change(history, commit, ctx)
                by_feed = feed
                taken.append(commit)
            to = version
        if not taken:
            return None
        window = self._window(history, last, taken[0].version, to, feed=by_feed)
        noun = "version" if len(taken) == 1 else "versions"
        return Found(window=window, summary=f"{len(taken)} {noun} up to {to}")

    def _first(self, history: TableHistory, ctx: SourceContext) -> int:
        """The version that ``start`` means; the next one where it is not there yet."""
        held = history.versions()
        if isinstance(self.start, int):
            first, lost = self.start, self.start < held[0]
        else:
            moment = parse_time(self.start or "")
            first = next((version for version in held if history.committed_at(version) >= moment), held[-1] + 1)
            lost = first == held[0] > 0  # who knows what was committed between that time and what the log still holds
        if lost:
            raise InputError(
                f"{ctx.dataset}: the log of {history.folder} begins with version {held[0]}, and changes since "
                f"{self.start} are asked for: what lies between is no longer there. Nothing was read.",
                hint=f"Begin at start={held[0]}, or leave start out to take the table as it is first.",
            )
        return first

    def _window(self, history: TableHistory, last: int | None, first: int, to: int, *, feed: bool) -> Window:
        table = history.state_at(to).id
        return {"table": self.path, "id": table, "from": last, "first": first, "to": to, "feed": feed}

    def gone(self, arrival: Arrival, ctx: SourceContext) -> Sequence[str]:
        """The versions of the arrival that the log no longer holds, or that the table was made anew."""
        history = TableHistory(resolve_folder(cast(str, arrival.window["table"]), ctx.project))
        try:
            held = set(history.versions())
            state = history.state_at(max(held))
        except InputError as error:
            return [error.message]
        if state.id != arrival.window["id"]:
            return [f"the table at {history.folder} was dropped and made anew"]
        needed = range(cast(int, arrival.window["first"]), cast(int, arrival.window["to"]) + 1)
        return [f"version {version} is no longer in the log" for version in needed if version not in held]

    def read(
        self, arrival: Arrival, *, spark: SparkSession, schema: StructType | None, ctx: SourceContext
    ) -> DataFrame:
        """Every row of the arrival's versions; lazy."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        from lakewright.connectors.column_types import refuse_changed_columns
        from lakewright.connectors.records import hash_column, refuse_system_columns
        from lakewright.model.columns import FILE_COLUMN, RAW_COLUMN, VERSION_COLUMN, business_columns

        gone = self.gone(arrival, ctx)
        if gone:
            raise InputError(
                f"{ctx.dataset}: arrival {arrival.number} can no longer be read: {'; '.join(gone[:3])}.",
                hint="If the arrival is already in bronze, repeat from bronze.",
            )
        frame = self._rows(arrival, spark, ctx)
        found = frame.schema
        own = [name for name in business_columns(found.names) if name not in _FEED_COLUMNS]
        declared = schema or StructType([found[name] for name in own])
        refuse_system_columns(ctx.dataset, declared)
        types = {field.name: field.dataType for field in found.fields}
        refuse_changed_columns(ctx.dataset, declared, self.path, types)
        if "_change_type" in declared.names:
            frame = frame.where("_change_type <> 'update_preimage'")
        else:
            frame = frame.where("_change_type IN ('insert', 'update_postimage')")
        columns = [F.col(f"`{f.name}`").cast(f.dataType).alias(f.name) for f in declared.fields]
        commit = F.col("_commit_version").cast("string")
        log = F.concat(F.lit("_delta_log/"), F.lpad(commit, 20, "0"), F.lit(".json"))
        raw = F.lit(None).cast("string").alias(RAW_COLUMN)
        record = frame.select(*columns, raw, log.alias(FILE_COLUMN), commit.alias(VERSION_COLUMN))
        return record.select("*", hash_column(declared))

    def gained_columns(self, arrival: Arrival, *, schema: StructType, ctx: SourceContext) -> dict[str, str]:
        """The columns that the table has at the arrival's last version and the schema does not name."""
        import json

        from pyspark.sql.types import StructType

        history = TableHistory(resolve_folder(cast(str, arrival.window["table"]), ctx.project))
        state = history.state_at(cast(int, arrival.window["to"]))
        table = StructType.fromJson(json.loads(state.schema_json))
        return {f.name: f.dataType.simpleString() for f in table.fields if f.name not in schema.names}

    def _rows(self, arrival: Arrival, spark: SparkSession, ctx: SourceContext) -> DataFrame:
        """The rows with the three columns of the change feed, however they are read."""
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as F

        window = arrival.window
        history = TableHistory(resolve_folder(cast(str, window["table"]), ctx.project))
        first, to = cast(int, window["first"]), cast(int, window["to"])
        table = f"file://{history.folder.as_posix()}"
        if window["feed"]:
            feed = spark.read.format("delta").option("readChangeFeed", "true")
            return feed.option("startingVersion", first).option("endingVersion", to).load(table)

        def at(version: int, commit: int, files: Sequence[str] | None = None) -> DataFrame:
            rows = spark.read.format("delta").option("versionAsOf", version).load(table)
            if files is not None:
                rows = rows.where(F.col("_metadata.file_name").isin(*files))
            return rows.select(
                "*",
                F.lit("insert").alias("_change_type"),
                F.lit(commit).cast("bigint").alias("_commit_version"),
                F.lit(None).cast("timestamp").alias("_commit_timestamp"),
            )

        if window["from"] is None:
            return at(to, to)
        commits = [history.commit(version) for version in range(first, to + 1)]
        return reduce(
            lambda one, other: DataFrame.unionByName(one, other, allowMissingColumns=True),
            # At its own version, because a later OPTIMIZE may have rewritten the files.
            [at(commit.version, commit.version, commit.added) for commit in commits if commit.added],
        )


def _refuse_change(history: TableHistory, commit: TableCommit, ctx: SourceContext) -> None:
    raise InputError(
        f"{ctx.dataset}: version {commit.version} of {history.folder} ({commit.operation}) changed or "
        "deleted rows, and the table has no change feed to tell which. Nothing was read.",
        hint=f"Turn it on for the future: ALTER TABLE delta.`{history.folder}` SET TBLPROPERTIES "
        "(delta.enableChangeDataFeed = true); then declare the source under a new name to take it all again.",
    )
