"""Markers beyond the store: flag files for those who look into a folder, notices for those who want to be told.

The store's own markers change in the transactions that open and close a step (see ``store.engine``). Files cannot be
part of a transaction: a flag is taken away before the first write and written after the receipt, and one that is
missing after a kill is written by the next run. A notice is kept with the receipt and delivered at the end of a run;
one that could not be delivered waits for the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from lakewright.errors import LakewrightError, TargetError
from lakewright.failpoints import failpoint
from lakewright.model.findings import Finding
from lakewright.model.protocols import Notifier
from lakewright.model.receipts import Receipt
from lakewright.patterns.ingestion.flag_files import set_marker, withdraw_marker
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.fan_in_options import partial_of
from lakewright.store import EVERY_SLICE

if TYPE_CHECKING:
    from lakewright.pipelines.states import DatasetPlan
    from lakewright.pipelines.workshop import Attempt, Workshop

__all__ = [
    "PARTIAL",
    "change_notices",
    "deliver",
    "partial_findings",
    "partial_notices",
    "rollback_notices",
    "set_flag",
    "settle_flags",
    "settle_markers",
    "withdraw_all",
    "withdraw_flag",
]

PARTIAL = "completeness"
"""The subject of a finding that tells of a slice without some of its parts."""
_UNTOUCHED = ("held", "refused", "overdue", "unmet")
"""States that a run deals with and that leave the slice as it is."""


def settle_markers(shop: Workshop, plan: DatasetPlan) -> list[str]:
    """Set the markers of slices that are whole and that nobody is about to make again; gives what failed, in words.

    Such are the slices of a repeat that failed or was killed before it had published anything, once nothing asks for
    it any more. One query per dataset where there are none.
    """
    dataset, store = plan.dataset, shop.store
    for name in (*dataset.outputs, dataset.name):
        if not (withdrawn := store.markers.withdrawn(name)):
            continue
        begun = {step.slice_id for step in store.steps.open_steps(name)}
        making = {state.slice.id for state in plan.to_make if state.status not in _UNTOUCHED}
        live = store.receipts.live_slices(name)
        if any(marker.slice_id == EVERY_SLICE for marker in withdrawn) and not begun:
            store.markers.forget(name)  # a rollback that never happened, or was settled
            continue
        told = {} if dataset.fan_in is None else store.receipts.completeness(name)
        partial = {slice_id for slice_id, found in told.items() if not found.is_complete}
        for marker in withdrawn:
            if marker.slice_id in live and marker.slice_id not in begun | making | partial:
                store.markers.set(name, marker.slice_id, run_id=marker.run_id, now=shop.now())
    return settle_flags(shop, dataset)


def withdraw_all(current: Attempt, names: Iterable[str], slices: Iterable[str]) -> None:
    """Before a rollback: no slice of these datasets is ready until it is done."""
    shop = current.shop
    with shop.store.transaction() as conn:
        for name in names:
            shop.store.markers.withdraw(name, EVERY_SLICE, run_id=shop.run.run_id, now=shop.now(), conn=conn)
    for slice_id in slices:
        withdraw_flag(shop, current.dataset, slice_id)


# Flag files


def withdraw_flag(shop: Workshop, dataset: Dataset, slice_id: str) -> None:
    """Take the flag of a slice away, before anything of it changes."""
    if (name := _flag_file(shop, dataset)) is not None:
        withdraw_marker(_flag_folder(shop, dataset, slice_id), name=name)
        failpoint("flag_withdrawn")


def set_flag(shop: Workshop, dataset: Dataset, receipt: Receipt) -> str | None:
    """Write the flag of a slice that was made; gives what went wrong, in words: the slice itself is done."""
    name = _flag_file(shop, dataset)
    if name is None or receipt.kind != "data" or receipt.counters.is_partial:
        return None
    folder = _flag_folder(shop, dataset, receipt.slice_id)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        set_marker(folder, name=name, rows=receipt.rows, run=receipt.run_id, version=receipt.version, at=shop.now())
    except (OSError, LakewrightError) as error:
        return f"{dataset.name} {receipt.slice_id} is ready, but its flag could not be written: {error}"
    return None


def settle_flags(shop: Workshop, dataset: Dataset) -> list[str]:
    """Write the flags of slices that are ready and have none: a run died before it could, or it failed."""
    if (name := _flag_file(shop, dataset)) is None:
        return []
    store = shop.store
    live, withdrawn = store.receipts.live_slices(dataset.name), store.markers.withdrawn(dataset.name)
    busy = {marker.slice_id for marker in withdrawn}
    if EVERY_SLICE in busy:
        return []
    problems = []
    for slice_id in live.keys() - busy:
        if (_flag_folder(shop, dataset, slice_id) / name).exists():
            continue
        receipt = store.receipts.live(dataset.name, slice_id)
        if receipt is not None and (problem := set_flag(shop, dataset, receipt)) is not None:
            problems.append(problem)
    return problems


def _flag_file(shop: Workshop, dataset: Dataset) -> str | None:
    # A trial on a part of the rows tells nobody that anything is ready.
    return None if dataset.marker is None or shop.sample is not None else dataset.marker.flag_file


def _flag_folder(shop: Workshop, dataset: Dataset, slice_id: str) -> Path:
    assert dataset.marker is not None
    folder, lake = Path(dataset.marker.folder), shop.lake.local
    if lake is None and not folder.is_absolute():
        raise TargetError(
            f"{dataset.name}: the lake is not on this machine, so its flag files need a folder that is. "
            "Nothing was written.",
            hint='Name one that is mounted here: ReadinessMarker(flag_file="COMPLETED", folder="/mnt/flags").',
        )
    return (lake or Path("/")) / folder / dataset.name / quote(slice_id, safe="=")


# Notices


def change_notices(shop: Workshop, dataset: Dataset, receipt: Receipt, reason: str) -> tuple[Finding, ...]:
    """One notice per subscriber where a slice that was ready has changed, to be kept with its receipt.

    A repeat by the same code from the same inputs, with as many rows, has changed nothing.
    """
    if not (notifiers := _subscribers(shop, dataset)) or receipt.kind != "data" or receipt.counters.is_partial:
        return ()
    earlier = shop.store.receipts.live(dataset.name, receipt.slice_id)
    if earlier is None or earlier.version >= receipt.version or _is_same(earlier, receipt):
        return ()
    was = "partial" if earlier.counters.is_partial else "ready"
    message = (
        f"{dataset.name} {receipt.slice_id} was {was} since {earlier.committed_at:%Y-%m-%d %H:%M} UTC and has "
        f"changed ({reason}): version {receipt.version}, {_rows(receipt)} after {_rows(earlier)}."
    )
    return tuple(_notice(one, dataset, receipt.slice_id, message) for one in notifiers)


def partial_findings(shop: Workshop, dataset: Dataset, receipt: Receipt) -> tuple[Finding, ...]:
    """One finding, and one notice per subscriber, where a slice was made without some of its parts.

    A repeat with the same parts is no news.
    """
    found = receipt.counters.completeness
    if found is None or found.is_complete or shop.sample is not None:
        return ()
    if receipt.dataset not in (dataset.name, partial_of(dataset)):
        return ()  # a further output of the step, whose public table is still to come
    earlier = shop.store.receipts.live(receipt.dataset, receipt.slice_id)
    if earlier is not None and earlier.version != receipt.version and earlier.counters.completeness == found:
        return ()
    where = "was published in part" if receipt.dataset == dataset.name else f"is kept in {receipt.dataset}"
    told = Finding(
        dataset=dataset.name,
        subject=PARTIAL,
        message=f"{dataset.name} {receipt.slice_id} {where}: {found.in_words()} (version {receipt.version}).",
        slice_id=receipt.slice_id,
        cure="It is made anew when the missing parts are.",
    )
    return (told, *partial_notices(shop, dataset, told))


def partial_notices(shop: Workshop, dataset: Dataset, told: Finding) -> tuple[Finding, ...]:
    """The same finding for each subscriber."""
    return tuple(replace(told, subject=_subject(one.name)) for one in _subscribers(shop, dataset))


def rollback_notices(shop: Workshop, dataset: Dataset, slices: Iterable[str], receipt: Receipt) -> tuple[Finding, ...]:
    """The same for slices that were rolled back."""
    return tuple(
        _notice(one, dataset, slice_id, f"{dataset.name} {slice_id} was rolled back (version {receipt.version}).")
        for one in _subscribers(shop, dataset)
        for slice_id in slices
    )


def deliver(shop: Workshop) -> list[str]:
    """Give every notice that waits to its subscriber, oldest first; gives what could not be delivered, in words."""
    if shop.sample is not None:
        return []
    known = {one.name: one for dataset in shop.graph.datasets.values() for one in _subscribers(shop, dataset)}
    problems = []
    for name, notifier in known.items():
        waiting = shop.store.findings.waiting(_subject(name), limit=1000)
        for done, finding in enumerate(waiting):
            try:
                notifier.within(shop.project).notify(finding)
            except LakewrightError as error:
                left = len(waiting) - done
                many = "1 notice waits" if left == 1 else f"{left} notices wait"
                problems.append(f"{many} for the next run: {error}")
                break
            failpoint("notified")
            shop.store.findings.told(finding, run_id=shop.run.run_id)
    return problems


def _subscribers(shop: Workshop, dataset: Dataset) -> Sequence[Notifier]:
    return () if dataset.marker is None or shop.sample is not None else dataset.marker.notify


def _notice(notifier: Notifier, dataset: Dataset, slice_id: str, message: str) -> Finding:
    return Finding(
        dataset=dataset.name,
        subject=_subject(notifier.name),
        message=message,
        severity="info",
        slice_id=slice_id,
        cure="Whoever has read this slice reads it again.",
    )


def _subject(name: str) -> str:
    return f"changed slice, for {name}"


def _is_same(earlier: Receipt, now: Receipt) -> bool:
    return (earlier.code, dict(earlier.inputs), earlier.rows) == (now.code, dict(now.inputs), now.rows)


def _rows(receipt: Receipt) -> str:
    return "an unknown number of rows" if receipt.rows is None else f"{receipt.rows:,} rows"
