"""Planning: what a run would do now, and why. No data changes, and no Spark starts where the tables are local."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from lakewright.errors import UnknownNameError
from lakewright.pipelines.backfilling import backfill_cautions, backfill_limits, going_back_notes
from lakewright.pipelines.boundaries import boundary_warnings
from lakewright.pipelines.cascade import cascade
from lakewright.pipelines.choosing import choice_warnings, recorded_schemas
from lakewright.pipelines.decide import Decider
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.freezing import frozen_slices
from lakewright.pipelines.guard_checks import watermark_warnings
from lakewright.pipelines.harvest import FOREIGN, notice, refuse_lost_histories
from lakewright.pipelines.states import DatasetPlan, Wish
from lakewright.pipelines.streams.news import news_of
from lakewright.pipelines.take import load_warning, look_for_new
from lakewright.pipelines.upstream import Upper, as_if_unmade, borrow, index
from lakewright.pipelines.waiting import waiting_folders
from lakewright.pipelines.workshop import Workshop

__all__ = ["Plan", "plan_backfill", "plan_run"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do now, dataset by dataset in order."""

    datasets: tuple[DatasetPlan, ...]
    run_time: datetime
    warnings: tuple[str, ...] = ()
    read_from: Mapping[str, str] = field(default_factory=dict)
    """Dataset -> the other target that it is read from."""
    backfill_limits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Dataset -> where a backfill of what was made could not be exact."""

    def __getitem__(self, name: str) -> DatasetPlan:
        for found in self.datasets:
            if found.dataset.name == name:
                return found
        raise UnknownNameError("dataset", name, [d.dataset.name for d in self.datasets])


def plan_run(shop: Workshop, uppers: Sequence[Upper], names: Sequence[str], wish: Wish) -> Plan:
    """The plan of a run; the store may learn of commits that others have made."""
    plans, warnings = [], []
    decided, read_from = _decide(shop, uppers, names, wish)
    for plan in decided:
        name = plan.dataset.name
        if (plan.dataset.is_source or plan.dataset.is_stream) and name not in read_from:
            try:
                waits = [f"{folder} {why}" for folder, why in waiting_folders(shop, plan.dataset).items()]
                new, arrivals = _news(shop, plan.dataset)
                plan = replace(plan, new=new, waits=tuple(waits), arrivals=arrivals)
            except Exception as error:
                warnings.append(f"{name}: {error}")
        plans.append(plan)
    plans = cascade(shop.graph, plans, shop.store.receipts.live_slices)
    warnings += [
        f"{step.dataset} {step.slice_id}: a step of run {step.run_id} is open; the next run settles it."
        for step in shop.store.steps.open_steps()
    ]
    warnings += [warning for name in names if (warning := load_warning(shop, shop.graph[name])) is not None]
    warnings += [f"{finding.message} {finding.cure}" for finding in shop.store.findings.waiting(FOREIGN)]
    warnings += [*going_back_notes(shop, plans, shop.now()), *choice_warnings(shop.graph)]
    warnings += watermark_warnings(shop.graph)
    warnings += boundary_warnings([plan.dataset for plan in plans], shop.store)
    limits = backfill_limits(shop, plans, shop.now())
    return Plan(tuple(plans), wish.run_time, tuple(warnings), read_from, limits)


def _news(shop: Workshop, dataset: Dataset) -> tuple[str, int]:
    """What is there to take, in words, and how many arrivals it would make."""
    if dataset.is_stream:
        news = news_of(shop, dataset)
        return news, int(bool(news))
    found = look_for_new(shop, dataset)
    more = f", and {len(found) - 1} more arrivals" if len(found) > 1 else ""
    return f"{found[0].summary}{more}" if found else "", len(found)


def plan_backfill(shop: Workshop, uppers: Sequence[Upper], names: Sequence[str], wish: Wish) -> Plan:
    """The plan of a backfill, which takes nothing new."""
    plans, read_from = _decide(shop, uppers, names, wish)
    warnings = (*wish.notes, *backfill_cautions(shop, plans, shop.now()))
    return Plan(tuple(plans), wish.run_time, warnings, read_from)


def _decide(
    shop: Workshop, uppers: Sequence[Upper], names: Sequence[str], wish: Wish
) -> tuple[list[DatasetPlan], dict[str, str]]:
    """What a run would find to do, and which datasets are read from which other target."""
    graph, lake, store = shop.graph, shop.lake, shop.store
    found = borrow(graph, lake, uppers, store)
    making = [name for name in names if name in found and not graph[name].is_source]
    rest = {name: upper for name, upper in found.items() if graph.owners.get(name) not in making}
    index(shop, rest, names)
    if lake.local is not None:  # elsewhere it would start Spark
        read = {one for name in names for given in graph[name].inputs for one in given.datasets}
        decided = {*names, *read} - found.keys()
        refuse_lost_histories(lake, store, decided)
        notice(lake, store, decided)
    seen = as_if_unmade(store, making) if making else store
    frozen = frozen_slices(lake, shop.connections)
    plans = Decider(graph, seen, shop.codes, recorded_schemas(graph, lake), frozen).decide_all(names, wish)
    return plans, {name: upper.target for name, upper in rest.items()}
