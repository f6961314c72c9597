"""What making a slice needs at hand, and the frame around every attempt: lease, step record, receipt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lakewright.errors import LakewrightError, LeaseHeldError
from lakewright.failpoints import failpoint
from lakewright.lake.lake import Lake
from lakewright.lake.side_tables import DEAD_LETTERS, LATE_ROWS, REPEATS
from lakewright.model.arrivals import JsonValue, Window
from lakewright.model.connections import Connections
from lakewright.model.findings import Finding
from lakewright.model.identity import REWIND_PART, Identity
from lakewright.model.receipts import Receipt
from lakewright.model.runs import Run, StepState
from lakewright.model.slices import WHOLE, Slice
from lakewright.model.times import utc_now
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.marking import set_flag, withdraw_flag
from lakewright.pipelines.states import SliceState
from lakewright.store import Grant, Known, StepRecord, Store

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["Attempt", "Made", "Workshop", "leave_out"]


@dataclass(frozen=True, slots=True)
class Made:
    """How an attempt ended well: its receipts, the public one last."""

    receipts: tuple[Receipt, ...]
    recovered: bool = False

    @property
    def public(self) -> Receipt:
        return self.receipts[-1]

    def with_receipts(self, receipts: tuple[Receipt, ...]) -> Made:
        return Made(receipts, self.recovered)


@dataclass(frozen=True)
class Workshop:
    """One run's tools."""

    graph: Graph
    lake: Lake
    store: Store
    run: Run
    owner_id: str
    project: Path
    codes: Mapping[str, str]
    now: Callable[[], datetime] = utc_now
    sample: float | None = None
    stopping: Callable[[], bool] = lambda: False
    """Whether the run was asked to stop."""
    connections: Connections = field(default_factory=Connections)
    project_name: str = ""
    known: Known | None = None
    """What was there of a slice when it was decided to make it, where other runs may be making it too."""

    @contextmanager
    def attempt(
        self,
        dataset: Dataset,
        slice_: Slice,
        *,
        attempt: int,
        reason: str,
        whole: bool = False,
        rewrites: bool = True,
    ) -> Iterator[Attempt]:
        """Hold the slice's lease and keep a step record open while it is being made.

        Its marker is withdrawn first, unless its rows stay as they are (``rewrites=False``); who works on the ``whole``
        dataset sees to the markers itself.
        An error closes the record and gives the lease back; a kill leaves both, for the next run to find. So does an
        error after the public commit, or one that leaves open whether there is one: the log is asked first. And so does
        one while predecessors are fenced, who might commit still.
        """
        lease = self.lease_of(dataset, slice_, whole=whole)
        grant, step_id = self.store.begin_step(
            dataset.name,
            slice_.id,
            lease=lease,
            owner_id=self.owner_id,
            run_id=self.run.run_id,
            attempt=attempt,
            reason=reason,
            outputs=[*dataset.outputs, dataset.name],
            now=self.now(),
            rewrites=rewrites and not whole,
            known=self.known,
        )
        current = Attempt(self, dataset, slice_, lease, grant, step_id, attempt)
        failpoint("leased")
        try:
            if rewrites and not whole:
                withdraw_flag(self, dataset, slice_.id)
            if grant.fence is not None:
                # Until they are fenced, whoever comes next has to do it, whatever becomes of this attempt.
                current.unsettled = not dataset.is_stream
                current.fence_predecessors()
                current.unsettled = False
            yield current
        except LeaseHeldError as error:
            # Somebody took over: the record is theirs to judge, and nothing of ours reached the log.
            self.store.finish_step(step_id, "lost", grant=grant, receipts=(), now=self.now(), error=str(error))
            raise
        except BaseException as error:
            if current.unsettled:
                # Where the store is away as well, the lease ends with its owner, or the next attempt lets it go.
                with suppress(LakewrightError):
                    self.store.leases.abandon(dataset.name, lease, owner_id=self.owner_id)
                raise
            state: StepState = "refused" if getattr(error, "exit_code", 1) == 3 else "failed"
            if getattr(error, "exit_code", 1) == 130 or isinstance(error, KeyboardInterrupt):
                state = "interrupted"
            self.store.finish_step(step_id, state, grant=grant, receipts=(), now=self.now(), error=str(error))
            raise

    def lease_of(self, dataset: Dataset, slice_: Slice, *, whole: bool = False) -> str:
        """What a step has to hold: its slice, or the whole dataset where the writer does not keep slices apart."""
        writer = dataset.writer
        apart = (dataset.is_source and not dataset.is_replaced) or (writer is not None and writer.replaces_slice)
        return slice_.id if apart and not whole else "*"


