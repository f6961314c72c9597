"""Project: a folder with a ``lakewright.toml`` and pipeline files, and everything that one can ask of it."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError
from lakewright.lake.lake import Lake
from lakewright.lake.side_tables import DEAD_LETTER_LIFE, DEAD_LETTERS, LATE_ROWS, REPEATS
from lakewright.model.arrivals import JsonValue
from lakewright.model.runs import Reason, Run
from lakewright.model.times import Interval, parse_time, utc_now
from lakewright.model.triggers import Event
from lakewright.pipelines import wishes
from lakewright.pipelines.adopt import AdoptSummary, adopt_table
from lakewright.pipelines.capture import still_late
from lakewright.pipelines.choosing import recorded_schemas
from lakewright.pipelines.code import code_hash
from lakewright.pipelines.compute_options import check_computes
from lakewright.pipelines.computes import Computes, continuous_compute, with_compute
from lakewright.pipelines.corrections import settle_corrections
from lakewright.pipelines.counting import rows_that_count
from lakewright.pipelines.dead_letters import LetterCount, Selection, count_letters, retire_letters, select_letters
from lakewright.pipelines.decide import Wish
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.empty import OneSliceEach, allow_empty
from lakewright.pipelines.freezing import frozen_slices
from lakewright.pipelines.gone import give_up
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.harvest import FOREIGN, notice, refuse_forgotten, refuse_lost_histories
from lakewright.pipelines.keeper import keep
from lakewright.pipelines.letter_policies import (
    keep_letters_short,
    keeps_letters_short,
    never_replayed,
    refuse_never_replayed,
)
from lakewright.pipelines.listen import ListenSummary, listen, replay_event
from lakewright.pipelines.loading import let_functions_travel, load_pipelines
from lakewright.pipelines.maintain import MaintenanceSummary, choose_tables, maintain_tables
from lakewright.pipelines.marking import deliver
from lakewright.pipelines.order_times import passed_over, refuse_too_early
from lakewright.pipelines.orders import Order, fulfil, pipeline_of
from lakewright.pipelines.outside import placed_destination
from lakewright.pipelines.own_times import decider_for
from lakewright.pipelines.partial import COMPLETENESS, completeness_frame
from lakewright.pipelines.planning import Plan, plan_backfill, plan_run
from lakewright.pipelines.pooling import admission_of
from lakewright.pipelines.progress import Listener, Note, RunSummary
from lakewright.pipelines.ready import Readiness, ask_readiness
from lakewright.pipelines.rebuild import RebuildSummary, rebuild_store
from lakewright.pipelines.recover import recover_dead_steps
from lakewright.pipelines.repartition import RepartitionSummary, lay_out_anew
from lakewright.pipelines.replay import (
    ReplaySummary,
    count_still_open,
    live_slices,
    plan_replay,
    write_corrections,
)
from lakewright.pipelines.replay_records import Edits
from lakewright.pipelines.replicas import placed_at
from lakewright.pipelines.rollback import RollbackSummary, roll_back, undo_stale_restores
from lakewright.pipelines.run_parameters import checked_parameters, known_parameters
from lakewright.pipelines.runner import Runner
from lakewright.pipelines.schedule import run_due
from lakewright.pipelines.scratch import clear_trial, trial_note, trial_settings
from lakewright.pipelines.streams.captures import capture_of
from lakewright.pipelines.streams.looking import StreamState, states_of
from lakewright.pipelines.streams.moving import MoveSummary, move_checkpoint
from lakewright.pipelines.streams.rewind import IfRowsLost, RewindSummary, rewind_stream
from lakewright.pipelines.streams.worker import Worker, WorkerSummary
from lakewright.pipelines.take import source_context
from lakewright.pipelines.upstream import Upper, borrow, index, let_go, take_over
from lakewright.pipelines.workshop import Workshop
from lakewright.runtime.settings import Settings, load_settings
from lakewright.store import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewright.connectors.cdc_feed import CaptureFeed
    from lakewright.connectors.postgres_log_feed import LogFeed

__all__ = ["Project"]

_VIEWS = {
    "dead_letters": DEAD_LETTERS,
    "dead_letter_life": DEAD_LETTER_LIFE,
    "late_rows": LATE_ROWS,
    "repeats": REPEATS,
}


class Project:
    """One project on one target. Spark starts when it is first needed, or is the session that is given."""

    def __init__(
        self,
        folder: str | Path = ".",
        *,
        target: str | None = None,
        spark: SparkSession | None = None,
        now: Callable[[], datetime] = utc_now,
        settings: Settings | None = None,
    ) -> None:
        self.settings: Settings = settings or load_settings(Path(folder), target)
        self._given = spark
        self._started: SparkSession | None = None
        self._starting = threading.Lock()
        self._now = now
        self._parent: Project | None = None
        self._share: float | None = None

    @property
    def folder(self) -> Path:
        return self.settings.folder

    @cached_property
    def store(self) -> Store:
        return open_store(self.settings.target.reveal_store())

    @cached_property
    def lake(self) -> Lake:
        return Lake(self.settings.target.lake, self.spark)

    @cached_property
    def uppers(self) -> list[Upper]:
        """The lakes of other targets from which this one reads what it has not made itself."""
        return [Upper(target.name, Lake(target.lake, self.spark)) for target in self.settings.upstreams]

    @cached_property
    def graph(self) -> Graph:
        pipelines = load_pipelines(self.folder, self.settings.pipelines, pools=self.settings.pools)
        datasets = [dataset for pipeline in pipelines for dataset in pipeline.datasets]
        check_computes(datasets, self.settings.target)
        if self._share == 0:
            datasets = [allow_empty(dataset) for dataset in datasets]
        lakes = [self.lake, *(upper.lake for upper in self.uppers)]
        graph = Graph(datasets, adopted={name for lake in lakes for name in lake.names()})
        for lake in lakes:
            lake.declare({d.name: d.layer for d in datasets})
            lake.declare({name: output.layer for d in datasets for name, output in d.outputs.items()})
        if self._share is None:  # a trial keeps everything in its own lake
            outside = {d.name: placed_destination(d.into, self.folder) for d in datasets if d.into is not None}
            self.lake.send_outside(outside, self.settings.target.connections)
            self.lake.place({d.name: placed_at(d.location, self.folder) for d in datasets if d.location is not None})
        return graph

    @cached_property
    def codes(self) -> dict[str, str]:
        known = self.graph.datasets
        above = {name: known.get(d.inputs[0].dataset) for name, d in known.items() if d.replica is not None}
        return {name: code_hash(dataset, original=above.get(name)) for name, dataset in known.items()}

    def spark(self) -> SparkSession:
        """The session: the one that was given, or one made for the target."""
        if self._parent is not None:
            return self._parent.spark()
        let_functions_travel()
        if self._given is not None:
            from lakewright.runtime.session import check_session

            return check_session(self._given)
        with self._starting:  # threads that ask first at once share one session
            if self._started is None:
                self._started = self._start_session()
            return self._started

    def _start_session(self) -> SparkSession:
        from lakewright.runtime.connect import is_connect
        from lakewright.runtime.jars import ensure_jars
        from lakewright.runtime.session import spark_session

        if not is_connect(self.settings.target.master):  # a Connect server brings its own
            ensure_jars(lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201
        return spark_session(self.settings.target, f"lakewright {self.settings.name}")

    def close(self) -> None:
        """Let go of the sessions that we started, and close the store."""
        for lake in (self.__dict__.get("lake"), *(upper.lake for upper in self.__dict__.get("uppers", ()))):
            if lake is not None:
                lake.close()
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

    def plan(
        self,
        select: Sequence[str] = (),
        *,
        at: str | date | datetime | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> Plan:
        """What a run would do now, and why. Changes no data, and starts no Spark where the tables are local; the store
        may learn of commits that others have made.
        """
        run_time, names = self._time(at), self.graph.select(select)
        wish = replace(self._wish(run_time), parameters=checked_parameters(self.graph, names, parameters))
        refuse_forgotten(self.lake, self.store, self.graph.order)
        shop = self._shop(Run("plan", "plan", run_time), "plan")
        return plan_run(shop, self.uppers, names, wish)

    def run(
        self,
        select: Sequence[str] = (),
        *,
        at: str | date | datetime | None = None,
        again: bool = False,
        slices: Sequence[str] = (),
        reason: Reason = "manual",
        event: Event | None = None,
        run_id: str | None = None,
        listener: Listener = lambda event: None,
        parallel: int | None = None,
        wait_seconds: float = 0.0,
        sample: float | None = None,
        empty: bool = False,
        order: Order | None = None,
        parameters: Mapping[str, str] | None = None,
        asked_at: datetime | None = None,
    ) -> RunSummary:
        """Take what is new, then make what is due, missing or late.

        With ``sample`` (a share of the rows) or ``empty`` (none of them) the project is tried out in a throw-away
        lake beside the real one, of which nothing changes. With ``event`` sources of files take those that it names;
        a ``run_id`` that is known is a further attempt of that run. An ``order`` is a run that somebody else schedules.
        """
        if sample is not None or empty:
            if empty and sample is not None:
                raise ConfigurationError("A run is on a sample or on no rows, not on both. Nothing was started.")
            if again or slices:
                raise ConfigurationError(
                    "A run on a sample or on no rows begins with an empty lake of its own: there is nothing to repeat. "
                    "Nothing was started."
                )
            share = 0.0 if empty else sample or 0.0
            return self._try_out(share, select, at, reason, listener, parallel, parameters)
        run_time = self._time(at)
        names = self.graph.select(select)
        wish = replace(self._wish(run_time), parameters=checked_parameters(self.graph, names, parameters))
        if again:
            wish = replace(wish, again=wishes.again(self.graph, self.store, names, slices))
        if order is not None:
            settings = pipeline_of(order, self.graph, names)
            if (why := passed_over(order, settings, self.graph, self.store, run_time, now=self._now())) is not None:
                return RunSummary(order.run_id, "ok", notes=[Note(why)])
            refuse_too_early(order, settings, self.store, run_time, folder=self.folder, now=self._now())
            wish = fulfil(order, self.graph, self.store, names, wish)
            reason, run_id = order.recorded, order.run_id
        return self._run(
            names, wish, reason, listener, parallel, wait_seconds, event=event, run_id=run_id, asked_at=asked_at
        )

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
        parameters: Mapping[str, str] | None = None,
        run_id: str | None = None,
    ) -> RunSummary:
        """Make slices of event time ``[start, end)`` again, from bronze, with everything below them.

        A pipeline that follows the runs of another one, and declines its backfills or asks, is left out.
        """
        names, wish = self.backfill_wish(
            start, end, select=select, sources=sources, outdated=outdated, at=at, parameters=parameters
        )
        return self._run(names, wish, "backfill", listener, parallel, wait_seconds, take_new=False, run_id=run_id)

    def backfill_wish(
        self,
        start: str | date | datetime | None = None,
        end: str | date | datetime | None = None,
        *,
        select: Sequence[str] = (),
        sources: bool = False,
        outdated: bool = False,
        at: str | date | datetime | None = None,
        parameters: Mapping[str, str] | None = None,
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
            span = Interval(parse_time(start), run_time if end is None else parse_time(end))
        names, wish = wishes.backfill(
            self.graph,
            self.store,
            run_time=run_time,
            span=span,
            select=select,
            sources=sources,
            outdated=outdated,
        )
        return names, replace(wish, parameters=checked_parameters(self.graph, names, parameters))

    def plan_backfill(self, names: Sequence[str], wish: Wish) -> Plan:
        """What a backfill would make; changes no data."""
        shop = self._shop(Run("plan", "plan", wish.run_time), "plan")
        return plan_backfill(shop, self.uppers, names, wish)

    def retry(
        self,
        *,
        listener: Listener = lambda event: None,
        parallel: int | None = None,
        wait_seconds: float = 0.0,
    ) -> RunSummary:
        """Go on with the last run that did not succeed: its failed datasets and everything below them."""
        last = next((r for r in self.store.runs.latest(limit=50) if r.state not in ("running", "skipped")), None)
        if last is None:
            raise ConfigurationError("There is no run to retry yet.", hint="`lakewright run` starts one.")
        if last.state == "ok":
            raise ConfigurationError(f"The last run ({last.run_id}) succeeded: there is nothing to retry.")
        fine = ("ok", "recovered", "skipped")
        broken = [s.dataset for s in self.store.steps.of_run(last.run_id) if s.state not in fine]
        names = self.graph.closure([n for n in broken if n in self.graph.datasets], down=True) or set(self.graph.order)
        order = [name for name in self.graph.order if name in names]
        told = last.options.get("parameters")
        wish = replace(self._wish(last.run_time), parameters=dict(told) if isinstance(told, dict) else {})  # type: ignore[arg-type]
        return self._run(order, wish, "manual", listener, parallel, wait_seconds)

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
        event: Event | None = None,
        run_id: str | None = None,
        asked_at: datetime | None = None,
    ) -> RunSummary:
        pipelines = {
            self.graph[name].pipeline: admission_of(self.graph[name].settings, self.settings.pools) for name in names
        }
        refuse_forgotten(self.lake, self.store, self.graph.order)
        before = None if run_id is None else self.store.runs.get(run_id)
        attempt = 1 if before is None else before.attempt + 1
        run_id = run_id or new_run_id(self._now())
        told = known_parameters(self.graph, names, wish.parameters)
        run = Run(run_id, ",".join(sorted(pipelines)), wish.run_time, reason, attempt, event=event, parameters=told)
        options: dict[str, JsonValue] = {"select": list(names)}
        if wish.parameters:
            options["parameters"] = dict(wish.parameters)
        if event is not None:
            options["event"] = event.envelope()
        if wish.backfill is not None:
            options["backfill"] = [wish.backfill.start.isoformat(), wish.backfill.end.isoformat()]
        if wish.again:
            options["again"] = {name: [*sorted(slices)] for name, slices in wish.again.items()}
        computes = Computes(self.settings, parallel=parallel or self.settings.target.parallel)
        with (
            keep(
                self.store,
                run,
                pipelines,
                now=self._now,
                interrupt=lambda: self._interrupt(run, computes),
                wait_seconds=wait_seconds,
            ) as keeper,
            computes,
        ):
            shop = replace(self._shop(run, keeper.owner.owner_id), stopping=keeper.stop.is_set)
            asked = asked_at or keeper.asked_at
            self.store.runs.start(run, owner_id=keeper.owner.owner_id, options=options, now=self._now(), asked_at=asked)
            summary = RunSummary(run.run_id, state="failed")
            claimed: list[str] = []
            try:
                borrow(self.graph, self.lake, self.uppers, self.store)
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
                for name in (one for one in self.graph.datasets if self.graph[one].is_source):
                    settle_corrections(shop, name)
                lent, claimed = take_over(shop, self.uppers, names)
                if self._share != 0:
                    index(shop, lent, names)
                read = {one for name in names for given in self.graph[name].inputs for one in given.datasets}
                refuse_lost_histories(self.lake, self.store, {*names, *read} - lent.keys())
                notice(self.lake, self.store, self.graph.owners.keys() - lent.keys())
                if lent:
                    notes.append(_read_elsewhere(self.graph, lent, names))
                notes += [Note(text) for text in wish.notes]
                for note in notes:
                    listener(note)
                decider = OneSliceEach if self._share == 0 else decider_for(self.graph, run, names)
                runner = Runner(
                    shop,
                    decider(
                        self.graph,
                        self.store,
                        self.codes,
                        recorded_schemas(self.graph, self.lake),
                        frozen_slices(self.lake, shop.connections),
                    ),
                    parallel=parallel or self.settings.target.parallel,
                    computes=computes,
                    listener=listener,
                    stop=keeper.stop,
                    take_new=take_new,
                )
                # A source stays untaken as long as somebody else takes it, or nothing is to be read at all.
                skipped = self.graph.datasets.keys() if self._share == 0 else lent.keys()
                summary = runner.run([n for n in names if not (self.graph[n].is_source and n in skipped)], wish)
                summary.notes[:0] = notes
                for problem in deliver(shop):
                    summary.notes.append(Note(problem, "warning"))
                    listener(summary.notes[-1])
                for finding in self.store.findings.tell(FOREIGN, run_id=run.run_id):
                    summary.notes.append(Note(f"{finding.message} {finding.cure}", "warning"))
                    listener(summary.notes[-1])
            finally:
                let_go(self.lake, self.store, claimed)
                error = keeper.why or (str(summary.errors[0]) if summary.errors else None)
                self.store.runs.finish(run.run_id, summary.state, now=self._now(), error=error, summary=_brief(summary))
        return summary

    def _try_out(
        self,
        share: float,
        select: Sequence[str],
        at: str | date | datetime | None,
        reason: Reason,
        listener: Listener,
        parallel: int | None,
        parameters: Mapping[str, str] | None,
    ) -> RunSummary:
        """Run on a share of the rows that come in (0: none), on a throw-away target that reads from this one."""
        target = self.settings.target
        clear_trial(target, share)
        with Project(self.folder, target=target.name, spark=self._given, now=self._now) as trial:
            trial.settings = trial_settings(self.settings, share)
            trial._parent, trial._share = self, share
            names = trial.graph.select(select)
            wish = replace(trial._wish(trial._time(at)), parameters=checked_parameters(trial.graph, names, parameters))
            summary = trial._run(names, wish, reason, listener, parallel, 0.0)
        summary.notes.append(trial_note(target, share))
        listener(summary.notes[-1])
        return summary

    # Streams

    def run_continuous(self, select: Sequence[str] = (), *, listener: Listener = lambda event: None) -> WorkerSummary:
        """Keep the streams of the project (or those selected) going until it is stopped; runs go on beside it."""
        datasets = self._streams(select)
        running = self._given is not None or self._started is not None
        if (name := continuous_compute(self.settings.target, datasets, running=running)) is not None:
            self.settings = with_compute(self.settings, name)
        pipelines = ",".join(sorted({dataset.pipeline for dataset in datasets}))
        run = Run(new_run_id(self._now()), pipelines, self._now())
        with keep(self.store, run, {}, now=self._now, interrupt=lambda: None) as keeper:
            shop = replace(self._shop(run, keeper.owner.owner_id), stopping=keeper.stop.is_set)
            options: dict[str, JsonValue] = {"continuous": True, "select": [dataset.name for dataset in datasets]}
            self.store.runs.start(run, owner_id=keeper.owner.owner_id, options=options, now=self._now())
            summary = WorkerSummary(run.run_id)
            try:
                recover_dead_steps(shop)
                summary = Worker(shop, stop=keeper.stop, listener=listener).run(datasets)
            finally:
                error = str(summary.failed[0].error) if summary.failed else None
                self.store.runs.finish(run.run_id, summary.state, now=self._now(), error=error)
        return summary

    def streams(self, select: Sequence[str] = ()) -> list[StreamState]:
        """How the streams of the project stand: how far each is, and how far that is behind. Starts none."""
        return states_of(self._shop(Run("look", "look", self._now()), "look"), self._streams(select))

    def capture(self, name: str) -> CaptureFeed | LogFeed:
        """The capture behind a source: what it lacks, how it and its slot stand, and its end. Asks nobody yet."""
        return capture_of(self._shop(Run("look", "look", self._now()), "look"), self.graph[name])

    def rewind(
        self,
        name: str,
        *,
        to: str | date | datetime | None = None,
        lost: IfRowsLost = "refuse",
        dry_run: bool = False,
    ) -> RewindSummary:
        """Let a stream read again from a time on (without one: from its beginning); the next run reads.

        Rows that the source could not give again are not deleted: nothing is changed, unless ``lost`` is "keep" (what
        is still held as a whole is read again) or "delete" (they are lost for good).
        """
        dataset = self.graph.stream(name)
        with self._exclusive([]) as shop:
            recover_dead_steps(shop)
            return rewind_stream(shop, dataset, to=None if to is None else parse_time(to), lost=lost, dry_run=dry_run)

    def move_checkpoint(self, name: str, to: str) -> MoveSummary:
        """Let a stream keep its progress below another folder, or URI, and go on from where it is."""
        dataset = self.graph.stream(name)
        place = to if "://" in to else str((self.folder / to).resolve())
        with self._exclusive([]) as shop:
            recover_dead_steps(shop)
            return move_checkpoint(shop, dataset, place)

    def _streams(self, select: Sequence[str]) -> list[Dataset]:
        found = [self.graph[name] for name in self.graph.select(select) if self.graph[name].is_stream]
        if not found:
            what = f"{' and '.join(select)}: not" if select else "No dataset of this project is"
            raise ConfigurationError(f'{what} a stream. Declare one with mode="stream".')
        return found

    # Events

    def listen(
        self, pipelines: Sequence[str] = (), *, once: bool = False, listener: Listener = lambda event: None
    ) -> ListenSummary:
        """Start runs when events come, until it is stopped; with ``once`` for those that are there, and end.

        Spark starts with the first event that is of interest.
        """
        return listen(self, pipelines, once=once, listener=listener, now=self._now)

    def replay(
        self, event_id: str, *, trigger: str | None = None, listener: Listener = lambda event: None
    ) -> dict[str, str]:
        """Start a dead-lettered event's runs after all: pipeline -> run. Raises where one of them does not succeed."""
        return replay_event(self, event_id, trigger=trigger, listener=listener, now=self._now)

    # Dead letters

    def dead_letters(self, selection: Selection | None = None) -> DataFrame | None:
        """The dead letters that are meant (without a selection: all that are open), with their state and history.

        None where there never was one.
        """
        return select_letters(self._shop(Run("look", "look", self._now()), "look"), selection or Selection())

    def count_dead_letters(self, *, since: str | date | datetime | None = None) -> list[LetterCount]:
        """How many dead letters of each dataset and rule are open, corrected and retired, and new since a time."""
        shop = self._shop(Run("look", "look", self._now()), "look")
        counts = count_letters(shop, since=None if since is None else parse_time(since))
        never = {name for name, dataset in self.graph.datasets.items() if never_replayed(dataset)}
        return [replace(one, replay="never") if one.dataset in never else one for one in counts]

    def replay_dead_letters(
        self,
        selection: Selection,
        edits: Edits | None = None,
        *,
        at: str | date | datetime | None = None,
        dry_run: bool = False,
        out_of_order: bool = False,
        listener: Listener = lambda event: None,
        parallel: int | None = None,
        wait_seconds: float = 0.0,
    ) -> ReplaySummary:
        """Put dead letters through the current code again, as they are or with ``edits``; their slices are made anew.

        Only shows what would be touched with ``dry_run``.
        """
        if selection.dataset is None:
            raise ConfigurationError("A replay needs to know whose dead letters are meant. Nothing was changed.")
        dataset = self.graph[selection.dataset]
        refuse_never_replayed(dataset)  # before anybody waits for a run to end
        above = {self.graph.owners.get(given.dataset, given.dataset) for given in dataset.inputs}
        pipelines = {dataset.pipeline, *(self.graph[name].pipeline for name in above if name in self.graph.datasets)}
        with self._exclusive(sorted(pipelines)) as shop:
            recover_dead_steps(shop)
            for name in {dataset.name, *above} & self.graph.datasets.keys():
                settle_corrections(shop, name)
            summary, found = plan_replay(shop, selection, edits or Edits())
            if dry_run or not summary.records:
                return summary
            write_corrections(shop, selection, summary, found, out_of_order=out_of_order)
            wish = replace(self._wish(self._time(at)), again=live_slices(shop, summary.reach))
        if names := [name for name in self.graph.order if summary.reach.slices.get(name)]:
            summary.run = self._run(names, wish, "replay", listener, parallel, wait_seconds, take_new=False)
        summary.still_open = count_still_open(shop, dataset.name, shop.run.run_id)
        summary.corrected = summary.records - summary.unchanged - summary.still_open
        return summary

    def retire_dead_letters(self, selection: Selection, *, because: str) -> int:
        """Close open dead letters that nobody will correct; how many there were."""
        with self._exclusive([]) as shop:
            return retire_letters(shop, selection, because=because)

    # Repairing

    def rollback(self, name: str, *, to: int | None = None, dry_run: bool = False) -> RollbackSummary:
        """Bring a dataset (and its step's other outputs) back to a version; by default before its last run."""
        dataset = self.graph[name]
        with self._exclusive([dataset.pipeline]) as shop:
            if name in self.lake.borrowed:
                raise ConfigurationError(
                    f"{name} is read from {self.lake.resolve(name)}, which belongs to another target. "
                    "Nothing was changed.",
                    hint="Roll it back there.",
                )
            recover_dead_steps(shop)
            return roll_back(shop, dataset, to=to, dry_run=dry_run)

    def repartition(self, name: str, *, drop: Sequence[str] = (), dry_run: bool = False) -> RepartitionSummary:
        """Lay a dataset's table out by the partition columns that it declares now; its rows stay as they are."""
        dataset = self.graph[name]
        with self._exclusive([dataset.pipeline]) as shop:
            recover_dead_steps(shop)
            return lay_out_anew(shop, dataset, drop=drop, dry_run=dry_run)

    def maintain(
        self, select: Sequence[str] = (), *, everything: bool = False, dry_run: bool = False, vacuum: bool = True
    ) -> MaintenanceSummary:
        """Join the small files of tables, and delete those that are no longer used; runs and streams go on beside it.

        The datasets that declare a policy (``maintenance=Compactor()``), or ``everything``, the lake's own tables too.
        Dead letters that are older than their dataset keeps them are retired.
        """
        names = self.graph.select(select)
        run = Run(new_run_id(self._now()), "", self._now(), "manual")
        with keep(self.store, run, {}, now=self._now, interrupt=lambda: self._interrupt(run)) as keeper:
            borrow(self.graph, self.lake, self.uppers, self.store)
            shop = replace(self._shop(run, keeper.owner.owner_id), stopping=keeper.stop.is_set)
            or_none = keeps_letters_short(self.graph, names)
            chosen = choose_tables(shop, names, selected=bool(select), everything=everything, or_none=or_none)
            summary = maintain_tables(shop, chosen, dry_run=dry_run, vacuum=vacuum)
            summary.outcomes += keep_letters_short(shop, names, dry_run=dry_run)
            return summary

    def forget_arrival(self, name: str, number: int) -> str:
        """Give up what a source no longer holds of a recorded arrival; tells what becomes of it.

        What is left of an arrival of files or of a topic is read by the next run. Any other counts as settled, without
        rows.
        """
        dataset = self.graph[name]
        with self._exclusive([dataset.pipeline]) as shop:
            recover_dead_steps(shop)
            arrival = next((one for one in shop.store.arrivals.pending(name) if one.number == number), None)
            if arrival is None or dataset.source is None:
                raise ConfigurationError(f"{name} has no arrival {number} that waits to be read.")
            return give_up(shop, dataset, arrival, source_context(shop, dataset))

    def adopt(self, path: str | Path, name: str) -> AdoptSummary:
        """Let a name stand for an existing Delta table."""
        declared = name in self.graph.datasets
        if name in self.store.origins.all():
            self.store.move([name], None)
        summary = adopt_table(self.lake, self.store, str(path), name, declared=declared)
        self.__dict__.pop("graph", None)
        return summary

    def rebuild_store(self) -> RebuildSummary:
        """Fill the store anew from the lake's logs."""
        with self._exclusive(sorted({d.pipeline for d in self.graph.datasets.values()})) as shop:
            recover_dead_steps(shop)  # a receipt that is there already would hide what they had not done
            return rebuild_store(shop)

    # Reading

    def ready(self, name: str, slice_id: str = "whole") -> Readiness:
        """Whether a slice is complete and may be read, and since when. Starts no Spark where the tables are local."""
        return ask_readiness(self._shop(Run("look", "look", self._now()), "look"), self.uppers, name, slice_id)

    def show(self, name: str, *, limit: int = 20) -> DataFrame:
        """A dataset's rows, without system columns."""
        if name == COMPLETENESS and name not in self.graph.owners:
            return completeness_frame(self.lake, self.store, self.graph).limit(limit)
        if name in _VIEWS and name not in self.graph.owners:
            return self._view(name).limit(limit)
        self._open_lakes()
        return self.lake.read(name).limit(limit)

    def sql(self, query: str) -> DataFrame:
        """A query over the project's datasets by name, and ``dead_letters``, ``dead_letter_life``, ``late_rows``,
        ``repeats`` and ``completeness``.
        """
        self._open_lakes()
        session = self.lake.session()
        for name in [*self.lake.names(), *self.graph.owners]:
            if name in query and name not in self.lake.outside and self.lake.log(name).exists():
                self.lake.read(name).createOrReplaceTempView(name)
        if COMPLETENESS in query and COMPLETENESS not in self.graph.owners:
            completeness_frame(self.lake, self.store, self.graph).createOrReplaceTempView(COMPLETENESS)
        for name, table in _VIEWS.items():
            if name in query and name not in self.graph.owners and self.lake.log(table).exists():
                self._view(name).createOrReplaceTempView(name)
        return session.sql(query)

    # Inner

    def _view(self, name: str) -> DataFrame:
        if name in ("dead_letters", "repeats"):
            return rows_that_count(self.lake, self.store, self.graph, _VIEWS[name])
        if name == "late_rows":
            return still_late(self.lake, self.store, self.graph)
        return self.lake.read(_VIEWS[name], system_columns=True)

    def _open_lakes(self) -> None:
        """Let every name be read where its table lies."""
        graph = self.graph
        if self.uppers:
            borrow(graph, self.lake, self.uppers, self.store)

    def _wish(self, run_time: datetime) -> Wish:
        target = self.settings.target
        return Wish(run_time, outdated=target.outdated == "run", outdated_limit=target.outdated_limit)

    def _time(self, at: str | date | datetime | None) -> datetime:
        return self._now() if at is None else parse_time(at)

    def _shop(self, run: Run, owner_id: str) -> Workshop:
        return Workshop(
            graph=self.graph,
            lake=self.lake,
            store=self.store,
            run=run,
            owner_id=owner_id,
            project=self.folder,
            codes=self.codes,
            now=self._now,
            sample=self._share,
            connections=self.settings.target.connections,
            project_name=self.settings.name,
        )

    def _interrupt(self, run: Run, computes: Computes | None = None) -> None:
        if computes is not None:
            computes.interrupt(run.run_id, stop=True)
        self.lake.interrupt(run.run_id)

    @contextmanager
    def _exclusive(self, pipelines: Sequence[str]) -> Iterator[Workshop]:
        """Work outside a run, with the pipelines' leases held."""
        run = Run(new_run_id(self._now()), ",".join(pipelines), self._now(), "manual")
        alone = dict.fromkeys(pipelines, 0)
        with keep(self.store, run, alone, now=self._now, interrupt=lambda: self._interrupt(run)) as keeper:
            borrow(self.graph, self.lake, self.uppers, self.store)
            yield self._shop(run, keeper.owner.owner_id)


def new_run_id(now: datetime) -> str:
    """An id that sorts by time and is unique: ``20260105-070000-3f9a``."""
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _read_elsewhere(graph: Graph, lent: Mapping[str, Upper], names: Sequence[str]) -> Note:
    """Which of the datasets that a run asks for come from other targets."""
    asked = {*names, *(one for name in names for given in graph[name].inputs for one in given.datasets)}
    by_target: dict[str, list[str]] = {}
    for name in sorted(asked & lent.keys()):
        by_target.setdefault(lent[name].target, []).append(name)
    return Note("; ".join(f"read from {target}: {', '.join(found)}" for target, found in by_target.items()))


def _brief(summary: RunSummary) -> dict[str, Any]:
    return {
        "made": len(summary.made),
        "failed": summary.failed,
        "skipped": summary.skipped,
        "fresh": summary.fresh,
        "seconds": round(summary.seconds, 3),
    }
