"""Recovery: what to make of a step that died between its commit and its receipt.

The log decides. A public commit without a receipt is taken as done, its counters computed anew from the pinned
inputs; without a public commit the step never happened, and its slice is missing or stale as before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakewright.errors import LeaseHeldError
from lakewright.lake.corrections import corrections_of
from lakewright.lake.side_tables import DEAD_LETTERS, rows_per_rule
from lakewright.model.cell_spans import CellSpan
from lakewright.model.identity import RESTORE_PART, Identity
from lakewright.model.receipts import Commit, Counters, Receipt
from lakewright.model.references import SameSlice
from lakewright.model.runs import StepState
from lakewright.model.slices import WHOLE, Slice
from lakewright.pipelines.corrections import correction_rows, follow_arrival
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.harvest import receipt_of, restored_version, unaccounted
from lakewright.pipelines.input_rows import rows_at
from lakewright.pipelines.lateness import with_lateness
from lakewright.pipelines.letters_back import bring_letters_back
from lakewright.pipelines.marking import change_notices, partial_findings, set_flag
from lakewright.pipelines.receipt_warnings import warnings_of
from lakewright.pipelines.settle import (
    complete_receipt,
    counters_of_arrival,
    not_preserved,
    put_back,
    set_unusable_aside,
)
from lakewright.store import Grant, StepRecord

if TYPE_CHECKING:
    from lakewright.pipelines.workshop import Attempt, Made, Workshop

__all__ = ["recover_attempt", "recover_dead_steps"]

_NEWEST = 2**62


def recover_dead_steps(shop: Workshop) -> list[tuple[str, str, bool]]:
    """Settle every open step whose owner is gone; tells dataset, slice and whether its commit was found."""
    from lakewright.pipelines.workshop import Attempt

    settled = []
    now = shop.now()
    alive = {(lease.dataset, lease.number) for lease in shop.store.leases.held(now) if lease.alive}
    for step in shop.store.steps.open_steps():
        if (step.dataset, step.number) in alive or step.dataset not in shop.graph.datasets:
            continue
        dataset = shop.graph[step.dataset]
        lease = shop.lease_of(dataset, Slice.parse(step.slice_id), whole=step.slice_id == WHOLE.id)
        try:
            grant = shop.store.leases.acquire(
                dataset.name, lease, owner_id=shop.owner_id, run_id=shop.run.run_id, now=shop.now()
            )
        except LeaseHeldError:
            continue  # another run settles it just now
        fenced = grant.fence is None
        try:
            if not fenced:
                # Nothing of it may still reach the log once we have looked there.
                attempt = Attempt(shop, dataset, Slice.parse(step.slice_id), lease, grant, step.step_id, step.attempt)
                attempt.fence_predecessors()
                fenced = True
            settled.append((step.dataset, step.slice_id, bool(_settle(shop, dataset, step, grant))))
        finally:
            if fenced:
                shop.store.leases.release(grant.dataset, grant.slice_id, grant.number)
            else:  # whoever asks next fences it
                shop.store.leases.abandon(grant.dataset, grant.slice_id, owner_id=shop.owner_id)
    unfinished = [run for run in shop.store.runs.unfinished() if run.run_id != shop.run.run_id]
    lost = [run.run_id for run in unfinished if not _owner_lives(shop, run.owner_id)]
    if lost:
        shop.store.runs.mark_lost(lost, now)
    return settled


def recover_attempt(current: Attempt) -> Made | None:
    """Settle whoever ended here without a record; the work of the last of them, if it reached the log.

    Before anything is made: the next attempt would set rows aside in the place of those that a commit without a receipt
    belongs with.
    """
    found: tuple[Receipt, ...] = ()
    for step in current.predecessors():
        receipts = _settle(current.shop, current.dataset, step, current.grant)
        if step.slice_id == current.slice.id:
            found = receipts or found
    return current.finish((), state="recovered").with_receipts(found) if found else None


def _settle(shop: Workshop, dataset: Dataset, step: StepRecord, grant: Grant) -> tuple[Receipt, ...]:
    """Close a dead step's record, with the receipts of what it had committed; empty where it was not done."""
    if dataset.is_stream:
        return _settle_stream(shop, dataset, step)
    private, public = _found(shop, dataset, step)
    recorded = _recorded_rollback(shop, step)
    state: StepState = "recovered" if public or recorded else "lost"
    # It may have been a rollback, which ends when the letters are back: until then its record stays open.
    letters_first = step.slice_id == WHOLE.id and not any(receipt.kind == "data" for receipt in public)
    notices = [one for receipt in public for one in change_notices(shop, dataset, receipt, step.reason)]
    notices += [one for receipt in public for one in warnings_of(shop, dataset, receipt)]
    notices += [one for receipt in public or private for one in partial_findings(shop, dataset, receipt)]
    with shop.store.transaction() as conn:
        shop.store.receipts.add([*private, *public], conn=conn)
        shop.store.findings.add(notices, run_id=None, now=shop.now(), conn=conn)
        if public and dataset.is_source:
            shop.store.arrivals.commit(dataset.name, Slice.parse(step.slice_id).number, conn=conn)
        for receipt in (*private, *public):
            if receipt.kind == "restore":
                target = restored_version(shop.lake.log(receipt.dataset).commit(receipt.version))
                shop.store.receipts.rolled_back(receipt.dataset, target, receipt.version, conn=conn)
        if public:
            shop.store.mark_ready([*private, *public], now=shop.now(), conn=conn)
        if not letters_first:
            shop.store.steps.close(step.step_id, state, now=shop.now(), conn=conn)
    for receipt in public:
        set_flag(shop, dataset, receipt)
    if letters_first:
        lost = bring_letters_back(shop, dataset, grant)
        with shop.store.transaction() as conn:
            shop.store.findings.add(lost, run_id=shop.run.run_id, now=shop.now(), conn=conn)
            shop.store.steps.close(step.step_id, state, now=shop.now(), conn=conn)
    return (*private, *public) if public else recorded


