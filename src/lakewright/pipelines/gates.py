"""Gates: a time of a schedule is not run before the datasets that it waits for are ready for its date.

They are asked at every look of a scheduler, and in between nobody waits: neither a process nor a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from lakewright.errors import LakewrightError
from lakewright.lake.log import DeltaLog
from lakewright.model.times import Grid, cell_interval, cell_of, parse_duration
from lakewright.patterns.data_flow.isolated_sequencer import WhenReady, dataset_not_yet
from lakewright.pipelines.ready import known_readiness
from lakewright.pipelines.timetables import Timetable
from lakewright.runtime.settings import load_settings
from lakewright.store import Store

__all__ = ["Held", "Judged", "date_of", "judge", "not_ready"]


@dataclass(frozen=True, slots=True)
class Held:
    """A time that is not run yet."""

    time: datetime
    reason: str
    overdue: bool
    """Whether it was waited for as long as it may take."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Which times may begin, and which wait."""

    ready: tuple[datetime, ...]
    held: tuple[Held, ...] = ()


def judge(table: Timetable, times: Sequence[datetime], store: Store, now: datetime) -> Judged:
    """Ask the gates of a pipeline for each of its due times, in order.

    Where one run makes everything up to its time, nothing behind a time that waits may begin.
    """
    if not table.waits_for:
        return Judged(tuple(times))
    ready: list[datetime] = []
    held: list[Held] = []
    for time in times:
        found = _held(table, time, store, now)
        if found is None:
            ready.append(time)
            continue
        held.append(found)
        if table.concurrency == 1 or table.depends_on_past:
            break
    return Judged(tuple(ready), tuple(held))


def date_of(time: datetime, grid: Grid) -> str:
    """The newest hour, day, week or month that has ended at a time."""
    return cell_of(cell_interval(cell_of(time, grid)).start - timedelta(microseconds=1), grid)


def not_ready(wait: WhenReady, slice_id: str, store: Store) -> str | None:
    """Why a dataset may not be read for a date; None where it may. Runs no job."""
    try:
        if wait.is_here:
            known = known_readiness(store, wait.dataset, slice_id)
            return "it was not made yet" if known is None else None if known.ready else known.reason
        if wait.flag is not None:
            return dataset_not_yet(slice_id, flag=wait.flag)
        return dataset_not_yet(slice_id, log=DeltaLog(wait.table or _table_in(wait)))
    except (LakewrightError, OSError) as error:
        return f"it cannot be asked: {error}"


def _held(table: Timetable, time: datetime, store: Store, now: datetime) -> Held | None:
    slice_id = date_of(time, table.grid)
    for wait in table.waits_for:
        if (reason := not_ready(wait, slice_id, store)) is None:
            continue
        overdue = wait.within is not None and now - time > parse_duration(wait.within)
        limit = f" within {wait.within}" if overdue else ""
        told = f"{wait.dataset} of {slice_id} is not ready{limit}: expected {wait.expected(slice_id)}; {reason}"
        return Held(time, told, overdue)
    return None


def _table_in(wait: WhenReady) -> str:
    """The table of a dataset of another project: that project's settings say where its lake is."""
    assert wait.project is not None
    settings = load_settings(Path(wait.project))
    lake = settings.target.lake_path
    if lake is None:
        raise LakewrightError(f"the lake of {wait.project} is not on this machine: name the table= itself")
    layers = [layer for layer in ("gold", "silver", "bronze") if (lake / layer / wait.dataset / "_delta_log").is_dir()]
    return str(lake / (layers[0] if layers else "silver") / wait.dataset)
