"""Receipts of micro-batches, read from the log by whoever holds the stream's lease.

A micro-batch's commit says all that its receipt needs. What it cannot say is the rows without a usable event time:
they are told in the dead letters first, so that a receipt means that every row is accounted for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakewright.failpoints import failpoint
from lakewright.lake.side_tables import DEAD_LETTERS, LATE_ROWS, find_side_rows, rows_per_rule
from lakewright.model.identity import Identity
from lakewright.model.receipts import Commit, Counters, Receipt
from lakewright.model.slices import Slice
from lakewright.model.streams import Dropped
from lakewright.pipelines.harvest import receipt_of, restored_version, unaccounted
from lakewright.pipelines.lateness import with_lateness
from lakewright.pipelines.receipt_warnings import warnings_of
from lakewright.pipelines.settle import BEHIND_WATERMARK, counters_of_arrival, set_unusable_aside
from lakewright.pipelines.streams.joins import with_pairs
from lakewright.pipelines.workshop import Attempt

__all__ = ["find_batch", "harvest_stream"]


def harvest_stream(
    current: Attempt, dropped: Mapping[int, Dropped] | None = None, *, ending: bool = True
) -> list[Receipt]:
    """Index the commits of a stream that no receipt tells of, in order; runs a job only where rows are unusable.

    ``dropped`` is what the state of its guards dropped of micro-batches, by their place. While the stream goes on, one
    that has committed and not yet ended is left for the next time: then this is known of it.
    """
    shop, name = current.shop, current.dataset.name
    log = shop.lake.log(name)
    found = []
    for version in unaccounted(shop.lake, shop.store, name):
        commit = log.commit(version)
        identity = Identity.from_json(commit.metadata)
        receipt = receipt_of(name, commit)
        if identity is not None and identity.kind == "data" and "batch" in identity.details:
            place = int(str(identity.details["batch"]))
            if not ending and dropped is not None and place > max(dropped, default=-1):
                break
            # The lease's number is above that of whoever may have begun to tell them before.
            told = replace(identity, number=current.grant.number, details={})
            receipt = receipt_of(name, commit, counters=_counters(current, told, identity, commit))
            receipt = _with_dropped(receipt, None if dropped is None else dropped.get(place))
        elif identity is not None and identity.kind == "rewind":
            _withdraw_letters(current, identity)
        warnings = warnings_of(shop, current.dataset, receipt)
        failpoint("before_receipt")
        with shop.store.transaction() as conn:  # a commit with a receipt is not looked at again
            shop.store.receipts.add([receipt], conn=conn)
            if receipt.kind == "restore":
                shop.store.receipts.rolled_back(name, restored_version(commit), version, conn=conn)
                shop.store.mark_ready([receipt], now=shop.now(), conn=conn)
            shop.store.findings.add(warnings, run_id=shop.run.run_id, now=shop.now(), conn=conn)
        found.append(receipt)
    return found


def _with_dropped(receipt: Receipt, dropped: Dropped | None) -> Receipt:
    if dropped is None:
        return receipt
    rejected = dict(receipt.counters.rejected)
    if dropped.behind_watermark:
        rejected[BEHIND_WATERMARK] = dropped.behind_watermark
    return replace(receipt, counters=replace(receipt.counters, rejected=rejected, duplicates=dropped.duplicates))


def _withdraw_letters(current: Attempt, identity: Identity) -> None:
    """Delete what side tables tell of arrivals that are read again: bad and late records come back as well."""
    lake, first = current.shop.lake, Slice.parse(identity.slice_id).number
    for table, part in ((DEAD_LETTERS, "dead_letters"), (LATE_ROWS, "late_rows")):
        if not lake.log(table).exists():
            continue
        told = replace(identity, number=current.grant.number, part=part, details={})
        lake.open(table, told).delete(
            f"dataset = '{identity.dataset}' AND slice LIKE 'arrival-%' AND CAST(substr(slice, 9) AS BIGINT) >= {first}"
        )


def _counters(current: Attempt, told: Identity, identity: Identity, commit: Commit) -> Counters:
    rejected: dict[str, int] = {}
    if None in commit.touched:
        rejected = set_unusable_aside(current.shop, current.dataset, told, commit)
    rejected = {**rejected, **_set_aside_before(current, identity)}
    written = commit.rows
    if current.dataset.is_source:
        return counters_of_arrival(commit, rejected)
    # How many rows a micro-batch of another dataset held, no log tells.
    deleted = commit.metrics.get("numDeletedRows")
    counters = Counters(
        rejected=rejected,
        written=written,
        deleted=deleted,
        filtered=identity.filtered,
        filtered_by_input=identity.filtered_by_input,
    )
    return with_pairs(with_lateness(counters, identity), identity)


def _set_aside_before(current: Attempt, identity: Identity) -> dict[str, int]:
    """What the guards of the same micro-batch set aside, from the dead letters' own log."""
    if not any(given.guards for given in current.dataset.inputs):
        return {}
    commit = find_batch(current, identity.as_judge("dead_letters"))
    if commit is None:
        return {}
    by_input = rows_per_rule(current.shop.lake, DEAD_LETTERS, commit.version)
    driving = next((given.dataset for given in current.dataset.inputs if given.guards), "")
    return by_input.get(driving, {})


def find_batch(current: Attempt, identity: Identity) -> Commit | None:
    """The commit of a micro-batch's side rows: the newest of the same transaction."""
    return find_side_rows(current.shop.lake, DEAD_LETTERS, identity)
