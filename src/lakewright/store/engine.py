"""The store as a whole: opening it, one transaction over several subjects, the two calls around a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self

from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError

from lakewright.errors import ConfigurationError, MadeMeanwhileError, StoreError
from lakewright.masking import remember
from lakewright.model.findings import Finding
from lakewright.model.receipts import Receipt
from lakewright.model.runs import StepState
from lakewright.store.arrivals import Arrivals
from lakewright.store.dialect import make_engine, switch_to_wal, writing
from lakewright.store.events import Events
from lakewright.store.findings import Findings
from lakewright.store.holds import HeldSlice
from lakewright.store.leases import Grant, Leases
from lakewright.store.markers import Markers
from lakewright.store.opening import bring_up_to_date
from lakewright.store.origins import OWN, Origins
from lakewright.store.postgres import NAMES as POSTGRES_NAMES
from lakewright.store.receipts import Receipts
from lakewright.store.runs import Runs
from lakewright.store.schedules import Schedules
from lakewright.store.steps import Steps
from lakewright.store.streams import Streams

__all__ = ["Known", "Store", "open_store"]

_ADDRESSES = "Write it as sqlite:///.lakewright/store.db, or as postgresql://USER@HOST/DATABASE."


class Known(NamedTuple):
    """The version of a slice's live receipt when it was decided to make it; None where there was none."""

    version: int | None


class Store:
    """One subject per attribute; safe to use from several threads and processes at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.runs = Runs(engine)
        self.steps = Steps(engine)
        self.receipts = Receipts(engine)
        self.arrivals = Arrivals(engine)
        self.leases = Leases(engine)
        self.markers = Markers(engine)
        self.findings = Findings(engine)
        self.origins = Origins(engine)
        self.streams = Streams(engine)
        self.events = Events(engine)
        self.schedules = Schedules(engine)

    def transaction(self) -> AbstractContextManager[Connection]:
        """One writing transaction: give its connection to every call that belongs to it."""
        return writing(self._engine)

    def begin_step(
        self,
        dataset: str,
        slice_id: str,
        *,
        owner_id: str,
        run_id: str,
        attempt: int,
        reason: str,
        outputs: Sequence[str],
        now: datetime,
        lease: str | None = None,
        parts: Sequence[str] = (),
        rewrites: bool = False,
        known: Known | None = None,
    ) -> tuple[Grant, int]:
        """Lease the slice (or what ``lease`` names: ``*``, the whole dataset) and open the step's record.

        One that ``rewrites`` the slice withdraws its markers in the same transaction. With ``known`` nothing is done
        where somebody has made the slice since.
        """
        with self.transaction() as conn:
            if known is not None and self.receipts.live_version(dataset, slice_id, conn=conn) != known.version:
                raise MadeMeanwhileError(f"{dataset}, slice {slice_id} was made by another run meanwhile.")
            grant = self.leases.acquire(
                dataset, lease or slice_id, owner_id=owner_id, run_id=run_id, now=now, parts=parts, conn=conn
            )
            step_id = self.steps.open(
                conn,
                run_id=run_id,
                dataset=dataset,
                slice_id=slice_id,
                number=grant.number,
                attempt=attempt,
                reason=reason,
                outputs=outputs,
                now=now,
            )
            for output in outputs if rewrites else ():
                self.markers.withdraw(output, slice_id, run_id=run_id, now=now, conn=conn)
        return grant, step_id

    def finish_step(
        self,
        step_id: int,
        state: StepState,
        *,
        grant: Grant,
        receipts: Sequence[Receipt],
        now: datetime,
        arrival: tuple[str, int] | None = None,
        held: Sequence[HeldSlice] = (),
        notices: Sequence[Finding] = (),
        error: str | None = None,
        hint: str | None = None,
    ) -> bool:
        """Index the receipts, move the cursor, close the step and give its lease back, or nothing of it.

        The slices of data receipts are ready from then on; ``notices`` wait for the end of a run to be delivered.
        False where the lease had been taken over meanwhile: what was committed before that still counts, but whoever
        has the lease now may be writing the slice again, and says when it is ready.
        """
        with self.transaction() as conn:
            self.receipts.add(receipts, conn=conn)
            self.receipts.hold(held, conn=conn)
            if arrival is not None:
                self.arrivals.commit(*arrival, conn=conn)
            self.findings.add(notices, run_id=None, now=now, conn=conn)
            self.steps.close(step_id, state, now=now, error=error, hint=hint, conn=conn)
            mine = self.leases.release(grant.dataset, grant.slice_id, grant.number, conn=conn)
            if mine:
                self.mark_ready(receipts, now=now, conn=conn)
            return mine

    def mark_ready(self, receipts: Sequence[Receipt], *, now: datetime, conn: Connection) -> None:
        """Set the markers of the slices that were made; after a rollback the live receipts alone tell."""
        for receipt in receipts:
            if receipt.kind == "data" and not receipt.counters.is_partial:
                self.markers.set(receipt.dataset, receipt.slice_id, run_id=receipt.run_id, now=now, conn=conn)
            elif receipt.kind == "restore":
                self.markers.forget(receipt.dataset, conn=conn)

    def move(self, names: Iterable[str], place: str | None) -> None:
        """From now on the receipts of these datasets come from another log (None: this target's own).

        What was known of them goes, and whoever has read them is stale: versions of two logs cannot be compared. One
        that a run has claimed stays where it is.
        """
        with self.transaction() as conn:
            moved = [name for name in names if self.origins.of(name, conn) != OWN]
            for name in moved:
                self.receipts.forget(name, conn=conn)
                self.markers.forget(name, conn=conn)
                self.arrivals.forget(name, conn=conn)
                self.receipts.unsettle(name, conn=conn)
            self.origins.set(moved, place, conn=conn)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_store(url: str, *, busy_timeout: timedelta = timedelta(seconds=30)) -> Store:
    """Open the store at an address such as ``sqlite:///.lakewright/store.db``; create or upgrade it first.

    With ``postgresql://USER@HOST/DATABASE`` several machines share one store.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError("The address of the store cannot be read.", hint=_ADDRESSES) from None
    if parsed.password:
        remember(str(parsed.password))
    on_server = parsed.drivername in POSTGRES_NAMES
    if not on_server and parsed.drivername != "sqlite":
        raise ConfigurationError(f"The store cannot be kept in '{parsed.drivername}'.", hint=_ADDRESSES)
    if not on_server and (not parsed.database or parsed.database == ":memory:"):
        raise ConfigurationError(
            "The store cannot be kept in memory: every thread would have another one.", hint=_ADDRESSES
        )
    if not on_server:
        _make_folder(Path(str(parsed.database)).parent)
    engine = make_engine(parsed, busy_timeout=busy_timeout)
    try:
        if not on_server:
            switch_to_wal(engine, busy_timeout=busy_timeout)
        bring_up_to_date(engine)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"The folder {folder} for the store cannot be made ({error.strerror}).",
            hint="Give this user write permission there, or choose another place for the store.",
        ) from error
