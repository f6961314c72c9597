"""A table per slice behind a view of PostgreSQL: ``into=PostgresParts("blog_db", "visits", every="month")``.

Guarantee:
    A slice has a table of its own. Making it again truncates or drops that table and fills it, in one transaction that
    also writes the ledger's row, so that no row is deleted one by one and a reader of the view sees the old slice or
    the new one. Killed, cut off or overtaken at any moment, each slice is there once, as its last attempt made it.
Consequences:
    - The slice is the part: the dataset's slices are days, weeks or months, as ``every`` says. A week is one of ISO,
      from Monday to Sunday, also over New Year.
    - "The old slice or the new one" holds for each query of a reader in READ COMMITTED, which is the default. In a
      REPEATABLE READ transaction that began before the slice was made again, its part reads as empty: TRUNCATE and DROP
      are no part of a snapshot.
    - With ``freeze_after`` older slices are folded into a read-only table per year by ``lakewright maintain``; schedule
      it, or the view comes to ``max_parts`` tables and takes no new slice. A slice that was frozen is not made again:
      rows that come late for it are held, and a backfill of it is refused. Let that be longer than rows come late; a
      policy that reaches behind it (``Repair(within=)``) is refused. Plans and dry runs of a backfill tell of such
      slices.
    - A column that the step has gained is added to all parts, frozen ones too, before the data: the others read NULL.
      One that it has lost, or whose new type does not fit into the old one, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from lakewright.connectors.postgres_opened import OpenedRelation, PostgresDestination
from lakewright.errors import ConfigurationError, LeaseHeldError
from lakewright.model.connections import Connections
from lakewright.model.parts import Part, PartTables
from lakewright.model.protocols import Writer
from lakewright.model.receipts import Change
from lakewright.model.slices import Slice
from lakewright.model.times import parse_duration

if TYPE_CHECKING:  # a project file names destinations before Spark is there
    from pyspark.sql import DataFrame

    from lakewright.connectors.postgres_connection import Session
    from lakewright.connectors.postgres_ledger import Ledger
    from lakewright.model.policies import LatePolicy
    from lakewright.model.receipts import Commit

__all__ = ["PostgresParts"]


@dataclass(frozen=True, slots=True)
class PostgresParts(PostgresDestination):
    """A view (``visits`` or ``blog.visits``) of a connection, and the tables behind it, one per slice."""

    connection: str
    view: str
    every: Literal["day", "week", "month"] = "day"
    clean: Literal["truncate", "drop"] = "truncate"
    max_parts: int = 400
    freeze_after: str | None = None
    """Slices that ended so long ago ("90 days") become read-only, by ``lakewright maintain``."""

    def __post_init__(self) -> None:
        if not self.connection:
            raise ConfigurationError("PostgresParts: name the connection, as [connections.NAME] declares it.")
        if self.every not in ("day", "week", "month"):
            raise ConfigurationError(
                f"PostgresParts: every is 'day', 'week' or 'month', as slices are, not {self.every!r}.",
                hint="For years, outside a pipeline: replace_part_table.",
            )
        self.parts  # noqa: B018  (a wrong option is told when the file is loaded)
        if self.freeze_after is not None and parse_duration(self.freeze_after) < timedelta(days=1):
            raise ConfigurationError(f"PostgresParts: freeze_after is at least '1 day', not {self.freeze_after!r}.")

    @property
    def parts(self) -> PartTables:
        return PartTables(self.view, every=self.every, clean=self.clean, max_parts=self.max_parts)

    @property
    def relation(self) -> str:
        return self.view

    @property
    def opened_as(self) -> type[OpenedParts]:
        return OpenedParts

    @property
    def asks_for_maintenance(self) -> bool:
        """Whether `lakewright maintain` has something to do here, without a policy of the dataset."""
        return self.freeze_after is not None

    def maintain(self, dataset: str, *, connections: Connections, dry_run: bool, now: datetime) -> tuple[bool, str]:
        """Freeze the slices that are old enough; tells which tables grew, and how many there are."""
        from lakewright.connectors.postgres_connection import TableName, connecting
        from lakewright.connectors.postgres_part_freezing import fold_parts, old_by_year, parts_there
        from lakewright.connectors.postgres_parts import begin_parts

        connection, view = self._connection(dataset, connections), TableName.parse(self.view)
        what = f"{dataset} ({self.shown}), freezing"
        with connecting(connection, what=what, effect="Nothing was changed.") as session, session.transaction():
            groups, grown = [], []
            if self.freeze_after is not None and parts_there(session, view):
                if not dry_run:
                    begin_parts(session, view)
                groups = old_by_year(session, view, (now - parse_duration(self.freeze_after)).date())
                grown = [] if dry_run else [str(fold_parts(session, view, group)) for group in groups]
            there = f"{len(parts_there(session, view)):,} of at most {self.max_parts:,} tables"
        if self.freeze_after is None:
            return False, f"{there}; without freeze_after none is frozen"
        old = sum(not part.frozen for group in groups for part in group)
        done = "to freeze" if dry_run else f"frozen in {', '.join(grown)}"
        return bool(groups), f"{old:,} slices {done}; {there}" if groups else f"{there}; none to freeze"

    def frozen(self, dataset: str, slices: Sequence[Slice], *, connections: Connections) -> Sequence[str]:
        """Of these slices, those that lie in a read-only table."""
        from lakewright.connectors.postgres_connection import TableName, connecting
        from lakewright.connectors.postgres_part_freezing import parts_there

        connection = self._connection(dataset, connections)
        with connecting(connection, what=f"{dataset} ({self.shown})", reading=True) as session:
            frozen = [part for part in parts_there(session, TableName.parse(self.view)) if part.frozen]
        days = {one.id: one.interval.start.date() for one in slices if one.kind == "event"}
        return [name for name, day in days.items() if any(part.start <= day < part.end for part in frozen)]

    def check_writer(self, dataset: str, writer: Writer) -> None:
        """Refuse what does not replace slices: metadata operations know whole tables only."""
        if not writer.replaces_slice:
            raise ConfigurationError(
                f"{dataset}: {type(writer).__name__} changes rows, and TRUNCATE and DROP know whole tables only.",
                hint="Use DataOverwrite(), or into=PostgresTable(...).",
            )

    def check_late(self, dataset: str, late: LatePolicy) -> None:
        """Refuse to promise that slices are made again which are read-only by then."""
        reach: timedelta | None = getattr(late, "reach", None)
        if self.freeze_after is not None and reach is not None and reach > parse_duration(self.freeze_after):
            raise ConfigurationError(
                f"{dataset}: {type(late).__name__} reaches further back than freeze_after={self.freeze_after!r}, and "
                f"the slices of {self.shown} are read-only by then.",
                hint="Let freeze_after be longer, or the reach of late= shorter: rows that come later are held.",
            )


class OpenedParts(OpenedRelation[PostgresParts]):
    """`PostgresParts` opened for one attempt: fulfils ``OutsideTable``."""

    def exists(self) -> bool:
        from lakewright.connectors.postgres_connection import ask, connecting

        with connecting(self._connection, what=self._what) as session:
            row = ask(session, "SELECT to_regclass(%s) IS NOT NULL", (self._relation.sql,)).fetchone()
            return row is not None and bool(row[0])

    def replace(
        self, frame: DataFrame, *, where: str, partition_by: Sequence[str] = (), within: bool = False
    ) -> Commit | None:
        """Runs a job that puts the frame in the place of the slice's table; None where a newer attempt was first."""
        import psycopg

        from lakewright.connectors.postgres_connection import connect, connection_arguments
        from lakewright.connectors.postgres_errors import explain_database_error
        from lakewright.connectors.postgres_filling import FrameFilling, column_types
        from lakewright.connectors.postgres_ledger import Ledger
        from lakewright.connectors.postgres_part_load import load_part
        from lakewright.connectors.postgres_parts import add_gained_columns
        from lakewright.failpoints import failpoint

        slice_ = self._slice()
        arguments, ledger = connection_arguments(self._connection), Ledger(self._relation, self._dataset)
        made: list[Commit] = []
        try:
            with connect(arguments) as session:
                with session.transaction():
                    ledger.create(session)
                    if not ledger.take(session, self._identity):
                        return None
                    types = column_types(frame.schema, self._what)
                    columns = add_gained_columns(session, self._relation, types, what=self._what)

                def finish(rows: int) -> None:
                    touched = {slice_.value: Change(rows, None)}
                    metrics = {"numOutputRows": rows}
                    made.append(
                        ledger.append(
                            session,
                            self._identity,
                            operation=self._destination.clean.upper(),
                            metrics=metrics,
                            touched=touched,
                        )
                    )

                load_part(
                    session,
                    self._destination.parts,
                    FrameFilling(frame.select(*columns), self._identity.app_id, self._identity.number, self._what),
                    day=slice_.interval.start.date(),
                    whole=True,
                    part=Part(self._destination.every, slice_.interval.start.date(), slice_.interval.end.date()),
                    arguments=arguments,
                    what=self._what,
                    guard=lambda: self._refuse_overtaken(session, ledger),
                    finish=finish,
                )
                failpoint(f"committed.{self._identity.part}")
                return made[0]
        except psycopg.Error as error:
            explained = explain_database_error(error, what=self._what, effect="The slice is what it was.")
            raise explained from explained.__cause__

    def touch(self) -> Commit | None:
        """Record the attempt's number and identity, without rows: what a fence is."""
        from lakewright.connectors.postgres_connection import connecting
        from lakewright.connectors.postgres_ledger import Ledger

        ledger = Ledger(self._relation, self._dataset)
        told = connecting(self._connection, what=self._what, effect="Nothing was written.")
        with told as session, session.transaction():
            ledger.create(session)
            if not ledger.take(session, self._identity):
                return None
            return ledger.append(session, self._identity, operation="FENCE", metrics={}, touched={})

    def _slice(self) -> Slice:
        slice_ = Slice.parse(self._identity.slice_id)
        every = self._destination.every
        if slice_.kind != "event" or slice_.grid != every:
            raise ConfigurationError(
                f"{self._what}: the tables behind {self._relation} hold one {every} each, and the slice is none. "
                "Nothing was written.",
                hint=f"Cut the dataset by {every}s (event_time, grid), or say every= as it is cut.",
            )
        return slice_

    def _refuse_overtaken(self, session: Session, ledger: Ledger) -> None:
        ledger.lock(session, self._identity)
        if not ledger.holds(session, self._identity) or not self._still_mine():
            raise LeaseHeldError(
                f"{self._what}: another run has taken over. The slice is what it was.",
                name=self._dataset,
                owner="another run",
            )
