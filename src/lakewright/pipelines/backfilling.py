"""What a backfill would do to a dataset, and where it could not give what the slices held when they were first made.

Answered from declarations, receipts and logs, and by destinations that freeze old slices: no Spark starts and no data
is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from lakewright.errors import ConfigurationError, LakewrightError
from lakewright.model.outside import Freezes
from lakewright.model.references import Latest, Pinned, Whole
from lakewright.model.slices import Slice
from lakewright.model.times import parse_duration
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.restoring import Merges, goes_back, merges_of
from lakewright.pipelines.states import DatasetPlan, SliceState
from lakewright.pipelines.take import source_context
from lakewright.pipelines.workshop import Workshop

__all__ = ["Effect", "backfill_cautions", "backfill_limits", "effect_of", "going_back_notes"]

Effect = Literal["overwrite", "merge", "restore", "send again", "new version", "take again", "rewind"]
"""``merge`` applies the changes once more on top, ``restore`` takes the table back first; a source is taken again only
where somebody asks for it, and a stream is rewound by a command of its own."""

_RETENTION = timedelta(days=7)
"""How long Delta gives back a version of a table that says nothing else."""


def effect_of(dataset: Dataset) -> Effect:
    """What making a slice again does to what is there."""
    if dataset.is_stream:
        return "rewind"
    if dataset.is_source:
        return "take again"
    if getattr(dataset.into, "resends", False):
        return "send again"
    if getattr(dataset.into, "keeps_versions", False):
        return "new version"
    if goes_back(dataset.writer):
        return "restore"
    return "overwrite" if dataset.writer is None or dataset.writer.replaces_slice else "merge"


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A dataset and those of its slices that were made before and are to be made again."""

    dataset: Dataset
    states: Sequence[SliceState]

    def slices(self, some: Sequence[str]) -> str:
        first = some[0] if len(some) == 1 else f"{some[0]} and {len(some) - 1} more"
        return f"{self.dataset.name} {first}"


def backfill_cautions(shop: Workshop, plans: Sequence[DatasetPlan], now: datetime) -> list[str]:
    """Where what is made again may differ from what was made before although nothing was corrected, in words."""
    told = [line for plan in plans if plan.dataset.is_source for line in _by_source(shop, plan)]
    for repeat in _repeats(shop, plans):
        told += [*_by_reference(shop, repeat), *_by_code(shop, repeat), *_by_pin(shop, repeat, now)]
        told += [*_by_restore(shop, repeat, now), *_by_merge(repeat), *_by_freezing(shop, repeat)]
    return told


def backfill_limits(shop: Workshop, plans: Sequence[DatasetPlan], now: datetime) -> Mapping[str, tuple[str, ...]]:
    """Where a backfill of what was made could not be exact, by dataset: told before anybody asks for one.

    What other code would make is outdated, and a merge says so by its name: neither is told here once more.
    """
    found = {}
    for plan in plans:
        dataset = plan.dataset
        if dataset.is_stream or dataset.name in shop.lake.borrowed:
            continue
        slices = sorted(map(Slice.parse, shop.store.receipts.live_slices(dataset.name)))
        if not slices:
            continue
        if dataset.is_source:
            lines = _lost_window(shop, dataset, slices[0])
        else:
            repeat = _Repeat(dataset, [SliceState(one, "again", "") for one in slices])
            lines = [*_by_reference(shop, repeat), *_lost_pin(shop, repeat, now), *_lost_way_back(shop, repeat, now)]
            lines += _by_freezing(shop, repeat)
        if lines:
            found[dataset.name] = tuple(line.removeprefix(f"{dataset.name} ") for line in lines)
    return found


def going_back_notes(shop: Workshop, plans: Sequence[DatasetPlan], now: datetime) -> list[str]:
    """Which tables a run would take back before it merges, and to where."""
    return [line for repeat in _repeats(shop, plans) for line in _by_restore(shop, repeat, now)]


def _repeats(shop: Workshop, plans: Sequence[DatasetPlan]) -> Iterator[_Repeat]:
    for plan in plans:
        if plan.dataset.is_source or plan.dataset.is_stream or plan.dataset.name in shop.lake.borrowed:
            continue
        live = shop.store.receipts.live_slices(plan.dataset.name)
        if again := [state for state in plan.to_make if state.slice.id in live]:
            yield _Repeat(plan.dataset, again)


