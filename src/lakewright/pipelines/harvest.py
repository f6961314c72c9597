"""Harvest: bring what the logs hold and the store does not know into the store as receipts.

Commits of ours whose step record is open are left to recovery; commits of others become *foreign* receipts, so
that readers notice them, and a finding tells people.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lakewright.lake.lake import Lake
from lakewright.model.findings import Finding
from lakewright.model.identity import Identity
from lakewright.model.receipts import Commit, Counters, Receipt, ReceiptKind
from lakewright.model.slices import WHOLE
from lakewright.model.times import utc_now
from lakewright.store import Store

__all__ = ["FOREIGN", "harvest", "notice", "pin", "receipt_of", "unaccounted"]

FOREIGN = "foreign commit"
"""The subject of a finding that tells of a commit that is not ours."""

_MAINTENANCE = ("OPTIMIZE", "VACUUM START", "VACUUM END", "REORG")


def pin(lake: Lake, store: Store, name: str) -> int | None:
    """The version of an input that a step reads: the newest one up to which every commit is accounted for.

    While another run has a step of this dataset open, its commits are not counted yet and are not read. A table of
    another target is read as it was when the run began.
    """
    if name in lake.borrowed:
        return store.receipts.last_version(name)
    earliest, latest = lake.log(name).bounds()
    if latest is None or earliest is None:
        return None
    unknown = store.receipts.gaps(name, earliest, latest)
    if not unknown:
        return latest
    # Micro-batches are indexed by whoever runs the stream next, who also tells what is wrong in them.
    if store.steps.open_steps(name) or _is_micro_batch(lake.log(name).commit(unknown[0])):
        return unknown[0] - 1 if unknown[0] > 0 else None
    harvest(lake, store, name, unknown)
    return latest


def _is_micro_batch(commit: Commit) -> bool:
    identity = Identity.from_json(commit.metadata)
    return identity is not None and "batch" in identity.details


def unaccounted(lake: Lake, store: Store, name: str) -> list[int]:
    """The versions in a dataset's log that no receipt tells of."""
    earliest, latest = lake.log(name).bounds()
    return [] if earliest is None or latest is None else store.receipts.gaps(name, earliest, latest)


def harvest(lake: Lake, store: Store, name: str, versions: Sequence[int]) -> list[Receipt]:
    """Index commits of a dataset that no receipt tells of."""
    receipts = [receipt_of(name, lake.log(name).commit(version)) for version in versions]
    if lake.is_declared(name):  # whoever keeps a table that is only adopted may write to it
        told = [_finding(name, receipt) for receipt in receipts if receipt.kind == "foreign"]
        store.findings.add(told, run_id=None, now=utc_now())
    store.receipts.add(receipts)
    return receipts


def notice(lake: Lake, store: Store, names: Iterable[str]) -> None:
    """Index what others have committed; commits of ours are left to recovery, and to ``pin``."""
    for name in names:
        if name in lake.outside:
            continue  # nobody else writes into a ledger, and nothing is made of what lies there
        unknown = unaccounted(lake, store, name)
        if unknown and not store.steps.open_steps(name):
            log = lake.log(name)
            others = [v for v in unknown if Identity.from_json(log.commit(v).metadata) is None]
            harvest(lake, store, name, others)


def _finding(name: str, receipt: Receipt) -> Finding:
    unseen = set(receipt.touched) == {None}
    effect = "Its rows have no event cell, so no step reads them" if unseen else "Its readers are stale"
    return Finding(
        dataset=name,
        subject=FOREIGN,
        message=f"Somebody else wrote version {receipt.version} of {name}.",
        cure=f"{effect}. If it was a mistake: `lakewright rollback {name} --to {receipt.version - 1}`.",
    )


def receipt_of(
    name: str,
    commit: Commit,
    *,
    counters: Counters | None = None,
    recovered: bool = False,
    kind: ReceiptKind | None = None,
) -> Receipt:
    """What a commit's own file tells, as a receipt."""
    identity = Identity.from_json(commit.metadata)
    plain = Receipt(
        dataset=name,
        slice_id=WHOLE.id,
        kind=kind or _kind(commit, identity),
        version=commit.version,
        version_before=commit.version - 1 if commit.version else None,
        number=0,
        committed_at=commit.committed_at,
        rows=commit.rows,
        bytes=commit.bytes_added,
        counters=counters or Counters(written=commit.rows, deleted=commit.metrics.get("numDeletedRows")),
        touched=commit.touched if commit.data_change else {},
        recovered=recovered,
    )
    if identity is None:
        return plain
    return replace(
        plain,
        slice_id=identity.slice_id,
        number=identity.number,
        run_id=identity.run_id,
        attempt=identity.attempt,
        inputs=identity.inputs,
        code=identity.code,
    )


def _kind(commit: Commit, identity: Identity | None) -> ReceiptKind:
    if commit.operation in _MAINTENANCE:
        return "maintenance"
    if identity is not None:
        return identity.kind
    if commit.data_change:
        return "foreign"
    return "schema" if commit.schema_change else "maintenance"
