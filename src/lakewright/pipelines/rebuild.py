"""Store rebuild: make the index anew from the logs, and say what they cannot tell.

The logs hold receipts, arrivals, windows and numbers. They do not hold leases, steps under way, held slices, and
the counters that only rode on a write: those are shown as unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lakewright.lake.corrections import corrections_of
from lakewright.lake.lake import Lake
from lakewright.lake.windows import kept_windows, load_window
from lakewright.model.identity import Identity
from lakewright.model.receipts import Counters, Receipt
from lakewright.model.slices import Slice
from lakewright.model.streams import Generation
from lakewright.pipelines.corrections import settle_corrections
from lakewright.pipelines.harvest import receipt_of
from lakewright.pipelines.settle import complete_receipt
from lakewright.pipelines.told_again import tell_unusable_again, withdraw_what_was_rewound
from lakewright.pipelines.workshop import Workshop
from lakewright.store import Store

__all__ = ["RebuildSummary", "rebuild_store"]

_HEADROOM = 1_000_000
"""Numbers go on so far above the log's highest that no attempt still under way can reach them."""


@dataclass
class RebuildSummary:
    """What came back, and what did not."""

    datasets: int = 0
    receipts: int = 0
    arrivals: int = 0
    unknown: list[str] = field(default_factory=list)


def rebuild_store(shop: Workshop) -> RebuildSummary:
    """Reads every log of the lake and fills the store anew.

    The lake itself is not changed, but for dead letters that somebody had died before he told them or took them back.
    """
    summary = RebuildSummary(
        unknown=[
            "rows read, duplicates and late rows of slices made before (shown as ?)",
            "leases and steps under way",
            "runs and their errors",
            "held slices: late rows that policy left out are judged again by the next run",
        ]
    )
    if any(dataset.choice is not None for dataset in shop.graph.datasets.values()):
        summary.unknown.append("why branches were skipped: the next run decides as before, and records it again")
    adopted = (name for name in shop.graph.adopted - shop.graph.owners.keys() if shop.lake.knows(name))
    names = [*shop.graph.owners, *sorted(adopted)]
    for name in names:
        shop.store.markers.forget(name)  # a live receipt means ready
        if name in shop.lake.borrowed:
            # The next run indexes what it reads from another target.
            shop.store.receipts.forget(name)
            shop.store.arrivals.forget(name)
            continue
        if not shop.lake.log(name).exists():
            if name in shop.lake.outside:
                shop.store.receipts.forget(name)  # it was moved: what its old place held is not here
            continue
        summary.datasets += 1
        shop.store.receipts.forget(name)
        summary.receipts += _receipts(shop, name)
        if name in shop.graph.datasets and shop.graph[name].judged_in_order and not shop.store.receipts.is_whole(name):
            summary.unknown.append(
                f"{name}: the watermarks of its earlier batches, since its log was cleaned: a repeat of one of them is "
                "judged by none, so that nothing of it is late"
            )
        if name in shop.graph.datasets and shop.graph[name].is_stream:
            shop.store.streams.forget(name)
            _generations(shop, name)
        elif name in shop.graph.datasets and shop.graph[name].is_source:
            shop.store.arrivals.forget(name)
            _arrivals(shop.lake, shop.store, name, summary)
        shop.store.receipts.forget(corrections_of(name))
        settle_corrections(shop, name)
        if name in shop.graph.datasets:
            # From here on receipts say that unusable rows are told: nobody would look again.
            number = shop.store.leases.draw(name)
            withdraw_what_was_rewound(shop, shop.graph[name], number)
            tell_unusable_again(shop, shop.graph[name], number)
    for name in names:
        first = shop.store.receipts.get(name, 0)
        if first is not None and name not in shop.lake.borrowed:
            # Whoever read it before it had this table has read another one, perhaps from another target.
            shop.store.receipts.unsettle(name, before=first.committed_at)
    return summary


def _receipts(shop: Workshop, name: str) -> int:
    highest, found = 0, []
    restores: list[tuple[int, int]] = []
    for commit in shop.lake.log(name).commits():
        identity = Identity.from_json(commit.metadata)
        receipt = receipt_of(name, commit, counters=Counters(written=commit.rows))
        if identity is not None:
            highest = max(highest, identity.number)
            if identity.kind == "restore":
                restores.append((int(str(identity.details["restored_to"])), commit.version))
            elif identity.kind == "data" and name in shop.graph.datasets:
                # Histories know since when they differ from the arrival that they followed.
                receipt = complete_receipt(receipt, shop.graph[name], Slice.parse(identity.slice_id), shop)
        found.append(receipt)
    with shop.store.transaction() as conn:
        shop.store.receipts.add(found, conn=conn)
        for target, version in restores:
            shop.store.receipts.rolled_back(name, target, version, conn=conn)
        shop.store.leases.raise_numbers(name, highest + _HEADROOM, conn=conn)
    return len(found)


def _arrivals(lake: Lake, store: Store, name: str, summary: RebuildSummary) -> None:
    """What was taken: as the commits tell and, of those that the log has forgotten, the windows kept beside it."""
    told = []
    for receipt in _data_receipts(store, name):
        identity = Identity.from_json(lake.log(name).commit(receipt.version).metadata)
        if identity is not None and "arrival" in identity.details:
            told.append(load_window(lake, name, identity.details["arrival"], run_id=identity.run_id))
    # Of a whole log, what it does not tell was never committed.
    first = min((arrival.number for arrival in told), default=None)
    kept = [] if store.receipts.is_whole(name) else list(kept_windows(lake, name, below=first))
    for arrival in sorted([*kept, *told], key=lambda arrival: arrival.number):  # in order: later ones supersede
        # Before one that was committed all were. Whether the very last one was, nobody tells: to repeat it is safe.
        store.arrivals.bring_back(arrival, committed=bool(told) or arrival is not kept[-1])
    summary.arrivals += len(kept) + len(told)
    missing = (kept[-1].number if first is None and kept else (first or 1) - 1) - len(kept)
    if missing and any(arrival.files for arrival in (*told, *kept)):
        summary.unknown.append(
            f"{name}: which files {missing} of its earlier arrivals held, since its log was cleaned: what of them "
            "still lies in the folder would be taken again"
        )


def _generations(shop: Workshop, name: str) -> None:
    """The generations of a stream's checkpoint; how far the newest is, its next run tells."""
    begun: dict[int, Generation] = {}
    for commit in shop.lake.log(name).commits():
        identity = Identity.from_json(commit.metadata)
        told = {} if identity is None else identity.details
        number = told.get("rewind", told.get("generation"))
        if identity is None or not isinstance(number, int) or identity.kind == "fence":
            continue
        # Once it has read, its checkpoint tells where it goes on; of which topic, its commits tell.
        start = told.get("origin", told.get("start"))
        first = Slice.parse(identity.slice_id).number if identity.kind == "rewind" else None
        known = begun.get(number, Generation(name, number, commit.committed_at, None, first, identity.run_id))
        begun[number] = replace(known, start=start) if isinstance(start, dict) else known
    for one in begun.values():
        shop.store.streams.begin(
            name, number=one.number, start=one.start, first=one.first, run_id=one.run_id, now=one.recorded_at
        )


def _data_receipts(store: Store, name: str) -> list[Receipt]:
    found = {r.slice_id: r for r in store.receipts.since(name, -1, 2**62, kinds=("data",))}
    return sorted(found.values(), key=lambda r: Slice.parse(r.slice_id))