@dataclass
class Attempt:
    """One attempt at one slice."""

    shop: Workshop
    dataset: Dataset
    slice: Slice
    lease: str
    grant: Grant
    step_id: int
    number_of_attempt: int
    inputs: dict[str, int] = field(default_factory=dict)
    origin: Window | None = None
    """Of a stream of a source: what that source is, which every micro-batch tells in its commit."""
    told: dict[str, JsonValue] = field(default_factory=dict)
    """What guards found out before the write: it travels in each commit of the attempt."""
    unsettled: bool = False
    """Whether the public table holds, or may hold, a commit of this attempt that nobody has judged to the end; or may
    still get one of a predecessor."""

    def identity(self, **details: object) -> Identity:
        """Who writes: complete once the inputs are pinned, and judged."""
        return Identity(
            dataset=self.dataset.name,
            slice_id=self.slice.id,
            number=self.grant.number,
            run_id=self.shop.run.run_id,
            attempt=self.number_of_attempt,
            inputs=dict(self.inputs),
            code=self.shop.codes.get(self.dataset.name),
            run_time=self.shop.run.time.isoformat(),
            details={**self.told, **details},  # type: ignore[dict-item]
        )

    def published_number(self) -> int | None:
        """The number of the attempt whose rows of the slice are published; None where it never was.

        A micro-batch that was published is not judged again, and where its function runs there may be no store.
        """
        if self.dataset.is_stream:
            return None
        return self.shop.store.receipts.live_number(self.dataset.name, self.slice.id)

    def still_mine(self) -> bool:
        return self.shop.store.leases.check(self.dataset.name, self.lease, self.grant.number, self.shop.now())

    @contextmanager
    def recording(self) -> Iterator[Connection]:
        """A transaction of the store in which the lease is still ours; whoever asks for it waits until its end."""
        store, name = self.shop.store, self.dataset.name
        with store.transaction() as conn:
            store.leases.draw(name, conn)  # as a grant does, which is how the two are kept apart
            if not store.leases.check(name, self.lease, self.grant.number, self.shop.now(), conn):
                raise LeaseHeldError(
                    f"{name}: another process has taken over. Nothing was changed.", name=name, owner="another process"
                )
            yield conn

    def predecessors(self) -> list[StepRecord]:
        """The steps, oldest first, that ended without a record in what is leased here: nobody can be at work on them.

        Not only those whose leases were taken over: who took over before may have ended before it had settled them.
        """
        taken = {number for _, number, _ in self.grant.taken_from}
        return [
            step
            for step in self.shop.store.steps.open_steps(self.dataset.name)
            if step.number < self.grant.number and (step.number in taken or self._is_leased(step.slice_id))
        ]

    def _is_leased(self, slice_id: str) -> bool:
        theirs = self.shop.lease_of(self.dataset, Slice.parse(slice_id), whole=slice_id == WHOLE.id)
        return "*" in (self.lease, theirs) or theirs == self.lease

    def fence_predecessors(self) -> None:
        """Stop what a paused predecessor still runs, and make whatever it still writes be skipped by Delta."""
        assert self.grant.fence is not None
        if self.dataset.is_stream:
            self._interrupt_predecessors()
            self._fence_rewind()
            return  # whoever repeats a micro-batch writes the same, once: see streams.batches
        tables = [*self.dataset.outputs, self.dataset.name, DEAD_LETTERS, LATE_ROWS, REPEATS]
        parts = [*self.dataset.outputs, "main", "dead_letters", "late_rows", "repeats"]
        # A lease on the whole dataset does not name the slice that was being made: its step record does.
        begun = {step.slice_id for step in self.predecessors()}
        leased = {slice_id for slice_id, _, _ in self.grant.taken_from if slice_id != "*"}
        self._interrupt_predecessors()  # only now: an interrupted step closes its record
        for slice_id in sorted(begun | leased | {self.slice.id}):
            fence = Identity(
                dataset=self.dataset.name,
                slice_id=slice_id,
                number=self.grant.fence,
                run_id=self.shop.run.run_id,
                kind="fence",
            )
            self.shop.lake.fence(tables, fence, parts)
        failpoint("fenced")

    def _fence_rewind(self) -> None:
        """Let Delta skip the deletion of a rewind that may still be under way; whoever goes on with it deletes anew."""
        assert self.grant.fence is not None
        generation = self.shop.store.streams.current(self.dataset.name)
        if generation is not None and generation.first is not None and generation.progress is None:
            number, run_id = self.grant.fence, self.shop.run.run_id
            fence = Identity(self.dataset.name, WHOLE.id, number, run_id, kind="fence")
            self.shop.lake.fence([self.dataset.name], fence, [REWIND_PART])

    def _interrupt_predecessors(self) -> None:
        """Stop their Spark jobs where they share a Spark with us: they would only take its cores away."""
        lake = self.shop.lake
        lake.session()
        for run_id in sorted({run_id for _, _, run_id in self.grant.taken_from if run_id}):
            if run_id != self.shop.run.run_id:
                lake.interrupt(run_id)

    def finish(
        self,
        receipts: tuple[Receipt, ...],
        *,
        state: StepState = "ok",
        arrival: int | None = None,
        notices: tuple[Finding, ...] = (),
    ) -> Made:
        """Receipt, cursor, marker, record and lease in one store transaction: the end of the attempt."""
        failpoint("before_receipt")
        self.shop.store.finish_step(
            self.step_id,
            state,
            grant=self.grant,
            receipts=receipts,
            now=self.shop.now(),
            arrival=None if arrival is None else (self.dataset.name, arrival),
            notices=notices,
        )
        failpoint("finished")
        if receipts and (problem := set_flag(self.shop, self.dataset, receipts[-1])) is not None:
            told = Finding(self.dataset.name, "flag file", problem, slice_id=self.slice.id, cure="The next run does.")
            self.shop.store.findings.add([told], run_id=self.shop.run.run_id, now=self.shop.now())
        return Made(receipts, recovered=state == "recovered")


def leave_out(shop: Workshop, dataset: Dataset, state: SliceState) -> Made:
    """Record that a slice is left out on purpose, and why; nothing of it is touched."""
    shop.store.steps.leave_out(
        run_id=shop.run.run_id,
        dataset=dataset.name,
        slice_id=state.slice.id,
        reason=f"{state.status}: {state.reason}",
        now=shop.now(),
    )
    return Made(())
