"""Project: a folder with a ``lakewright.toml`` and pipeline files, and everything that one can ask of it."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.lake.interrupts import interrupt_tag
from lakewright.lake.lake import Lake
from lakewright.lake.side_tables import DEAD_LETTERS, LATE_ROWS
from lakewright.model.runs import Reason, Run
from lakewright.model.slices import Slice
from lakewright.model.times import Interval, parse_time, utc_now
from lakewright.pipelines.adopt import AdoptSummary, adopt_table
from lakewright.pipelines.cascade import cascade
from lakewright.pipelines.code import code_hash
from lakewright.pipelines.decide import DatasetPlan, Decider, Wish
from lakewright.pipelines.definitions import Slicing
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.keeper import keep
from lakewright.pipelines.loading import load_pipelines
from lakewright.pipelines.progress import Listener, Note, RunSummary
from lakewright.pipelines.rebuild import RebuildSummary, rebuild_store
from lakewright.pipelines.recover import recover_dead_steps
from lakewright.pipelines.rollback import RollbackSummary, roll_back, undo_stale_restores
from lakewright.pipelines.runner import Runner
from lakewright.pipelines.schedule import run_due
from lakewright.pipelines.take import look_for_new
from lakewright.pipelines.workshop import Workshop
from lakewright.runtime.settings import Settings, load_settings
from lakewright.store import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Plan", "Project"]

_VIEWS = {"dead_letters": DEAD_LETTERS, "late_rows": LATE_ROWS}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do now, dataset by dataset in order."""

    datasets: tuple[DatasetPlan, ...]
    run_time: datetime
    warnings: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> DatasetPlan:
        for found in self.datasets:
            if found.dataset.name == name:
                return found
        raise UnknownNameError("dataset", name, [d.dataset.name for d in self.datasets])


