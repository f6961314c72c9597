"""Harvest: bring what the logs hold and the store does not know into the store as receipts.

Commits of ours whose step record is open are left to recovery; commits of others become *foreign* receipts, so
that readers notice them, and a finding tells people.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from lakewright.errors import StoreError, TargetError
from lakewright.lake.lake import Lake
from lakewright.lake.log import DeltaLog, own_commits
from lakewright.model.findings import Finding
from lakewright.model.identity import Identity
from lakewright.model.receipts import Commit, Counters, Receipt, ReceiptKind
from lakewright.model.slices import WHOLE
from lakewright.model.times import utc_now
from lakewright.store import Indexed, Store

__all__ = [
    "FOREIGN",
    "harvest",
    "is_another",
    "notice",
    "pin",
    "receipt_of",
    "refuse_forgotten",
    "refuse_lost_histories",
    "refuse_lost_history",
    "restored_version",
    "unaccounted",
]

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
    refuse_lost_history(store, name, earliest)
    unknown = store.receipts.gaps(name, earliest, latest)
    if not unknown:
        return latest
    # Micro-batches are indexed by whoever runs the stream next, who also tells what is wrong in them.
    if store.steps.open_steps(name) or _is_micro_batch(lake.log(name).commit(unknown[0])):
        return unknown[0] - 1 if unknown[0] > 0 else None
    harvest(lake, store, name, unknown)
    return latest


def refuse_lost_history(store: Store, name: str, earliest: int) -> None:
    """Refuse a log that was cut off before its commits were indexed: which slices they touched, nobody knows.

    What was indexed since does not hide it: only a rebuild begins anew.
    """
    last = store.receipts.last_version(name, below=earliest) if earliest else None
    if last is not None and last < earliest - 1:
        raise TargetError(
            f"{name}: its versions {last + 1} to {earliest - 1} are gone from the log, and nobody had looked at them: "
            "which slices they changed is not known. Nothing was made.",
            hint="`lakewright store rebuild` begins again with what is left, and the next run makes anew what nothing "
            "tells of. A longer `history` keeps the log for longer.",
        )


def _is_micro_batch(commit: Commit) -> bool:
    identity = Identity.from_json(commit.metadata)
    return identity is not None and "batch" in identity.details


def refuse_forgotten(lake: Lake, store: Store, names: Iterable[str]) -> None:
    """Refuse to decide by a store that knows nothing of tables that are there: it was lost, or another one is named."""
    if lake.local is None or store.receipts.heads() or store.runs.latest(limit=1):
        return
    for name in names:
        ours = None if name in lake.outside or name in lake.borrowed else next(own_commits(lake.delta_log(name)), None)
        if ours is not None:
            raise StoreError(
                f"The store is empty, but the lake holds {name} with commits of this project: by the store nothing was "
                "ever made, and late rows would not be noticed. Nothing was started.",
                hint="`lakewright store rebuild` reads the logs; or correct the store that the target names.",
            )


def unaccounted(lake: Lake, store: Store, name: str) -> list[int]:
    """The versions in a dataset's log that no receipt tells of."""
    earliest, latest = lake.log(name).bounds()
    return [] if earliest is None or latest is None else store.receipts.gaps(name, earliest, latest)


def harvest(lake: Lake, store: Store, name: str, versions: Sequence[int]) -> list[Receipt]:
    """Index commits of a dataset that no receipt tells of; what a restore took away counts no longer.

    Its markers stay as they are: somebody may be making a slice just now.
    """
    commits = [lake.log(name).commit(version) for version in versions]
    receipts = [receipt_of(name, commit) for commit in commits]
    if lake.is_declared(name):  # whoever keeps a table that is only adopted may write to it
        told = [_finding(name, receipt) for receipt in receipts if receipt.kind == "foreign"]
        store.findings.add(told, run_id=None, now=utc_now())
    with store.transaction() as conn:
        store.receipts.add(receipts, conn=conn)
        for commit, receipt in zip(commits, receipts, strict=True):
            if receipt.kind == "restore":
                store.receipts.rolled_back(name, restored_version(commit), commit.version, conn=conn)
    return receipts


