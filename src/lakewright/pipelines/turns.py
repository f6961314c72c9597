"""Turns: how the runs of one pipeline that are at work at once keep out of each other's way.

Guarantee:
    What is made in order is made so over all runs: a slice waits while an earlier one is being made, or belongs to a
    run that is at work, and fails where an earlier one did not succeed. A slice that another run makes just now is
    waited for, and not made twice. Where only one run is at work at a time, none of this is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from threading import Event as Flag

from lakewright.errors import InterruptedRun, LeaseHeldError, MadeMeanwhileError, NotReady
from lakewright.model.slices import Slice
from lakewright.model.times import parse_time
from lakewright.pipelines.decide import Decider
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.own_times import OwnTimes
from lakewright.pipelines.states import DatasetPlan, SliceState, Wish
from lakewright.pipelines.workshop import Made, Workshop
from lakewright.store import HeldLease, Known, LiveSlice

__all__ = ["Turns"]

_LOOK = 0.2
_UNTOUCHED = ("held", "refused", "overdue")

Make = Callable[..., Made]


class Turns:
    """What one run asks before it makes a slice."""

    def __init__(self, shop: Workshop, decider: Decider, wish: Wish, stop: Flag) -> None:
        self._shop, self._decider, self._wish, self._stop = shop, decider, wish, stop
        self._live: dict[str, Mapping[str, LiveSlice]] = {}

    def look(self, dataset: Dataset) -> None:
        """Note what is there of a dataset, before it is decided what to make of it."""
        if dataset.settings.runs.concurrency > 1:
            self._live[dataset.name] = self._shop.store.receipts.live_slices(dataset.name)

    def are_taken(self, dataset: Dataset) -> bool:
        """Whether the slices of a dataset are made in order over several runs."""
        return dataset.in_order and not dataset.is_stream and dataset.settings.runs.concurrency > 1

    def wait_for(self, dataset: Dataset, state: SliceState) -> None:
        """Wait until it is the slice's turn; raises ``NotReady`` where an earlier one did not succeed."""
        while self._is_held_back(dataset, state):
            self._pause(dataset, state.slice.id)

    def patiently(self, dataset: Dataset, work: Callable[[], None]) -> None:
        """Do it, once whoever does the same just now has ended."""
        while True:
            try:
                return work()
            except LeaseHeldError:
                if dataset.settings.runs.concurrency == 1:
                    raise
                self._pause(dataset, "")

    def make(self, make: Make, dataset: Dataset, state: SliceState, attempt: int) -> Made:
        """Make a slice; where another run makes it just now, wait, and take its work as done if it succeeds.

        One that was made since it was found to be due is not made again either.
        """
        if dataset.settings.runs.concurrency == 1:
            return make(self._shop, dataset, state, attempt=attempt)
        self._see_inputs(dataset, state)
        there = self._live.get(dataset.name, {}).get(state.slice.id)
        while True:
            shop = replace(self._shop, known=Known(None if there is None else there.version))
            try:
                return make(shop, dataset, state, attempt=attempt)
            except LeaseHeldError:
                self._pause(dataset, state.slice.id)
            except MadeMeanwhileError:
                pass
            # Of this slice alone: what is newly there of the others was not there when they were found to be due.
            there = self._shop.store.receipts.live_slices(dataset.name).get(state.slice.id)
            if state.slice.id not in {one.slice.id for one in self._left(dataset).to_make}:
                receipt = self._shop.store.receipts.live(dataset.name, state.slice.id)
                return Made(() if receipt is None else (receipt,), recovered=True)

    def _see_inputs(self, dataset: Dataset, state: SliceState) -> None:
        """Wait until what is committed to the inputs has its receipts.

        A version is read only when every one before it is accounted for. Another run that has committed, and not told
        so yet, would hide what this one has made after it.
        """
        lake, store, graph = self._shop.lake, self._shop.store, self._shop.graph
        for name in {one for given in dataset.inputs for one in given.datasets} - lake.borrowed:
            owner = graph.owners.get(name)
            if owner is None or graph[owner].pipeline != dataset.pipeline or name in lake.outside:
                continue
            earliest, latest = lake.log(name).bounds()
            if earliest is None or latest is None:
                continue
            while store.receipts.gaps(name, earliest, latest) and self._others_make(name):
                self._pause(dataset, state.slice.id)

    def _others_make(self, name: str) -> bool:
        shop = self._shop
        held = shop.store.leases.held(shop.now())
        alive = {(one.dataset, one.number) for one in held if one.alive and one.owner_id != shop.owner_id}
        return any((step.dataset, step.number) in alive for step in shop.store.steps.open_steps(name))

    def _left(self, dataset: Dataset) -> DatasetPlan:
        decider = self._decider
        if isinstance(decider, OwnTimes):
            return decider.whole(dataset.name, self._wish)
        return decider.decide(dataset.name, self._wish)

    def _is_held_back(self, dataset: Dataset, state: SliceState) -> bool:
        plan, shop = self._left(dataset), self._shop
        unmade = {one.slice.id for one in plan.states if one.make and one.status not in _UNTOUCHED}
        alive = [one for one in shop.store.leases.held(shop.now()) if one.alive and one.owner_id != shop.owner_id]
        making = {one.slice_id for one in alive if one.dataset == dataset.name}
        if "*" in making or any(Slice.parse(one) < state.slice for one in making & unmade):
            return True
        if not isinstance(self._decider, OwnTimes) or plan.slicing.kind != "event":
            return False
        live = shop.store.receipts.live_slices(dataset.name).keys() - unmade
        for time in self._decider.still_open():
            missing = [one for one in self._decider.slices_of(dataset, time) if one not in live]
            if missing and self._comes(dataset, state, missing[0], time, alive):
                return True
        return False

    def _comes(
        self, dataset: Dataset, state: SliceState, earlier: str, time: datetime, alive: Sequence[HeldLease]
    ) -> bool:
        """Whether an earlier slice, which the run of another time has to make, is still to be waited for."""
        assert isinstance(self._decider, OwnTimes)
        run = self._shop.store.runs.of_time(dataset.pipeline, time)
        if run is None:
            # A process that is at work on an earlier time comes to it. Nobody waits for a later one: no circle.
            times = [parse_time(one.slice_id) for one in alive if one.dataset == f"scheduled:{dataset.pipeline}"]
            if any(at < self._shop.run.time for at in times):
                return True
        elif run.state == "ok":
            self._decider.settle(time)
            return False
        elif run.state == "running" and run.owner_id in {one.owner_id for one in alive}:
            return True
        why = "was not run yet" if run is None else f"did not succeed (run {run.run_id}, {run.state})"
        raise NotReady(
            f"{dataset.name}, slice {state.slice.id} waits: it is made in order, and {earlier} before it {why}. "
            "Nothing was published for it.",
            hint=f"It is made when {earlier} has succeeded.",
        )

    def _pause(self, dataset: Dataset, slice_id: str) -> None:
        if self._stop.wait(_LOOK):
            raise InterruptedRun(f"{dataset.name} {slice_id}: interrupted while it waited.")