def _recorded_rollback(shop: Workshop, step: StepRecord) -> tuple[Receipt, ...]:
    """What a rollback had recorded before it died; a table that only went back for a slice has no inputs."""
    if step.slice_id != WHOLE.id:
        return ()
    restores = shop.store.receipts.since(step.dataset, -1, _NEWEST, kinds=("restore",))
    return tuple(one for one in restores if one.number == step.number and one.inputs)


def _settle_stream(shop: Workshop, dataset: Dataset, step: StepRecord) -> tuple[Receipt, ...]:
    """Whatever its micro-batches committed counts; the next stream goes on from its checkpoint."""
    from lakewright.pipelines.streams.harvest import harvest_stream
    from lakewright.pipelines.workshop import Attempt

    grant = Grant(dataset.name, "*", shop.owner_id, shop.store.leases.draw(dataset.name))
    attempt = Attempt(shop, dataset, WHOLE, "*", grant, step.step_id, step.attempt)
    receipts = harvest_stream(attempt)
    restores = shop.store.receipts.since(dataset.name, -1, _NEWEST, kinds=("restore",))
    if any(one.number == step.number for one in restores):
        bring_letters_back(shop, dataset, grant)
    with shop.store.transaction() as conn:
        shop.store.markers.forget(dataset.name, conn=conn)  # of a rollback that never happened, or was settled
        shop.store.steps.close(step.step_id, "recovered" if receipts else "lost", now=shop.now(), conn=conn)
    return tuple(receipts)


def _found(shop: Workshop, dataset: Dataset, step: StepRecord) -> tuple[tuple[Receipt, ...], tuple[Receipt, ...]]:
    """The receipts of a dead step, read from the logs: of its private outputs, and of the public one, if any."""
    commits: dict[str, Commit] = {}
    went_back: list[Receipt] = []
    for output in step.outputs:
        part = "main" if output == dataset.name else output
        log = shop.lake.log(output)
        for version in unaccounted(shop.lake, shop.store, output):
            commit = log.commit(version)
            identity = Identity.from_json(commit.metadata)
            if identity is not None and _is_of(identity, step, part):
                commits[output] = commit
            elif identity is not None and _is_of(identity, step, RESTORE_PART):
                went_back.append(receipt_of(output, commit, recovered=True))
    public = commits.pop(dataset.name, None)
    private = (*went_back, *(receipt_of(name, commit, recovered=True) for name, commit in commits.items()))
    if public is None:
        return private, ()
    found = Identity.from_json(public.metadata)
    assert found is not None
    if found.kind in ("restore", "rewind"):
        return private, (receipt_of(dataset.name, public, recovered=True),)
    if dataset.replica is not None:  # committed, but nobody has proven it: it is copied once more
        shop.store.receipts.add([receipt_of(dataset.name, public, kind="maintenance")])
        return private, ()
    recount = _recount_source if dataset.is_source else _recount
    counters = recount(shop, dataset, found, public)
    if not_preserved(dataset, counters) is not None:
        undo = put_back(shop, dataset, replace(found, number=shop.store.leases.draw(dataset.name)), public)
        wrong = [one for one in (public, undo) if one is not None]
        shop.store.receipts.add([receipt_of(dataset.name, one, kind="maintenance") for one in wrong])
        return private, ()
    receipt = receipt_of(dataset.name, public, counters=counters, recovered=True)
    return private, (complete_receipt(receipt, dataset, Slice.parse(step.slice_id), shop),)


