"""Letters of unusable rows where they are not told: told from bronze, which keeps every row.

Guarantee:
    Of each arrival that counts, and of each micro-batch, the rows without a usable event time are told once, under its
    own number: after a rollback, which lets earlier arrivals count again, and after the store was made anew from the
    logs, where somebody had died between a commit and what is told of it. Doing it again changes nothing.
Consequences:
    - One job looks which letters lie there, and one more runs for each arrival of which they are missing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakewright.lake.side_tables import DEAD_LETTERS, LATE_ROWS
from lakewright.model.identity import Identity
from lakewright.model.receipts import Commit, Receipt
from lakewright.model.slices import WHOLE
from lakewright.model.sql import text_literal
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.settle import set_unusable_aside

if TYPE_CHECKING:
    from lakewright.pipelines.workshop import Workshop

__all__ = ["tell_unusable_again", "withdraw_what_was_rewound"]

_NEWEST = 2**62


def tell_unusable_again(shop: Workshop, dataset: Dataset, number: int) -> None:
    """Runs a job for each arrival that counts and whose unusable rows are not told under its own number."""
    name = dataset.name
    if not _has_unusable_rows(dataset):
        return
    wanted = [one for one in _receipts(shop, name) if one.state == "live" and _should_tell(one)]
    if not wanted:
        return
    there = _lying(shop, DEAD_LETTERS, f"dataset = {text_literal(name)} AND input = {text_literal(name)}")
    log = shop.lake.log(name)
    earliest, latest = log.bounds()
    for receipt in wanted:
        if (receipt.slice_id, receipt.number) not in there:
            known = earliest is not None and earliest <= receipt.version
            commit = log.commit(receipt.version) if known else _as_commit(receipt)
            identity = Identity.from_json(commit.metadata)
            assert identity is not None
            anew = replace(identity, number=number, details={})
            # What later arrivals have replaced of it since is not there any more.
            set_unusable_aside(shop, dataset, anew, commit, version=latest)


def withdraw_what_was_rewound(shop: Workshop, dataset: Dataset, number: int) -> None:
    """Delete what side tables tell of micro-batches that a rewind took back, and that are read again."""
    name = dataset.name
    if not dataset.is_stream or not shop.store.receipts.since(name, -1, _NEWEST, kinds=("rewind",)):
        return
    rewound = {one.slice_id for one in _receipts(shop, name) if one.state == "superseded"}
    rewound -= shop.store.receipts.live_slices(name).keys()
    for table, part in ((DEAD_LETTERS, "dead_letters"), (LATE_ROWS, "late_rows")):
        there = {slice_id for slice_id, _ in _lying(shop, table, f"dataset = {text_literal(name)}")}
        if gone := sorted(there & rewound):
            identity = Identity(name, WHOLE.id, number, shop.run.run_id, kind="rewind", part=part)
            listed = ", ".join(map(text_literal, gone))
            shop.lake.open(table, identity).delete(f"dataset = {text_literal(name)} AND slice IN ({listed})")


def _has_unusable_rows(dataset: Dataset) -> bool:
    """Whether its rows may have no usable time: only those of sources and streams are told by themselves."""
    return dataset.into is None and (dataset.is_source or dataset.is_stream)


def _receipts(shop: Workshop, name: str) -> list[Receipt]:
    return shop.store.receipts.since(name, -1, _NEWEST, kinds=("data",))


def _should_tell(receipt: Receipt) -> bool:
    """Whether rows without a usable time came; a count that is known tells whether they were all corrected since."""
    unusable = receipt.touched.get(None)
    if unusable is None or unusable.added == 0:
        return False
    return receipt.counters.read is None or receipt.counters.rejected_rows > 0


def _lying(shop: Workshop, table: str, where: str) -> set[tuple[str, int]]:
    """Runs a job: the slices and the numbers of what lies in a side table."""
    if not shop.lake.log(table).exists():
        return set()
    rows = shop.lake.read(table, system_columns=True).where(where).select("slice", "number").distinct()
    return {(row["slice"], row["number"]) for row in rows.collect()}


def _as_commit(receipt: Receipt) -> Commit:
    """What the log told of a commit before it was cleaned, as far as its receipt knows."""
    identity = Identity(
        receipt.dataset,
        receipt.slice_id,
        receipt.number,
        receipt.run_id or "",
        code=receipt.code,
        run_time=receipt.committed_at.isoformat(),
    )
    return Commit(receipt.version, receipt.committed_at, "WRITE", identity.to_json(), {}, receipt.touched)
