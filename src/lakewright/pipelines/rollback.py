"""Going back: all outputs of a step to one moment, and what that does to receipts.

What was rolled back does not come back by itself: the restore's receipt holds the inputs of now, and slices are
judged stale or missing against those, until something new arrives or somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, TargetError
from lakewright.failpoints import failpoint
from lakewright.lake.corrections import corrections_of
from lakewright.model.findings import Finding
from lakewright.model.identity import Identity
from lakewright.model.outside import ShowsEarlier
from lakewright.model.receipts import Commit, Receipt
from lakewright.model.slices import WHOLE
from lakewright.pipelines.corrections import pinned_corrections
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.harvest import pin, receipt_of, restored_version
from lakewright.pipelines.letters_back import bring_letters_back
from lakewright.pipelines.marking import rollback_notices, settle_flags, withdraw_all
from lakewright.pipelines.workshop import Attempt, Workshop

if TYPE_CHECKING:
    from lakewright.model.outside import Log

__all__ = ["RollbackSummary", "previous_version", "roll_back", "undo_stale_restores"]


@dataclass(frozen=True, slots=True)
class RollbackSummary:
    """What a rollback did, or would do."""

    dataset: str
    from_version: int
    to_version: int
    outputs: tuple[str, ...]
    slices_rolled_back: tuple[str, ...]
    slices_live_again: tuple[str, ...]
    consumers: tuple[str, ...]


def previous_version(shop: Workshop, name: str) -> int:
    """Where a rollback goes if nobody says: before what the last run that wrote to the dataset wrote."""
    first = shop.store.receipts.first_of_last_run(name)
    if first is None:
        raise ConfigurationError(f"{name} has no commit of ours to go back from.")
    if first == 0:
        raise ConfigurationError(f"{name} was made by its first run: there is no earlier version to go back to.")
    return first - 1


def roll_back(shop: Workshop, dataset: Dataset, *, to: int | None = None, dry_run: bool = False) -> RollbackSummary:
    """Restores a step's outputs, the private ones first; the public one is the commit point."""
    outside = dataset.into is not None and dataset.name in shop.lake.outside
    if outside and not getattr(dataset.into, "keeps_versions", False):
        assert dataset.into is not None
        raise ConfigurationError(
            f"{dataset.name} goes to {dataset.into.shown}, which keeps no earlier versions: it cannot be rolled back. "
            "Nothing was changed.",
            hint="Roll back what it is made of, then make its slices again with `lakewright backfill`.",
        )
    if dataset.is_stream and not (dataset.is_source and dataset.appends):
        raise ConfigurationError(
            f"{dataset.name} is a stream that follows another dataset: an earlier version of it does not tell how far "
            "it had read. Nothing was changed.",
            hint=f"Read it again from the beginning: `lakewright stream rewind {dataset.name} --all`.",
        )
    for given in dataset.inputs:
        pin(shop.lake, shop.store, given.dataset)
    pin(shop.lake, shop.store, dataset.name)
    log = shop.lake.log(dataset.name)
    newest = log.latest()
    if newest is None:
        raise ConfigurationError(f"{dataset.name} has no table yet: there is nothing to roll back.")
    target = previous_version(shop, dataset.name) if to is None else to
    oldest = log.bounds()[0] or 0
    if not oldest <= target < newest:
        raise ConfigurationError(
            f"{dataset.name} is at version {newest}; it can go back to versions {oldest} to {newest - 1}, "
            f"not to {target}."
        )
    before = set(shop.store.receipts.live_slices(dataset.name))
    summary = _preview(shop, dataset, newest, target, before)
    if dry_run:
        return summary
    with shop.attempt(dataset, WHOLE, attempt=1, reason=f"rollback to version {target}", whole=True) as current:
        _pin_inputs(current)
        going_back = [*_private_versions(shop, dataset, log, target), (dataset.name, target)]
        for name, version in going_back:
            # Before the first of them is restored: either all outputs go back or none.
            if not outside and (lost := shop.lake.lost_files(name, version)):
                raise _gone(name, version, f"{len(lost)} of its files are gone, the first is {lost[0]}")
    # If anything goes wrong from here on, the record stays open: the next run looks what was rolled back, and ends it.
    withdraw_all(current, [name for name, _ in going_back], summary.slices_rolled_back)
    receipts = [_restore(current, name, version) for name, version in going_back]
    failpoint("restored")
    notices = rollback_notices(shop, dataset, summary.slices_rolled_back, receipts[-1])
    _record(current, tuple(receipts), notices)
    failpoint("rolled_back")
    _finish(current, bring_letters_back(shop, dataset, current.grant))
    settle_flags(shop, dataset)
    return summary


def _restore(current: Attempt, name: str, version: int) -> Receipt:
    identity = replace(
        current.identity(restored_to=version),
        kind="restore",
        part="main" if name == current.dataset.name else name,
    )
    table = current.shop.lake.open(name, identity, still_mine=current.still_mine)
    if isinstance(table, ShowsEarlier):
        return _receipt(name, version, table.show_earlier(version))
    try:
        commit = table.restore(version)
    except Exception as error:
        if "DELTA_RESTORE" in str(error) or "MISSING" in str(error) or "Not all files" in str(error):
            raise _gone(name, version, "its files are gone, or its retention has passed") from error
        raise
    return _receipt(name, version, commit)


