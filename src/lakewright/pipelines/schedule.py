"""Running what a schedule asks for: every due time once, in order, and a word when runs take too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, cast

from lakewright.errors import ConfigurationError, InterruptedRun, NotReady, UnknownNameError
from lakewright.model.runs import Run
from lakewright.pipelines.definitions import Settings
from lakewright.pipelines.due_followers import run_followers
from lakewright.pipelines.following import following_run_id
from lakewright.pipelines.gates import date_of, judge
from lakewright.pipelines.keeper import keep
from lakewright.pipelines.lag import lag_of
from lakewright.pipelines.progress import Listener, Note, Outcome, RunSummary
from lakewright.pipelines.scheduling import Facts, due_now, scheduled_run_id
from lakewright.pipelines.timetables import timetable_of

if TYPE_CHECKING:
    from lakewright.pipelines.project import Project

__all__ = ["due_runs", "follow_backfill", "make_times", "run_due"]


def due_runs(project: Project, until: datetime) -> list[tuple[datetime, Settings]]:
    """Each logical time that is due by a clock, with its pipeline, in order; those of paused pipelines are not.

    It begins after the last scheduled run that succeeded, so that a time whose run failed or died comes first. A
    pipeline that never ran begins at its ``start``, or, where it has none, with the newest due time alone.
    """
    pipelines = _settings(project)
    stored = project.store.schedules
    paused = {pause.pipeline for pause in stored.paused()}
    last_good = stored.last_good()
    found: list[tuple[datetime, Settings]] = []
    for name, settings in pipelines.items():
        if settings.schedule is None or name in paused:
            continue
        good = {name: stored.good_times(name, after=None)} if settings.runs.concurrency > 1 else {}
        times, _ = due_now(timetable_of(settings), Facts(last_good=last_good, good=good), until)
        found += [(time, settings) for time in times]
    order = list(pipelines)
    return sorted(found, key=lambda due: (due[0], order.index(due[1].pipeline)))


def _settings(project: Project) -> dict[str, Settings]:
    return {d.pipeline: d.settings for d in (project.graph[name] for name in project.graph.order)}


def run_due(
    project: Project, *, until: datetime, listener: Listener, parallel: int | None, wait_seconds: float
) -> list[RunSummary]:
    """Runs each due time; a pipeline whose run did not succeed is left for the next call, which begins there.

    One whose runs go on side by side is not: each of its times stands for itself. Then come those that follow others.
    """
    summaries: list[RunSummary] = []
    stopped: set[str] = set()
    for time, settings in due_runs(project, until):
        if settings.pipeline in stopped:
            continue
        if (held := _held(project, settings, time, until, listener)) is not None:
            summaries += held
            if settings.runs.concurrency == 1 or settings.runs.depends_on_past:
                stopped.add(settings.pipeline)  # one behind it would make what it waits for
            continue
        summary = _run(project, settings, time, None, listener, parallel, wait_seconds)
        if summary.state != "ok" and (settings.runs.concurrency == 1 or settings.runs.depends_on_past):
            stopped.add(settings.pipeline)
        summaries.append(summary)
        if summary.state == "interrupted":
            return summaries

    def follow(settings: Settings, time: datetime) -> RunSummary:
        return _run(project, settings, time, None, listener, parallel, wait_seconds)

    known = _settings(project)
    return summaries + run_followers(
        project.store, known, follow, until=until, folder=project.folder, listener=listener
    )


def _held(
    project: Project, settings: Settings, time: datetime, now: datetime, listener: Listener
) -> list[RunSummary] | None:
    """None where a time may be run; else the run that has failed, if it was waited for as long as it may take."""
    table = timetable_of(settings, folder=project.folder)
    judged = judge(table, [time], project.store, now)
    if not judged.held:
        return None
    (held,) = judged.held
    told = f"{settings.pipeline}: {time:%Y-%m-%d %H:%M} waits: {held.reason}."
    listener(Note(told, "warning" if held.overdue else "info"))
    if not held.overdue:
        return []
    run = Run(scheduled_run_id(settings.pipeline, time), settings.pipeline, time, "scheduled", attempt=0)
    error = NotReady(f"{settings.pipeline}: {held.reason}. Nothing was started.")
    project.store.runs.settle(run, "failed", now=now, error=str(error), options={})
    failed = Outcome(settings.pipeline, date_of(time, table.grid), "failed", "", 0.0, error=error)
    return [RunSummary(run.run_id, "failed", outcomes=[failed], failed=[settings.pipeline])]


def follow_backfill(
    project: Project,
    pipeline: str,
    run_id: str,
    *,
    listener: Listener = lambda event: None,
    parallel: int | None = None,
) -> list[RunSummary]:
    """Repeat a backfill of the pipeline that this one follows, over the same event time, once."""
    settings = _settings(project)
    if pipeline not in settings:
        raise UnknownNameError("pipeline", pipeline, settings)
    mine = following_run_id(pipeline, run_id)
    done = project.store.runs.get(mine)
    if done is not None and done.state in ("ok", "skipped"):
        return []
    announced = project.store.runs.get(run_id)
    if announced is None or "backfill" not in announced.options:
        raise ConfigurationError(f"The run '{run_id}' is no backfill of event time. Nothing was started.")
    start, end = cast(list[str], announced.options["backfill"])
    select = [f"pipeline:{pipeline}"]
    return [project.backfill(start, end, select=select, run_id=mine, listener=listener, parallel=parallel)]


def make_times(
    project: Project,
    pipeline: str,
    times: Sequence[datetime],
    *,
    seen: Mapping[str, int] | None = None,
    since: datetime | None = None,
    listener: Listener = lambda event: None,
    parallel: int | None = None,
) -> list[RunSummary]:
    """Runs a pipeline for times that a scheduler found due, in one warm session, until one does not succeed.

    A time whose run has succeeded meanwhile is left out, and nobody else can make the same time at once: two schedulers
    that hand out one time make one run. Where a run of the pipeline is at work, it is refused. ``since`` is when the
    first of them could have been run.
    """
    known = {d.pipeline: d.settings for d in project.graph.datasets.values()}
    if pipeline not in known:
        raise UnknownNameError("pipeline", pipeline, known)
    store, now = project.store, project._now
    name = Run(f"times of {pipeline}", pipeline, now(), "scheduled")
    summaries: list[RunSummary] = []
    with keep(store, name, {}, now=now, interrupt=lambda: None) as keeper:
        for time in times:
            if keeper.stop.is_set():
                raise InterruptedRun(f"{pipeline}: {keeper.why}; what is left of its times is due again.")
            grant = keeper.lease(f"scheduled:{pipeline}", time.isoformat())
            done = store.runs.get(scheduled_run_id(pipeline, time, seen))
            if done is None or done.state != "ok":
                asked = None if since is None else max(since, time)
                summaries.append(_run(project, known[pipeline], time, seen, listener, parallel, 0.0, asked))
            if seen is not None and (not summaries or summaries[-1].state == "ok"):
                store.schedules.see(pipeline, seen, now=now())
            keeper.release(grant)
            if summaries and summaries[-1].state != "ok":
                break
    return summaries


def _run(
    project: Project,
    settings: Settings,
    time: datetime,
    seen: Mapping[str, int] | None,
    listener: Listener,
    parallel: int | None,
    wait_seconds: float,
    asked_at: datetime | None = None,
) -> RunSummary:
    summary = project.run(
        [f"pipeline:{settings.pipeline}"],
        at=time,
        reason="scheduled",
        run_id=scheduled_run_id(settings.pipeline, time, seen),
        listener=listener,
        parallel=parallel,
        wait_seconds=wait_seconds,
        asked_at=asked_at,
    )
    if (note := lag_of(project.store, summary, settings, _settings(project), time)) is not None:
        summary.notes.append(note)
        listener(note)
    return summary
