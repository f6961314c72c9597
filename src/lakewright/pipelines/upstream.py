"""Upstream: a target reads from another target's lake what it has not made itself.

Guarantee:
    Nothing is ever written there: no commit, no lock, no row of its store. What the other lake's logs tell is
    indexed in this target's own store, so plans and runs judge it as they judge everything else. A dataset is read
    from one lake at a time; when that changes, what was known of it goes and its readers are stale, since versions of
    two logs cannot be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from lakewright.lake.lake import Lake
from lakewright.lake.windows import load_window
from lakewright.model.identity import Identity
from lakewright.model.receipts import Counters, Receipt
from lakewright.model.slices import Slice
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.harvest import is_another, receipt_of, unaccounted
from lakewright.pipelines.settle import complete_receipt
from lakewright.pipelines.workshop import Workshop
from lakewright.store import OWN, Head, LiveSlice, Receipts, Store

__all__ = ["Upper", "as_if_unmade", "borrow", "claim", "index", "let_go", "take_over"]


@dataclass(frozen=True, slots=True)
class Upper:
    """Another target, and its lake to read from."""

    target: str
    lake: Lake


def borrow(graph: Graph, lake: Lake, uppers: Sequence[Upper], store: Store) -> dict[str, Upper]:
    """Let the lake read what it has not itself from the nearest other one; returns which from where."""
    known = store.origins.all()
    if not uppers and not known:
        return {}
    found = _lenders(graph, lake, uppers, {name for name, place in known.items() if place == OWN})
    for name in known.keys() | found.keys():
        place = found[name].lake.root if name in found else None
        if known.get(name) != OWN and known.get(name) != place:
            store.move([name], place)
    lake.borrow({name: upper.lake.resolve(name) for name, upper in found.items()})
    return found


def _lenders(graph: Graph, lake: Lake, uppers: Sequence[Upper], claimed: set[str]) -> dict[str, Upper]:
    found: dict[str, Upper] = {}
    steps = [(d.name, *d.outputs) for d in graph.datasets.values()]
    adopted = [(name,) for name in graph.adopted if name not in graph.owners]
    for names in [*steps, *adopted]:
        # The outputs of a step belong together: one of them here is enough for all of them to be ours.
        if any(name in claimed or lake.has(name) for name in names if lake.knows(name)):
            continue
        for upper in uppers:
            if upper.lake.knows(names[0]) and upper.lake.has(names[0]):
                found |= {name: upper for name in names if upper.lake.has(name)}
                break
    return found


def take_over(shop: Workshop, uppers: Sequence[Upper], names: Sequence[str]) -> tuple[dict[str, Upper], list[str]]:
    """At the beginning of a run: what it makes becomes this target's own, the rest is read where it lies.

    Returns what is read from where, and the claims to let go of at the end.
    """
    pipelines = {shop.graph[name].pipeline for name in names}
    mine = [name for name, owner in shop.graph.owners.items() if shop.graph[owner].pipeline in pipelines]
    if uppers and not _others_at_work(shop, pipelines):
        let_go(shop.lake, shop.store, mine)  # of a run that was killed; nobody else works on these pipelines now
    claimed = claim(shop.graph, shop.lake, uppers, shop.store, names)
    return borrow(shop.graph, shop.lake, uppers, shop.store), claimed


def _others_at_work(shop: Workshop, pipelines: Iterable[str]) -> bool:
    mine = {f"pipeline:{name}" for name in pipelines}
    held = shop.store.leases.held(shop.now())
    return any(one.alive and one.dataset in mine and one.owner_id != shop.owner_id for one in held)


def claim(graph: Graph, lake: Lake, uppers: Sequence[Upper], store: Store, names: Iterable[str]) -> list[str]:
    """Make datasets this target's own from now on, those that have no table here yet; returns which were not.

    A source is left where it is as long as somebody else takes it.
    """
    if not uppers:
        return []
    new: list[str] = []
    for name in names:
        dataset = graph[name]
        outputs = [name, *dataset.outputs]
        if (dataset.is_source and name in lake.borrowed) or any(lake.has(output) for output in outputs):
            continue
        new += outputs
    store.move([name for name in new if name in lake.borrowed], OWN)
    store.origins.set([name for name in new if name not in lake.borrowed], OWN)
    return new


def let_go(lake: Lake, store: Store, names: Iterable[str]) -> None:
    """End claims: what has a table here by now is ours without one, what has none may be read elsewhere again."""
    held = {name for name, place in store.origins.all().items() if place == OWN}
    busy = {output for step in store.steps.open_steps() for output in (step.dataset, *step.outputs)}
    store.origins.set([name for name in names if name in held and (lake.has(name) or name not in busy)], None)


def index(shop: Workshop, found: Mapping[str, Upper], names: Iterable[str]) -> None:
    """Bring into the store what the other logs hold, for everything that these datasets are made of."""
    above = shop.graph.closure(names, up=True)
    wanted = above | {one for name in above for given in shop.graph[name].inputs for one in given.datasets}
    order = [*shop.graph.order, *(name for name in found if name not in shop.graph.datasets)]
    for name in order:
        if name in found and (name in wanted or shop.graph.owners.get(name) in wanted):
            _index(shop, found[name], name)


def _index(shop: Workshop, upper: Upper, name: str) -> None:
    store, log = shop.store, upper.lake.delta_log(name)
    newest, (earliest, latest) = store.receipts.history(name, limit=1), log.bounds()
    if newest and earliest is not None and latest is not None and is_another(log, newest[0], (earliest, latest)):
        store.move([name], upper.lake.root)
    receipts: list[Receipt] = []
    restores: list[tuple[int, int]] = []
    arrivals = []
    for version in unaccounted(upper.lake, store, name):
        commit = log.commit(version)
        identity = Identity.from_json(commit.metadata)
        receipt = receipt_of(name, commit, counters=Counters(written=commit.rows))
        if identity is not None and identity.kind == "restore":
            restores.append((int(str(identity.details["restored_to"])), version))
        elif identity is not None and identity.kind == "data" and name in shop.graph.datasets:
            receipt = complete_receipt(receipt, shop.graph[name], Slice.parse(identity.slice_id), shop)
            if "arrival" in identity.details:
                arrivals.append(load_window(upper.lake, name, identity.details["arrival"], run_id=identity.run_id))
        receipts.append(receipt)
    if not receipts:
        return
    with store.transaction() as conn:
        if store.origins.of(name, conn) != upper.lake.root:
            return  # a run has claimed it meanwhile
        store.receipts.add(receipts, conn=conn)
        for target, version in restores:
            store.receipts.rolled_back(name, target, version, conn=conn)
        for arrival in arrivals:
            store.arrivals.bring_back(arrival, conn=conn)


def as_if_unmade(store: Store, names: Iterable[str]) -> Store:
    """The store as it will be once a run has claimed some datasets, for a plan that claims nothing."""
    seen = copy(store)
    seen.receipts = _AsIfUnmade(store.receipts, names)
    return seen


class _AsIfUnmade(Receipts):
    """All receipts but those of some datasets."""

    def __init__(self, receipts: Receipts, names: Iterable[str]) -> None:
        super().__init__(receipts._engine)
        self._names = frozenset(names)

    def heads(self, names: Sequence[str] | None = None) -> dict[str, Head]:
        return {name: head for name, head in super().heads(names).items() if name not in self._names}

    def live_slices(self, dataset: str) -> dict[str, LiveSlice]:
        return {} if dataset in self._names else super().live_slices(dataset)

    def missing(self, dataset: str, input: str, grid_width: int) -> list[str]:
        # No dataset has an empty name: nothing of it was ever made.
        return super().missing("" if dataset in self._names else dataset, input, grid_width)