def restored_version(commit: Commit) -> int:
    """The version that a restore of ours went back to."""
    identity = Identity.from_json(commit.metadata)
    assert identity is not None
    return int(str(identity.details["restored_to"]))


def refuse_lost_histories(lake: Lake, store: Store, names: Iterable[str]) -> None:
    """The same for everything that is decided about: what others have changed unseen would pass for nothing to do.

    So would a table that was made anew, as long as its log is no longer than the old one was.
    """
    newest = store.receipts.last_indexed()
    for name in names:
        if name in lake.outside or name in lake.borrowed:
            continue
        earliest, latest = lake.log(name).bounds()
        if earliest is None or latest is None:
            continue
        refuse_lost_history(store, name, earliest)
        known = newest.get(name)
        if known is None or (lake.local is None and latest == known.version):
            continue  # elsewhere a look into the log is a Spark job: only where there is something new in it
        if is_another(lake.delta_log(name), known, (earliest, latest)):
            raise TargetError(
                f"{name}: its table at {lake.resolve(name)} is not the one of which version {known.version} was "
                "indexed: it was dropped and made anew. What was made of the old one would pass for up to date. "
                "Nothing was made.",
                hint="`lakewright store rebuild` begins again with what it holds now, and the next run makes anew what "
                "was made of the old one. Or bring the old table back.",
            )


def is_another(log: DeltaLog, known: Receipt | Indexed, bounds: tuple[int, int]) -> bool:
    """Whether a log is not the one that was indexed up to here: the table was made anew, or cleaned beyond this."""
    earliest, latest = bounds
    if not earliest - 1 <= known.version <= latest:
        return True
    return known.version >= earliest and known.committed_at != log.committed_at(known.version)


def notice(lake: Lake, store: Store, names: Iterable[str]) -> None:
    """Index what others have committed, and what changes no rows; all else of ours is left to recovery, and to ``pin``.

    Nobody pins a dataset that nothing reads: its fences and columns would pass for commits that nobody had looked at.
    """
    for name in names:
        if name in lake.outside:
            continue  # nobody else writes into a ledger, and nothing is made of what lies there
        unknown = unaccounted(lake, store, name)
        if unknown and not store.steps.open_steps(name):
            log = lake.log(name)
            harvest(lake, store, name, [version for version in unknown if _counts_now(log.commit(version))])


def _counts_now(commit: Commit) -> bool:
    identity = Identity.from_json(commit.metadata)
    return identity is None or (identity.kind in ("fence", "schema", "maintenance") and not commit.data_change)


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
    if identity.proof is not None and plain.counters.proof is None:
        plain = replace(plain, counters=replace(plain.counters, proof=identity.proof))
    if identity.completeness is not None:
        plain = replace(plain, counters=replace(plain.counters, completeness=identity.completeness))
    if identity.kind == "data" and identity.part == "main" and identity.watermark:
        plain = replace(plain, counters=replace(plain.counters, watermark=identity.watermark))
    return replace(
        plain,
        slice_id=identity.slice_id,
        number=identity.number,
        run_id=identity.run_id,
        attempt=identity.attempt,
        inputs=identity.inputs,
        code=identity.code,
        valid_from=_valid_from(identity) if commit.data_change else None,
    )


def _valid_from(identity: Identity) -> datetime | None:
    """Since when a history reads differently, where its writer knew."""
    told = identity.details.get("valid_from")
    return datetime.fromisoformat(told) if isinstance(told, str) else None


def _kind(commit: Commit, identity: Identity | None) -> ReceiptKind:
    if commit.operation in _MAINTENANCE:
        return "maintenance"
    if identity is not None:
        return identity.kind
    if commit.data_change:
        return "foreign"
    return "schema" if commit.schema_change else "maintenance"