def _by_source(shop: Workshop, plan: DatasetPlan) -> list[str]:
    """Recorded windows that were to be read again, and are no longer held as they were."""
    dataset = plan.dataset
    if dataset.source is None or dataset.is_stream or not plan.to_make:
        return []
    context = source_context(shop, dataset)
    told = []
    for state in plan.to_make:
        arrival = shop.store.arrivals.get(dataset.name, state.slice.number) if state.slice.kind == "arrival" else None
        try:
            gone = () if arrival is None else dataset.source.gone(arrival, context)
        except LakewrightError as error:
            return [f"{dataset.name}: whether its arrivals can be read again is not known: {error.message}"]
        if gone:
            told.append(
                f"{dataset.name} {state.slice.id} cannot be read as it was: {gone[0]}. Without --sources a "
                "backfill begins at what was taken."
            )
    return told


def _lost_window(shop: Workshop, dataset: Dataset, oldest: Slice) -> list[str]:
    """Whether the source has begun to forget what was recorded: what came first goes first."""
    arrival = shop.store.arrivals.get(dataset.name, oldest.number) if oldest.kind == "arrival" else None
    if dataset.source is None or arrival is None or not dataset.source.repeatable:
        return []
    try:
        gone = dataset.source.gone(arrival, source_context(shop, dataset))
    except LakewrightError:  # the plan has said so where it looked for what is new
        return []
    return (
        [f"{oldest.id} cannot be read as it was: {gone[0]}. A backfill with --sources cannot have it."] if gone else []
    )


def _by_reference(shop: Workshop, repeat: _Repeat) -> list[str]:
    """Inputs that are read as they are now, and were something else then."""
    live, told = shop.store.receipts.live_slices(repeat.dataset.name), []
    for given in repeat.dataset.inputs:
        reference = shop.graph.reference(repeat.dataset, given)
        if not isinstance(reference, Latest | Whole):
            continue
        newest = shop.store.receipts.last_change(given.dataset)
        changed = [
            state.slice.id
            for state in repeat.states
            if newest is not None and newest > live[state.slice.id].inputs.get(given.dataset, newest)
        ]
        if changed:
            told.append(
                f"{repeat.slices(changed)}: {given.dataset} is read as it is now ({type(reference).__name__}()) and "
                "has changed since: not the values of then. AsOf(...) or Pinned() keeps them."
            )
    return told


def _by_code(shop: Workshop, repeat: _Repeat) -> list[str]:
    live, now = shop.store.receipts.live_slices(repeat.dataset.name), shop.codes.get(repeat.dataset.name)
    changed = [s.slice.id for s in repeat.states if live[s.slice.id].code not in (now, None)]
    if not changed:
        return []
    return [f"{repeat.slices(changed)}: made by older code or options; the code of now makes them again."]


def _by_restore(shop: Workshop, repeat: _Repeat, now: datetime) -> list[str]:
    """Where a table goes back to before it is merged into, and whether it still can."""
    if not goes_back(repeat.dataset.writer):
        return []
    name, first = repeat.dataset.name, repeat.states[0].slice
    known = merges_of(shop.store, name)
    decision = known.decide(first)
    if decision.version is None:
        return [f"{name}: is emptied before {first.id} is merged: no earlier slice is known."]
    if (why := _no_way_back(shop, name, known, decision.version, now)) is not None:
        return [f"{name} {first.id}: version {decision.version}, which it would go back to, {why}"]
    return [
        f"{name}: goes back to version {decision.version} before {first.id} is merged, then on to the newest slice."
    ]


def _lost_way_back(shop: Workshop, repeat: _Repeat, now: datetime) -> list[str]:
    """The slices before which a table can no longer go back. The very first one empties it, and always can."""
    if not goes_back(repeat.dataset.writer):
        return []
    name, refused, why = repeat.dataset.name, list[str](), ""
    known = merges_of(shop.store, name)
    for state in repeat.states:
        version = known.decide(state.slice).version
        if version is None:
            continue
        found = _no_way_back(shop, name, known, version, now)
        if found is None:
            break
        refused.append(state.slice.id)
        why = why or f"version {version}, which the table would go back to, {found}"
    return [f"{repeat.slices(refused)}: {why}"] if refused else []


