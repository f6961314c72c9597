"""Harvest: bring what the logs hold and the store does not know into the store as receipts.

Commits of ours whose step record is open are left to recovery; commits of others become *foreign* receipts, so
that readers notice them, and a finding tells people.
"""

from __future__ import annotations

from dataclasses import replace

from lakewright.lake.lake import Lake
from lakewright.model.findings import Finding
from lakewright.model.identity import Identity
from lakewright.model.receipts import Commit, Counters, Receipt, ReceiptKind
from lakewright.model.slices import WHOLE
from lakewright.model.times import utc_now
from lakewright.store import Store

__all__ = ["harvest", "pin", "receipt_of", "unaccounted"]

_MAINTENANCE = ("OPTIMIZE", "VACUUM START", "VACUUM END", "REORG")


def pin(lake: Lake, store: Store, name: str) -> int | None:
    """The version of an input that a step reads: the newest one up to which every commit is accounted for.

    While another run has a step of this dataset open, its commits are not counted yet and are not read.
    """
    earliest, latest = lake.log(name).bounds()
    if latest is None or earliest is None:
        return None
    unknown = store.receipts.gaps(name, earliest, latest)
    if not unknown:
        return latest
    if store.steps.open_steps(name):
        return unknown[0] - 1 if unknown[0] > 0 else None
    harvest(lake, store, name, unknown)
    return latest


def unaccounted(lake: Lake, store: Store, name: str) -> list[int]:
    """The versions in a dataset's log that no receipt tells of."""
    earliest, latest = lake.log(name).bounds()
    return [] if earliest is None or latest is None else store.receipts.gaps(name, earliest, latest)


def harvest(lake: Lake, store: Store, name: str, versions: list[int]) -> list[Receipt]:
    """Index commits of a dataset that no receipt tells of."""
    receipts = [receipt_of(name, lake.log(name).commit(version)) for version in versions]
    for receipt in receipts:
        if receipt.kind == "foreign":
            store.findings.add(
                [
                    Finding(
                        dataset=name,
                        subject="foreign commit",
                        message=f"Somebody else wrote version {receipt.version} of {name}.",
                        cure=f"Its readers are stale. If it was a mistake: `lakewright rollback {name} "
                        f"--to {receipt.version - 1}`.",
                        found_at=utc_now(),
                    )
                ],
                run_id=None,
                now=utc_now(),
            )
    store.receipts.add(receipts)
    return receipts


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