class Project:
    """One project on one target. Spark starts when it is first needed, or is the session that is given."""

    def __init__(
        self,
        folder: str | Path = ".",
        *,
        target: str | None = None,
        spark: SparkSession | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.settings: Settings = load_settings(Path(folder), target)
        self._given = spark
        self._started: SparkSession | None = None
        self._now = now

    @property
    def folder(self) -> Path:
        return self.settings.folder

    @cached_property
    def store(self) -> Store:
        return open_store(self.settings.target.store)

    @cached_property
    def lake(self) -> Lake:
        return Lake(self.settings.target.lake, self.spark)

    @cached_property
    def graph(self) -> Graph:
        pipelines = load_pipelines(self.folder, self.settings.pipelines)
        datasets = [dataset for pipeline in pipelines for dataset in pipeline.datasets]
        graph = Graph(datasets, adopted=self.lake.names())
        self.lake.declare({d.name: d.layer for d in datasets})
        self.lake.declare({name: output.layer for d in datasets for name, output in d.outputs.items()})
        return graph

    @cached_property
    def codes(self) -> dict[str, str]:
        return {name: code_hash(dataset) for name, dataset in self.graph.datasets.items()}

    def spark(self) -> SparkSession:
        """The session: the one that was given, or one made for the target."""
        if self._given is not None:
            from lakewright.runtime.session import check_session

            return check_session(self._given)
        if self._started is None:
            from lakewright.runtime.jars import ensure_jars
            from lakewright.runtime.session import spark_session

            ensure_jars(lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201
            self._started = spark_session(self.settings.target, f"lakewright {self.settings.name}")
        return self._started

    def close(self) -> None:
        """Stop the session that we started, and close the store."""
        if self._started is not None:
            from lakewright.runtime.session import stop_session

            stop_session(self._started)
            self._started = None
        if "store" in self.__dict__:
            self.store.close()

    def __enter__(self) -> Project:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Deciding and doing

    def plan(self, select: Sequence[str] = (), *, at: str | date | datetime | None = None) -> Plan:
        """What a run would do now, and why. Starts no Spark and changes nothing."""
        run_time = self._time(at)
        names = self.graph.select(select)
        shop = self._shop(Run("plan", "plan", run_time), "plan")
        decider = Decider(self.graph, self.store, self.codes)
        wish = self._wish(run_time)
        plans, warnings = [], []
        for plan in decider.decide_all(names, wish):
            name = plan.dataset.name
            if plan.dataset.is_source:
                try:
                    found = look_for_new(shop, plan.dataset)
                except Exception as error:
                    warnings.append(f"{name}: {error}")
                    found = None
                plan = DatasetPlan(plan.dataset, plan.slicing, plan.states, plan.live, found.summary if found else "")
            plans.append(plan)
        plans = cascade(self.graph, plans)
        for step in self.store.steps.open_steps():
            warnings.append(
                f"{step.dataset} {step.slice_id}: a step of run {step.run_id} is open; the next run settles it."
            )
        return Plan(tuple(plans), run_time, tuple(warnings))

    def run(
        self,
        select: Sequence[str] = (),
        *,
        at: str | date | datetime | None = None,
        again: bool = False,
        slices: Sequence[str] = (),
        reason: Reason = "manual",
        listener: Listener = lambda event: None,
        parallel: int | None = None,
        wait_seconds: float = 0.0,
        sample: float | None = None,
    ) -> RunSummary:
        """Take what is new, then make what is due, missing or late."""
        run_time = self._time(at)
        names = self.graph.select(select)
        wish = self._wish(run_time)
        if again:
            wish = Wish(
                run_time,
                again=self._last_made(names, slices),
                outdated=wish.outdated,
                outdated_limit=wish.outdated_limit,
            )
        return self._run(names, wish, reason, listener, parallel, wait_seconds, sample=sample)

    def run_due(
        self,
        *,
        at: str | date | datetime | None = None,
        listener: Listener = lambda event: None,
        parallel: int | None = None,
        wait_seconds: float = 0.0,
    ) -> list[RunSummary]:
        """Run every pipeline for each time of its schedule since its last good scheduled run, in order of time."""
        return run_due(self, until=self._time(at), listener=listener, parallel=parallel, wait_seconds=wait_seconds)

    def backfill(
        self,
        start: str | date | datetime | None = None,
        end: str | date | datetime | None = None,
        *,
        select: Sequence[str] = (),
        sources: bool = False,
        outdated: bool = False,
        at: str | date | datetime | None = None,
        listener: Listener = lambda event: None,
        parallel: int | None = None,
        wait_seconds: float = 0.0,
    ) -> RunSummary:
        """Make slices of event time ``[start, end)`` again, from bronze, with everything below them."""
        names, wish = self.backfill_wish(start, end, select=select, sources=sources, outdated=outdated, at=at)
        return self._run(names, wish, "backfill", listener, parallel, wait_seconds, take_new=False)

    def backfill_wish(
        self,
        start: str | date | datetime | None = None,
        end: str | date | datetime | None = None,
        *,
        select: Sequence[str] = (),
        sources: bool = False,
        outdated: bool = False,
        at: str | date | datetime | None = None,
    ) -> tuple[list[str], Wish]:
        """The datasets and slices of a backfill: those selected and everything below them."""
        if start is None and not outdated:
            raise ConfigurationError(
                "A backfill needs to know what to repeat.",
                hint="Give --from 2026-01-01 (and --to 2026-01-08, which is not included), or --outdated.",
            )
        run_time = self._time(at)
        span = None
        if start is not None:
            first = parse_time(start)
            last = parse_time(end) if end is not None else run_time
            span = Interval(first, last)
        chosen = self.graph.closure(self.graph.select(select), down=True) if select else set(self.graph.order)
        names = [name for name in self.graph.order if name in chosen and (sources or not self.graph[name].is_source)]
        again: dict[str, frozenset[str]] = {}
        if sources and span is not None:
            for name in names:
                if self.graph[name].is_source:
                    again[name] = self._arrivals_within(name, span)
            for name in names:
                follows = self.graph.slicing[name].follows
                if follows in again:
                    again[name] = again[follows]
        return names, Wish(run_time, backfill=span, again=again, outdated=outdated)

    def plan_backfill(self, names: Sequence[str], wish: Wish) -> Plan:
        """What a backfill would make; changes nothing."""
        decider = Decider(self.graph, self.store, self.codes)
        return Plan(tuple(decider.decide_all(names, wish)), wish.run_time)

    def retry(
        self,
        *,
        listener: Listener = lambda event: None,
        parallel: int | None = None,
        wait_seconds: float = 0.0,
    ) -> RunSummary:
        """Go on with the last run that did not succeed: its failed datasets and everything below them."""
        last = next((r for r in self.store.runs.latest(limit=50) if r.state != "running"), None)
        if last is None:
            raise ConfigurationError("There is no run to retry yet.", hint="`lakewright run` starts one.")
        if last.state == "ok":
            raise ConfigurationError(f"The last run ({last.run_id}) succeeded: there is nothing to retry.")
        broken = [s.dataset for s in self.store.steps.of_run(last.run_id) if s.state not in ("ok", "recovered")]
        names = self.graph.closure([n for n in broken if n in self.graph.datasets], down=True) or set(self.graph.order)
        order = [name for name in self.graph.order if name in names]
        return self._run(order, self._wish(last.run_time), "manual", listener, parallel, wait_seconds)

    def _run(
        self,
        names: Sequence[str],
        wish: Wish,
        reason: Reason,
        listener: Listener,
        parallel: int | None,
        wait_seconds: float,
        *,
        take_new: bool = True,
        sample: float | None = None,
    ) -> RunSummary:
        pipelines = {self.graph[name].pipeline: self.graph[name].settings.runs.queue for name in names}
        run = Run(new_run_id(self._now()), ",".join(sorted(pipelines)), wish.run_time, reason)
        with keep(
            self.store,
            run,
            pipelines,
            now=self._now,
            interrupt=lambda: self._interrupt(run),
            wait_seconds=wait_seconds,
        ) as keeper:
            shop = self._shop(run, keeper.owner.owner_id, sample=sample)
            self.store.runs.start(run, owner_id=keeper.owner.owner_id, options={"select": list(names)}, now=self._now())
            summary = RunSummary(run.run_id, state="failed")
            try:
                notes = [
                    Note(
                        f"{dataset} {slice_id}: an earlier run died here; its commit was "
                        + ("found in the log and is taken as done." if found else "not made, so nothing of it counts."),
                        "warning",
                    )
                    for dataset, slice_id, found in recover_dead_steps(shop)
                ]
                for name in undo_stale_restores(shop):
                    notes.append(Note(f"{name}: a restore by a process that had lost its lease was undone.", "warning"))
                for note in notes:
                    listener(note)
                decider = Decider(self.graph, self.store, self.codes)
                runner = Runner(
                    shop,
                    decider,
                    parallel=parallel or self.settings.target.parallel,
                    listener=listener,
                    stop=keeper.stop,
                    take_new=take_new,
                )
                summary = runner.run(names, wish)
                summary.notes[:0] = notes
            finally:
                error = str(summary.errors[0]) if summary.errors else keeper.why or None
                self.store.runs.finish(run.run_id, summary.state, now=self._now(), error=error, summary=_brief(summary))
        return summary

    # Repairing

    def rollback(self, name: str, *, to: int | None = None, dry_run: bool = False) -> RollbackSummary:
        """Bring a dataset (and its step's other outputs) back to a version; by default before its last run."""
        dataset = self.graph[name]
        with self._exclusive([dataset.pipeline]) as shop:
            recover_dead_steps(shop)
            return roll_back(shop, dataset, to=to, dry_run=dry_run)

    def forget_arrival(self, name: str, number: int) -> None:
        """Give up a recorded arrival that can no longer be read: it counts as settled, without rows."""
        if not any(arrival.number == number for arrival in self.store.arrivals.pending(name)):
            raise ConfigurationError(f"{name} has no arrival {number} that waits to be read.")
        self.store.arrivals.commit(name, number)

    def adopt(self, path: str | Path, name: str) -> AdoptSummary:
        """Let a name stand for an existing Delta table."""
        declared = name in self.graph.datasets
        summary = adopt_table(self.lake, self.store, str(path), name, declared=declared)
        self.__dict__.pop("graph", None)
        return summary

    def rebuild_store(self) -> RebuildSummary:
        """Fill the store anew from the lake's logs."""
        with self._exclusive(sorted({d.pipeline for d in self.graph.datasets.values()})) as shop:
            return rebuild_store(shop)

    # Reading

    def show(self, name: str, *, limit: int = 20) -> DataFrame:
        """A dataset's rows, without system columns."""
        if name in _VIEWS:
            return self.lake.read(_VIEWS[name], system_columns=True).limit(limit)
        self.graph  # noqa: B018  (declares the names)
        return self.lake.read(name).limit(limit)

    def sql(self, query: str) -> DataFrame:
        """A query over the project's datasets by name, and ``dead_letters`` and ``late_rows``."""
        self.graph  # noqa: B018
        session = self.lake.session()
        for name in [*self.lake.names(), *self.graph.owners]:
            if self.lake.log(name).exists() and name in query:
                self.lake.read(name).createOrReplaceTempView(name)
        for name, table in _VIEWS.items():
            if self.lake.log(table).exists() and name in query:
                self.lake.read(table, system_columns=True).createOrReplaceTempView(name)
        return session.sql(query)

    # Inner

    def _wish(self, run_time: datetime) -> Wish:
        target = self.settings.target
        return Wish(run_time, outdated=target.outdated == "run", outdated_limit=target.outdated_limit)

    def _time(self, at: str | date | datetime | None) -> datetime:
        return self._now() if at is None else parse_time(at)

    def _shop(self, run: Run, owner_id: str, *, sample: float | None = None) -> Workshop:
        return Workshop(
            graph=self.graph,
            lake=self.lake,
            store=self.store,
            run=run,
            owner_id=owner_id,
            project=self.folder,
            codes=self.codes,
            now=self._now,
            sample=sample,
        )

    def _last_made(self, names: Sequence[str], slices: Sequence[str]) -> Mapping[str, frozenset[str]]:
        """What ``--again`` repeats: the slices named, or those that the last run that made something made."""
        chosen = [name for name in names if not self.graph[name].is_source]
        if slices:
            asked = [Slice.parse(text) for text in slices]
            kinds = {name: self.graph.slicing[name] for name in chosen}
            return {
                name: frozenset(one.id for one in asked if one.kind == cut.kind and _on_grid(one, cut))
                for name, cut in kinds.items()
            }
        for run in self.store.runs.latest(limit=100):
            made: dict[str, set[str]] = {}
            for step in self.store.steps.of_run(run.run_id):
                if step.state in ("ok", "recovered") and step.dataset in chosen:
                    made.setdefault(step.dataset, set()).add(step.slice_id)
            if made:
                return {name: frozenset(found) for name, found in made.items()}
        return {}

    def _arrivals_within(self, name: str, span: Interval) -> frozenset[str]:
        from lakewright.model.times import cell_interval

        found = set()
        for slice_id in self.store.receipts.live_slices(name):
            receipt = self.store.receipts.live(name, slice_id)
            cells = [] if receipt is None else [c for c in receipt.touched if c not in (None, "any")]
            if not cells or any(cell_interval(c).overlaps(span) for c in cells if c is not None):
                found.add(slice_id)
        return frozenset(found)

    def _interrupt(self, run: Run) -> None:
        session: Any = self._given or self._started
        if session is not None:
            interrupt_tag(session, run.run_id)

    @contextmanager
    def _exclusive(self, pipelines: Sequence[str]) -> Iterator[Workshop]:
        """Work outside a run, with the pipelines' leases held."""
        run = Run(new_run_id(self._now()), ",".join(pipelines), self._now(), "manual")
        alone = dict.fromkeys(pipelines, 0)
        with keep(self.store, run, alone, now=self._now, interrupt=lambda: self._interrupt(run)) as keeper:
            yield self._shop(run, keeper.owner.owner_id)


def new_run_id(now: datetime) -> str:
    """An id that sorts by time and is unique: ``20260105-070000-3f9a``."""
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _on_grid(one: Slice, cut: Slicing) -> bool:
    return one.kind != "event" or one.grid == cut.grid


def _brief(summary: RunSummary) -> dict[str, Any]:
    return {
        "made": len(summary.made),
        "failed": summary.failed,
        "skipped": summary.skipped,
        "fresh": summary.fresh,
        "seconds": round(summary.seconds, 3),
    }