def _recount_source(shop: Workshop, dataset: Dataset, identity: Identity, public: Commit) -> Counters:
    if dataset.into is not None:  # past the lake, as it is: nothing of it is judged
        return Counters(read=public.rows, written=public.rows)
    # The rows without a usable time may not have been told yet: telling them again replaces them.
    anew = replace(identity, number=shop.store.leases.draw(dataset.name))
    number = Slice.parse(identity.slice_id).number
    follow_arrival(shop, dataset, anew, public.version, shop.store.arrivals.get(dataset.name, number))
    rejected = set_unusable_aside(shop, dataset, anew, public)
    return counters_of_arrival(public, rejected)


def _recount(shop: Workshop, dataset: Dataset, identity: Identity, public: Commit) -> Counters:
    guarded = next((given for given in dataset.inputs if given.guards), None)
    rejected: dict[str, int] = {}
    for commit in shop.lake.log(DEAD_LETTERS).commits():
        found = Identity.from_json(commit.metadata)
        if (
            found is not None
            and found.app_id == identity.as_part("dead_letters").app_id
            and found.number == identity.number
        ):
            by_input = rows_per_rule(shop.lake, DEAD_LETTERS, commit.version, number=found.number)
            rejected = {} if guarded is None else by_input.get(guarded.dataset, {})
    read = _rows_read(shop, dataset, Slice.parse(identity.slice_id), identity)
    drops = guarded is not None and any(getattr(guard, "drops_duplicates", False) for guard in guarded.guards)
    filtered = identity.filtered
    removed = 0 if filtered is None else filtered.rows
    duplicates = None
    if dataset.rows == "preserve" and drops and None not in (read, removed, public.rows):
        duplicates = (read or 0) - sum(rejected.values()) - (removed or 0) - (public.rows or 0)
    counters = Counters(
        read=read,
        rejected=rejected,
        duplicates=duplicates,
        written=public.rows,
        deleted=public.metrics.get("numDeletedRows"),
        filtered=filtered,
        filtered_by_input=identity.filtered_by_input,
    )
    return with_lateness(counters, identity)


def _rows_read(shop: Workshop, dataset: Dataset, slice_: Slice, identity: Identity) -> int | None:
    """As the attempt itself counted them: a step is judged alike by both."""
    alike = [given for given in dataset.inputs if isinstance(shop.graph.reference(dataset, given), SameSlice)]
    driving = next((given for given in dataset.inputs if given.guards), None) or next(iter(alike), None)
    if driving is None or driving not in alike or driving.dataset not in identity.inputs or shop.sample is not None:
        return None
    rows = rows_at(shop, driving.dataset, slice_, identity.inputs[driving.dataset])
    corrections = identity.inputs.get(corrections_of(driving.dataset))
    if corrections is None or rows is None:
        return rows
    grids = shop.graph.cell_grids(driving.dataset)
    cells = CellSpan.of(slice_.interval, grids) if slice_.kind == "event" and grids else None
    changed = correction_rows(shop.store, shop.graph[driving.dataset], slice_, cells, corrections)
    return None if changed is None else rows + changed[0]


def _is_of(identity: Identity, step: StepRecord, part: str) -> bool:
    return (
        identity.dataset == step.dataset
        and identity.slice_id == step.slice_id
        and identity.number == step.number
        and identity.part == part
        and identity.kind in ("data", "restore", "erase", "rewind")
    )


def _owner_lives(shop: Workshop, owner_id: str | None) -> bool:
    return owner_id is not None and shop.store.leases.owner_lives(owner_id, shop.now())