def _no_way_back(shop: Workshop, name: str, known: Merges, version: int, now: datetime) -> str | None:
    """Why a table cannot go back to a version; None where it can."""
    if (erased := known.erased_after(version)) is not None:
        return (
            f"is from before rows were erased (version {erased}): it will be refused. Send a corrected change in a "
            "new arrival instead."
        )
    if name in shop.lake.outside:  # it is rebuilt from its history, which keeps every change
        return None
    if (age := _too_old(shop, name, version, now)) is not None:
        return (
            f"is {age} old, and the table keeps versions for less: it will be refused. `history` keeps them for "
            "longer, from now on."
        )
    if lost := shop.lake.lost_by_log(name, version):
        return f"is no longer whole: {len(lost)} of its files are gone. It will be refused."
    return None


def _by_pin(shop: Workshop, repeat: _Repeat, now: datetime) -> list[str]:
    """Pinned inputs whose version Delta no longer gives back."""
    name = repeat.dataset.name
    return [
        f"{name} {slice_id}: version {then} of {of} {why}: it will be refused."
        for of, versions in _pinned(shop, repeat)
        for slice_id, then in versions.items()
        if (why := _unreadable(shop, of, then, now)) is not None
    ]


def _lost_pin(shop: Workshop, repeat: _Repeat, now: datetime) -> list[str]:
    """The same of the oldest version alone, which goes first."""
    told = []
    for of, versions in _pinned(shop, repeat):
        then = min(versions.values(), default=None)
        if then is not None and (why := _unreadable(shop, of, then, now)) is not None:
            slices = [slice_id for slice_id, version in versions.items() if version == then]
            told.append(f"{repeat.slices(slices)}: version {then} of {of} {why}: it will be refused.")
    return told


def _pinned(shop: Workshop, repeat: _Repeat) -> Iterator[tuple[str, dict[str, int]]]:
    """Each pinned input, and which version of it each slice was first made of."""
    for given in repeat.dataset.inputs:
        if not isinstance(shop.graph.reference(repeat.dataset, given), Pinned):
            continue
        firsts = (
            (state.slice.id, shop.store.receipts.first(repeat.dataset.name, state.slice.id)) for state in repeat.states
        )
        told = {slice_id: None if first is None else first.inputs.get(given.dataset) for slice_id, first in firsts}
        yield given.dataset, {slice_id: version for slice_id, version in told.items() if version is not None}


def _unreadable(shop: Workshop, name: str, version: int, now: datetime) -> str | None:
    if (age := _too_old(shop, name, version, now)) is not None:
        return f"is {age} old and can no longer be read"
    lost = shop.lake.lost_by_log(name, version)
    return f"can no longer be read: {len(lost)} of its files are gone" if lost else None


def _by_freezing(shop: Workshop, repeat: _Repeat) -> list[str]:
    """Slices that their destination holds read-only."""
    name, into = repeat.dataset.name, repeat.dataset.into
    if not isinstance(into, Freezes):
        return []
    try:
        frozen = into.frozen(name, [state.slice for state in repeat.states], connections=shop.connections)
    except LakewrightError as error:
        return [f"{name}: whether its slices are frozen is not known: {error.message}"]
    return (
        [f"{repeat.slices(frozen)}: frozen in a read-only table of {into.shown}: it will be refused."] if frozen else []
    )


def _by_merge(repeat: _Repeat) -> list[str]:
    if effect_of(repeat.dataset) != "merge":
        return []
    return [
        f"{repeat.dataset.name}: its changes are merged again on top of what is there; what a wrong slice added stays. "
        "StatefulMerger restores the table first."
    ]


def _too_old(shop: Workshop, name: str, version: int, now: datetime) -> str | None:
    """How old a version is, where that is more than the table gives back; None where it is not, or nobody knows."""
    newest = shop.store.receipts.last_version(name)
    receipt = shop.store.receipts.get(name, version)
    if receipt is None or version == newest:
        return None
    age = now - receipt.committed_at
    return f"{age.days} days" if age > _kept(shop, name) else None


def _kept(shop: Workshop, name: str) -> timedelta:
    told = shop.lake.properties(name).get("delta.deletedFileRetentionDuration", "")
    try:
        return parse_duration(told.lower().removeprefix("interval").strip())
    except ConfigurationError:
        return _RETENTION
