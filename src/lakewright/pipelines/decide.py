"""Deciding: for every slice of a dataset, is it fresh, and if not, why, and is it made now?

The answer comes from receipts alone, so it is the same for ``plan``, for ``run`` and after ``store rebuild``, and
costs a few indexed queries per dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeAlias

from lakewright.model.cell_spans import CellSpan
from lakewright.model.policies import Capture, Fail, Repair, Revisit
from lakewright.model.receipts import Receipt
from lakewright.model.references import AsOf, Lookback, SameSlice
from lakewright.model.slices import ANY_CELL, WHOLE, Slice
from lakewright.model.times import cells_between, grid_of, parse_duration
from lakewright.pipelines.cell_rows import rows_within
from lakewright.pipelines.chains import behind_earlier, chained, merges_older, of_kind
from lakewright.pipelines.choosing import Chooser, Schemas
from lakewright.pipelines.closing import Closing, cap_overdue
from lakewright.pipelines.corrected import Corrected
from lakewright.pipelines.definitions import Dataset, Slicing
from lakewright.pipelines.fan_in import FanIns
from lakewright.pipelines.freezing import FrozenSlices, nothing_frozen
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.other_grid import OtherGrids
from lakewright.pipelines.revisiting import in_turns, is_before, to_revisit
from lakewright.pipelines.session_chain import behind_pending
from lakewright.pipelines.session_slices import running_out
from lakewright.pipelines.states import DatasetPlan, SliceState, Status, Wish
from lakewright.pipelines.taken_back import TakenBack, keeps_apart, taken_back
from lakewright.store import ELSEWHERE, Head, LiveSlice, Store

__all__ = ["DatasetPlan", "Decider", "SliceState", "Status", "Wish"]

Heads: TypeAlias = Mapping[str, Head]
_NEWEST = 2**62
_FROZEN = "its destination holds it read-only, so nobody takes them in"


class Decider:
    """Answers for one graph against one store."""

    def __init__(
        self,
        graph: Graph,
        store: Store,
        codes: Mapping[str, str],
        schemas: Schemas | None = None,
        frozen: FrozenSlices = nothing_frozen,
    ) -> None:
        self._graph = graph
        self._store = store
        self._codes = codes
        self._frozen = frozen
        self._closing = Closing(graph, store)
        self._other_grids = OtherGrids(graph, store)
        self._fan_ins = FanIns(graph, store, self._closing)
        self._chooser = Chooser(graph, store, schemas)
        self._corrected = Corrected(graph, store, self._closing)

    def decide(self, name: str, wish: Wish) -> DatasetPlan:
        """The slices of a dataset that are not fresh, in the order in which they are made."""
        names = [name, *(given.dataset for given in self._graph[name].inputs)]
        names += self._corrected.names(self._graph[name])
        return self._decide(name, wish, self._store.receipts.heads(names))

    def decide_all(self, names: Sequence[str], wish: Wish) -> list[DatasetPlan]:
        """The same for many datasets, with what concerns all of them asked once."""
        heads = self._store.receipts.heads()
        return [self._decide(name, wish, heads) for name in names]

    def _decide(self, name: str, wish: Wish, heads: Heads) -> DatasetPlan:
        dataset, slicing = self._graph[name], self._graph.slicing[name]
        live = self._store.receipts.live_slices(name) if name in heads else {}
        if dataset.is_stream:  # it goes on where its checkpoint says; what is there to read, its source tells
            return DatasetPlan(dataset, slicing, (), len(live))
        if (refused := self._other_grids.refused(dataset, live, wish)) is not None:
            return DatasetPlan(dataset, slicing, (refused,), len(live))
        arrived = {} if slicing.follows is None else self._store.receipts.live_slices(slicing.follows)
        back = self._taken_back(dataset, slicing, live, arrived, heads)
        live = live if back is None else back.before(live)
        if dataset.is_source:
            states = self._source(dataset)
        elif slicing.kind == "event":
            states = self._event(dataset, live, wish, heads)
        elif slicing.kind == "arrival":
            states = self._arrival(dataset, slicing, live, arrived, heads)
        else:
            states = self._whole(dataset, live, heads)
        if not dataset.is_source:
            settled = partial(self._settled, name, heads=heads)
            for state in self._corrected.stale(dataset, live, wish.run_time, heads, settled):
                if states.get(state.slice.id, _HELD).status in ("held", "late"):
                    states[state.slice.id] = state
            states = self._spare_frozen(dataset, states)
        states = self._wished(dataset, slicing, states, live, wish)
        states = self._outdated(dataset, states, live, wish)
        if dataset.sessions is not None:
            states = behind_pending(self._store, dataset, states, live)
        elif dataset.chained:
            states = behind_earlier(dataset, states, live, self._restored_at(name, heads))
        if dataset.chained or getattr(dataset.writer, "restores", False):
            states = chained(states, live, if_changed=dataset.sessions is not None)
        elif merges_older(dataset):
            own = of_kind(live, slicing.kind)
            states = chained(behind_earlier(dataset, states, own, self._restored_at(name, heads)), own)
        if dataset.choice is not None:
            states = self._chooser.judged(dataset, states, live, wish)
        if dataset.fan_in is not None:
            states = self._fan_ins.judged(dataset, states)
        states = in_turns(dataset, cap_overdue(states), self._current(dataset, wish))
        if back is not None:
            states = back.first_of_all(states, arrived)
        if getattr(dataset.into, "resends", False):
            states = {
                slice_id: replace(state, reason=f"{state.reason}; sends again") if slice_id in live else state
                for slice_id, state in states.items()
            }
        return DatasetPlan(dataset, slicing, tuple(sorted(states.values(), key=lambda s: s.slice)), len(live))

    def _source(self, dataset: Dataset) -> dict[str, SliceState]:
        return {
            f"arrival-{a.number}": SliceState(
                Slice.parse(f"arrival-{a.number}"),
                "due",
                f"arrival {a.number} was recorded and not yet committed",
            )
            for a in self._store.arrivals.pending(dataset.name)
        }

    def _event(
        self, dataset: Dataset, live: Mapping[str, LiveSlice], wish: Wish, heads: Heads
    ) -> dict[str, SliceState]:
        if dataset.fan_in is not None:
            states = self._fan_ins.never_made(dataset, live, wish, heads)
        else:
            states = self._closing.never_made(dataset, live, wish.run_time, heads)
        for slice_id, made in live.items():
            if elsewhere := [name for name, version in made.inputs.items() if version == ELSEWHERE]:
                reason = f"{elsewhere[0]} was read from another lake when it was made"
                states[slice_id] = SliceState(Slice.parse(slice_id), "stale", reason)
        for given in dataset.inputs:
            if given.dataset not in heads:
                continue
            reference = self._graph.reference(dataset, given)
            if isinstance(reference, SameSlice | Lookback):
                reach = parse_duration(reference.reach) if isinstance(reference, Lookback) else timedelta(0)
                stale = self._stale(dataset, given.dataset, reach, live, heads)
                self._add_late(states, dataset, given.dataset, stale, wish)
            elif isinstance(reference, AsOf):
                stale = self._stale_as_of(dataset, given.dataset, live, heads)
                self._add_late(states, dataset, given.dataset, stale, wish)
        for state in self._fan_ins.gained(dataset, live) if dataset.fan_in is not None else ():
            states.setdefault(state.slice.id, state)
        closing, run_time = self._closing, wish.run_time
        states |= running_out(dataset, states, live, run_time, heads, store=self._store, closing=closing)
        current = self._current(dataset, wish)
        if isinstance(dataset.late, Revisit) and current is not None and wish.backfill is None and not wish.again:
            for slice_id, state in to_revisit(self._store, dataset, dataset.late, current, live).items():
                states.setdefault(slice_id, state)
        return states

    def _current(self, dataset: Dataset, wish: Wish) -> str | None:
        """The newest slice that is closed, where the policy counts from it."""
        if not isinstance(dataset.late, Revisit) or dataset.is_stream or dataset.is_source:
            return None
        horizon = self._closing.horizon(dataset, wish.run_time)
        if horizon.reached <= dataset.start:
            return None
        before, last = horizon.newest(dataset.grid)
        return last if horizon.still_open(last) is None else before

    def _stale(
        self, dataset: Dataset, input_name: str, reach: timedelta, live: Mapping[str, LiveSlice], heads: Heads
    ) -> Iterable[tuple[str, str, int]]:
        if not live:
            return
        for slice_id, _made, then, now in self._closing.stale(dataset.name, dataset.grid, input_name):
            yield slice_id, self._why(input_name, slice_id, then), now
        if not reach:
            return
        cells = self._store.receipts.cells(input_name)
        grids = sorted({grid_of(cell) for cell in cells if cell is not None and cell != ANY_CELL})
        settled, restored_at = self._settled(dataset.name, input_name, heads), self._restored_at(dataset.name, heads)
        for slice_id, made in live.items():
            span, then = Slice.parse(slice_id).interval, made.inputs.get(input_name, -1)
            then = max(then, settled) if made.version < restored_at else then
            for cell in (one for grid in grids for one in cells_between(span.start - reach, span.start, grid)):
                head = cells.get(cell)
                if head is not None and head.version > then:
                    yield slice_id, f"{input_name} changed in {cell}, within its look-back", head.version
                    break

    def _why(self, input_name: str, slice_id: str, then: int) -> str:
        span = Slice.parse(slice_id).interval
        cells = CellSpan.of(span, self._graph.cell_grids(input_name) or ("day",))
        net = rows_within(self._store, input_name, cells, upto=_NEWEST, after=then)
        if net is None or net <= 0:
            return f"{input_name} was changed since version {then}"
        rows = "1 more row" if net == 1 else f"{net:,} more rows"
        return f"{input_name} has {rows} for it since version {then}"

    def _stale_as_of(
        self, dataset: Dataset, input_name: str, live: Mapping[str, LiveSlice], heads: Heads
    ) -> Iterable[tuple[str, str, int]]:
        if not live:
            return
        floor = self._settled(dataset.name, input_name, heads)
        oldest = min(made.inputs.get(input_name, -1) for made in live.values())
        changes = self._store.receipts.since(input_name, max(oldest, floor), _NEWEST)
        for slice_id, made in live.items():
            then = max(made.inputs.get(input_name, -1), floor)
            later = [r for r in changes if r.version > then and r.valid_from is not None]
            if not later:
                continue
            first = min(r.valid_from for r in later if r.valid_from is not None)
            if Slice.parse(slice_id).interval.end > first:
                since = first.strftime("%Y-%m-%d %H:%M")
                yield slice_id, f"{input_name} changed with effect from {since}", later[-1].version

    def _add_late(
        self,
        states: dict[str, SliceState],
        dataset: Dataset,
        input_name: str,
        stale: Iterable[tuple[str, str, int]],
        wish: Wish,
    ) -> None:
        """The slices that one input has left behind, as the policy treats them."""
        found = list(stale)
        held = self._store.receipts.held(dataset.name, input_name) if found else {}
        frozen = self._frozen(dataset, [slice_id for slice_id, _, _ in found]) if found else ()
        for slice_id, reason, now in found:
            captured = slice_id in held and held[slice_id].version >= now
            state = self._late(dataset, slice_id, reason, wish, captured=captured, frozen=slice_id in frozen)
            if state.status == "held" and not self._graph.has_arrivals(input_name):
                state = replace(state, reason=f"{state.reason} ({input_name} is not bronze: no copy is in late_rows)")
            known = states.setdefault(slice_id, state)
            # That the rows of one input were captured does not hide what another one has brought since.
            if known.status == "held" and state.make and not known.make:
                states[slice_id] = state

    def _late(
        self, dataset: Dataset, slice_id: str, reason: str, wish: Wish, *, captured: bool, frozen: bool
    ) -> SliceState:
        found = Slice.parse(slice_id)
        if isinstance(dataset.late, Fail):
            return SliceState(found, "refused", f"{reason}; late=Fail() refuses late rows")
        if frozen:
            return SliceState(found, "held", f"{reason}; {_FROZEN}", make=not captured)
        if (why := self._left_out(dataset, found, wish)) is not None:
            return SliceState(found, "held", f"{reason}; {why}, a backfill takes them in", make=not captured)
        return SliceState(found, "late", reason)

    def _left_out(self, dataset: Dataset, found: Slice, wish: Wish) -> str | None:
        """Why late rows of a slice are not taken in; None where they are."""
        late = dataset.late
        if isinstance(late, Capture):
            return "late rows are captured"
        if isinstance(late, Repair) and late.reach is not None and wish.run_time - found.interval.end > late.reach:
            return f"older than {late.within}"
        current = self._current(dataset, wish)
        if isinstance(late, Revisit) and current is not None and is_before(late, found, current):
            return f"skipped: before the look-back of {late.last} from {current}"
        return None

    def _spare_frozen(self, dataset: Dataset, states: dict[str, SliceState]) -> dict[str, SliceState]:
        """Hold what was left behind otherwise, as by a correction, where a write would be refused."""
        stale = [slice_id for slice_id, state in states.items() if state.status == "stale" and state.make]
        for slice_id in self._frozen(dataset, stale) if stale else ():
            reason = f"{states[slice_id].reason}; {_FROZEN}"
            states[slice_id] = replace(states[slice_id], status="held", reason=reason, make=False)
        return states

    def _arrival(
        self,
        dataset: Dataset,
        slicing: Slicing,
        made: Mapping[str, LiveSlice],
        arrived: Mapping[str, LiveSlice],
        heads: Heads,
    ) -> dict[str, SliceState]:
        assert slicing.follows is not None
        source = slicing.follows
        settled, restored_at = self._settled(dataset.name, source, heads), self._restored_at(dataset.name, heads)
        withdrawn = self._store.receipts.withdrawn(dataset.name, restored_at) if restored_at >= 0 else ()
        then = {
            slice_id: max(one.inputs.get(source, -1), settled if one.version < restored_at else -1)
            for slice_id, one in made.items()
        }
        states: dict[str, SliceState] = {}
        for slice_id, receipt in arrived.items():
            if slice_id in then and receipt.version > then[slice_id]:
                states[slice_id] = SliceState(Slice.parse(slice_id), "stale", f"{slice_id} of {source} was read again")
            elif slice_id not in then and (slice_id not in withdrawn or receipt.version > settled):
                states[slice_id] = SliceState(Slice.parse(slice_id), "due", f"{slice_id} of {source} was not taken yet")
        for arrival in self._store.arrivals.all(source):
            for earlier, file in arrival.supersedes:
                by, hit = f"arrival-{arrival.number}", f"arrival-{earlier}"
                if by in arrived and hit in then and then[hit] < arrived[by].version:
                    states[hit] = SliceState(Slice.parse(hit), "stale", f"{file.path} was replaced by {by}")
        if dataset.into is not None or getattr(dataset.writer, "restores", False):
            for gone in self._unmatched(dataset, source, made, arrived, heads):
                states[gone.id] = SliceState(gone, "stale", f"{source} took {gone.id} back")
        return states

    def _taken_back(
        self,
        dataset: Dataset,
        slicing: Slicing,
        live: Mapping[str, LiveSlice],
        arrived: Mapping[str, LiveSlice],
        heads: Heads,
    ) -> TakenBack | None:
        """The slices that have to go before anything is made, as their source has taken their arrivals back."""
        if slicing.follows is None or not keeps_apart(dataset):
            return None
        unmatched = self._unmatched(dataset, slicing.follows, live, arrived, heads)
        return TakenBack.of(unmatched[0], slicing.follows, live) if unmatched else None

    def _unmatched(
        self,
        dataset: Dataset,
        source: str,
        live: Mapping[str, LiveSlice],
        arrived: Mapping[str, LiveSlice],
        heads: Heads,
    ) -> list[Slice]:
        settled, restored_at = self._settled(dataset.name, source, heads), self._restored_at(dataset.name, heads)
        return taken_back(self._store, source, live, arrived, settled=settled, restored_at=restored_at)

    def _whole(self, dataset: Dataset, live: Mapping[str, LiveSlice], heads: Heads) -> dict[str, SliceState]:
        names = [i.dataset for i in dataset.inputs if isinstance(self._graph.reference(dataset, i), SameSlice)]
        if WHOLE.id not in live:
            # A branch of a choice may never have made anything: whoever reads it is made of the others.
            needed = [name for name in names if not self._is_branch(name)]
            ready = all(name in heads for name in needed) and (not names or any(name in heads for name in names))
            withdrawn = dataset.name in heads and all(
                self._settled(dataset.name, name, heads) >= heads[name].version for name in names if name in heads
            )
            if not ready or withdrawn:
                return {}
            return {WHOLE.id: SliceState(WHOLE, "missing", "it was never made")}
        for name in names:
            then = max(live[WHOLE.id].inputs.get(name, -1), self._settled(dataset.name, name, heads))
            if self._store.receipts.since(name, then, _NEWEST):
                return {WHOLE.id: SliceState(WHOLE, "stale", f"{name} was changed since version {then}")}
        return {}

    def _is_branch(self, name: str) -> bool:
        dataset = self._graph.datasets.get(name)
        return dataset is not None and dataset.choice is not None

    def _wished(
        self,
        dataset: Dataset,
        slicing: Slicing,
        states: dict[str, SliceState],
        live: Mapping[str, LiveSlice],
        wish: Wish,
    ) -> dict[str, SliceState]:
        made = wish.made.get(dataset.name, frozenset())
        for slice_id in wish.again.get(dataset.name, frozenset()) - made:
            if states.get(slice_id, _OVER).status != "waiting":
                states[slice_id] = SliceState(Slice.parse(slice_id), "again", "asked for: again")
        if wish.backfill is None or dataset.is_source:
            return states
        span = " to ".join(
            f"{at:%Y-%m-%d %H:%M}".removesuffix(" 00:00") for at in (wish.backfill.start, wish.backfill.end)
        )
        if slicing.kind == "event":
            for slice_id in {*of_kind(live, "event"), *states} - made:
                found, status = Slice.parse(slice_id), states.get(slice_id, _OVER).status
                if found.interval.overlaps(wish.backfill) and status != "waiting":
                    empty = "; nothing has arrived for it, so it is made empty" if status == "overdue" else ""
                    states[slice_id] = SliceState(found, "backfill", f"asked for: {span}{empty}")
                elif status in ("overdue", "refused"):
                    # A backfill answers for what it was asked for: it does not fail for the rest.
                    states[slice_id] = replace(states[slice_id], make=False)
        elif slicing.kind == "whole" and WHOLE.id in live and WHOLE.id not in made:
            states[WHOLE.id] = SliceState(WHOLE, "backfill", f"asked for: {span}")
        return states

    def _outdated(
        self, dataset: Dataset, states: dict[str, SliceState], live: Mapping[str, LiveSlice], wish: Wish
    ) -> dict[str, SliceState]:
        if dataset.is_source:
            return states
        now = self._codes[dataset.name]
        old = [slice_id for slice_id, made in live.items() if made.code not in (now, None) and slice_id not in states]
        within = wish.outdated and (wish.outdated_limit is None or len(old) <= wish.outdated_limit)
        for slice_id in old:
            reason = "its code or options changed since"
            if not within:
                reason += f"; `lakewright backfill --outdated --select {dataset.name}` makes it again"
            states[slice_id] = SliceState(Slice.parse(slice_id), "outdated", reason, make=within)
        return states

    def _settled(self, name: str, input_name: str, heads: Heads) -> int:
        """The version of an input that the newest rollback of a dataset took as settled."""
        restored = self._last_restore(name, heads)
        return -1 if restored is None else restored.inputs.get(input_name, -1)

    def _restored_at(self, name: str, heads: Heads) -> int:
        """The version of a dataset's newest rollback: what was made before it stays as it is."""
        restored = self._last_restore(name, heads)
        return -1 if restored is None else restored.version

    def _last_restore(self, name: str, heads: Heads) -> Receipt | None:
        if name not in heads or not heads[name].restored:
            return None
        restores = self._store.receipts.since(name, -1, _NEWEST, kinds=("restore",))
        # A Stateful Merger goes back by itself as well, which settles nothing: that is told without inputs.
        return next((one for one in reversed(restores) if one.inputs), None)


_OVER = SliceState(WHOLE, "missing", "", make=False)
_HELD = SliceState(WHOLE, "held", "", make=False)