def _receipt(name: str, version: int, commit: Commit | None) -> Receipt:
    if commit is None:
        raise TargetError(f"{name} is already as it was at version {version}.")
    return receipt_of(name, commit)


def _gone(name: str, version: int, why: str) -> TargetError:
    return TargetError(
        f"{name}: version {version} can no longer be restored: {why}. Somebody ran VACUUM, or deleted them. "
        "Nothing was changed.",
        hint="Choose a newer version, or make the slices again with `lakewright backfill`.",
    )


def _record(current: Attempt, receipts: tuple[Receipt, ...], notices: tuple[Finding, ...]) -> None:
    """From here on the earlier receipts count; the step stays open, and its tables closed to readers, until the end."""
    shop = current.shop
    failpoint("before_receipt")
    with shop.store.transaction() as conn:
        shop.store.receipts.add(receipts, conn=conn)
        for receipt in receipts:
            target = restored_version(shop.lake.log(receipt.dataset).commit(receipt.version))
            shop.store.receipts.rolled_back(receipt.dataset, target, receipt.version, conn=conn)
        shop.store.mark_ready(receipts, now=shop.now(), conn=conn)
        shop.store.findings.add(notices, run_id=None, now=shop.now(), conn=conn)


def _finish(current: Attempt, findings: tuple[Finding, ...]) -> None:
    shop = current.shop
    with shop.store.transaction() as conn:
        shop.store.findings.add(findings, run_id=shop.run.run_id, now=shop.now(), conn=conn)
        shop.store.steps.close(current.step_id, "ok", now=shop.now(), conn=conn)
        shop.store.leases.release(current.dataset.name, current.lease, current.grant.number, conn=conn)


def _pin_inputs(current: Attempt) -> None:
    for given in current.dataset.inputs:
        version = pin(current.shop.lake, current.shop.store, given.dataset)
        if version is not None:
            current.inputs[given.dataset] = version
        corrections = pinned_corrections(current.shop.lake, current.shop.store, given.dataset)
        if corrections is not None:
            current.inputs[corrections_of(given.dataset)] = corrections


def _private_versions(shop: Workshop, dataset: Dataset, log: Log, target: int) -> list[tuple[str, int]]:
    """The versions of the private outputs that were there when the public one was at ``target``."""
    moment = log.commit(target).committed_at
    found = []
    for name in dataset.outputs:
        versions = [c.version for c in shop.lake.log(name).commits() if c.committed_at <= moment]
        if versions and versions[-1] != shop.lake.log(name).latest():
            found.append((name, versions[-1]))
    return found


def _preview(shop: Workshop, dataset: Dataset, newest: int, target: int, live: set[str]) -> RollbackSummary:
    later = [r for r in shop.store.receipts.since(dataset.name, target, newest, kinds=("data",)) if r.state == "live"]
    gone = {r.slice_id for r in later}
    earlier = {
        r.slice_id
        for r in shop.store.receipts.since(dataset.name, -1, target, kinds=("data",))
        if r.state != "rolled back"
    }
    return RollbackSummary(
        dataset=dataset.name,
        from_version=newest,
        to_version=target,
        outputs=(*dataset.outputs, dataset.name),
        slices_rolled_back=tuple(sorted(gone & live)),
        slices_live_again=tuple(sorted(gone & earlier)),
        consumers=tuple(sorted(shop.graph.downstream(dataset.name))),
    )


def undo_stale_restores(shop: Workshop) -> list[str]:
    """Undo a RESTORE that a zombie made after it had lost its lease: it carries no transaction that Delta could skip.

    Told by its number, which is lower than that of a commit before it.
    """
    undone = []
    for name, dataset in shop.graph.datasets.items():
        if name in shop.lake.borrowed or name in shop.lake.outside:
            continue
        log = shop.lake.delta_log(name)
        latest = log.latest()
        if latest is None or latest == shop.store.receipts.last_version(name):
            continue
        known = max((r.number for r in shop.store.receipts.history(name, limit=200)), default=0)
        for version in shop.store.receipts.gaps(name, log.earliest() or 0, latest):
            found = Identity.from_json(log.commit(version).metadata)
            if found is None or found.kind != "restore" or found.number >= known:
                known = max(known, 0 if found is None else found.number)
                continue
            with shop.attempt(
                dataset, WHOLE, attempt=1, reason=f"undo a stale restore (version {version})", whole=True
            ) as current:
                identity = replace(current.identity(), kind="maintenance", part="undo")
                commit = shop.lake.open(name, identity, still_mine=current.still_mine).restore(version - 1)
                stale = [log.commit(version), *([commit] if commit else [])]
                current.finish(tuple(receipt_of(name, one, kind="maintenance") for one in stale))
            undone.append(name)
    return undone
