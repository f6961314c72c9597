"""Receipts of micro-batches, read from the log by whoever holds the stream's lease.

A micro-batch's commit says all that its receipt needs. What it cannot say is the rows without a usable event time:
they are told in the dead letters first, so that a receipt means that every row is accounted for.
"""

from __future__ import annotations

from dataclasses import replace

from lakewright.failpoints import failpoint
from lakewright.lake.side_tables import DEAD_LETTERS, find_side_rows, rows_per_rule
from lakewright.model.identity import Identity
from lakewright.model.receipts import Commit, Counters, Receipt
from lakewright.model.slices import Slice
from lakewright.pipelines.harvest import receipt_of, unaccounted
from lakewright.pipelines.settle import UNREADABLE, set_unusable_aside
from lakewright.pipelines.workshop import Attempt

__all__ = ["find_batch", "harvest_stream"]


def harvest_stream(current: Attempt) -> list[Receipt]:
    """Index the commits of a stream that no receipt tells of, in order; runs a job only where rows are unusable."""
    shop, name = current.shop, current.dataset.name
    log = shop.lake.log(name)
    found = []
    for version in unaccounted(shop.lake, shop.store, name):
        commit = log.commit(version)
        identity = Identity.from_json(commit.metadata)
        receipt = receipt_of(name, commit)
        if identity is not None and identity.kind == "data" and "batch" in identity.details:
            # The lease's number is above that of whoever may have begun to tell them before.
            told = replace(identity, number=current.grant.number, details={})
            receipt = receipt_of(name, commit, counters=_counters(current, told, identity, commit))
        elif identity is not None and identity.kind == "rewind":
            _withdraw_letters(current, identity)
        failpoint("before_receipt")
        shop.store.receipts.add([receipt])
        found.append(receipt)
    return found


def _withdraw_letters(current: Attempt, identity: Identity) -> None:
    """Delete what the dead letters tell of arrivals that are read again: their bad records come back as well."""
    lake = current.shop.lake
    if not lake.log(DEAD_LETTERS).exists():
        return
    first = Slice.parse(identity.slice_id).number
    told = replace(identity, number=current.grant.number, part="dead_letters", details={})
    lake.open(DEAD_LETTERS, told).delete(
        f"dataset = '{identity.dataset}' AND slice LIKE 'arrival-%' AND CAST(substr(slice, 9) AS BIGINT) >= {first}"
    )


def _counters(current: Attempt, told: Identity, identity: Identity, commit: Commit) -> Counters:
    rejected: dict[str, int] = {}
    if None in commit.touched:
        rejected = set_unusable_aside(current.shop, current.dataset, told, commit)
    rejected = {**rejected, **_set_aside_before(current, identity)}
    written = commit.rows
    if current.dataset.is_source:
        return Counters(read=written, rejected=rejected, written=written, corrupt=rejected.get(UNREADABLE, 0))
    # How many rows a micro-batch of another dataset held, no log tells.
    return Counters(rejected=rejected, written=written, deleted=commit.metrics.get("numDeletedRows"))


def _set_aside_before(current: Attempt, identity: Identity) -> dict[str, int]:
    """What the guards of the same micro-batch set aside, from the dead letters' own log."""
    if not any(given.guards for given in current.dataset.inputs):
        return {}
    commit = find_batch(current, identity.as_part("dead_letters"))
    if commit is None:
        return {}
    by_input = rows_per_rule(current.shop.lake, DEAD_LETTERS, commit.version)
    driving = next((given.dataset for given in current.dataset.inputs if given.guards), "")
    return by_input.get(driving, {})


def find_batch(current: Attempt, identity: Identity) -> Commit | None:
    """The commit of a micro-batch's side rows: the newest of the same transaction."""
    return find_side_rows(current.shop.lake, DEAD_LETTERS, identity)
