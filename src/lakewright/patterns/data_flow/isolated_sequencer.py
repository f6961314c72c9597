"""Isolated Sequencer: put pipelines in sequence that cannot be one, because another team or schedule owns the other.

Problem:
    One team cleans the visits, another one makes dashboards of them. The second must not begin before the first has
    ended, and nothing in either pipeline says that the two belong together.
Guarantee:
    By data (`WhenReady`): a time is not run before the marker of its date is there, and holds no worker while it waits;
    after ``within`` it fails, and names the dataset, the date and the marker that was expected. By task (`After`): each
    run of the other pipeline that succeeds starts one run of the same logical time; one that failed, or was skipped,
    fails it at once. Whoever is waited for succeeds or fails by itself, and knows nothing of those who wait.
Consequences:
    - By data is the looser link: the marker is the only contract, and either side may change, pause, or be renamed. By
      task is the closer one: unknown names and circles are refused when the project is loaded.
    - Schedules differ: ``every="day"`` follows the first run of each new day and records the others as skipped; without
      it the schedule of the other pipeline is adopted.
    - A backfill of the other side is repeated for the same dates, unless ``backfills`` declines or asks.
    - The link is invisible from the other side: `lakewright consumers` shows who waits for what, and with ``--check``
      whether the other side still has what is waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, get_args

from lakewright.errors import ConfigurationError
from lakewright.model.outside import Log
from lakewright.model.slices import Slice
from lakewright.model.times import Grid, parse_duration
from lakewright.patterns.ingestion.commit_marker import find_data_commit
from lakewright.patterns.ingestion.readiness_marker import wait_until

__all__ = ["After", "Backfills", "WhenReady", "dataset_not_yet", "flag_of", "wait_for_dataset"]

Backfills = Literal["accept", "decline", "ask"]
_EVERY: tuple[Grid, ...] = ("hour", "day", "week", "month")


@dataclass(frozen=True, slots=True)
class After:
    """A schedule without a clock: the pipeline follows the scheduled runs of another one, time by time."""

    pipeline: str
    task: str | None = None
    """A dataset of that pipeline: it is enough that the run has not failed there. Without one the whole run counts."""
    every: Grid | None = None
    """Run once an hour, day, week or month, for the first time in the next one; the other times are skipped."""
    backfills: Backfills = "accept"
    """What becomes of a backfill of that pipeline: the same dates are made again, are not, or somebody is asked."""
    on_skipped: Literal["fail", "skip"] = "fail"
    """What a run of that pipeline that was skipped does to the run of the same time here."""

    def __post_init__(self) -> None:
        if not self.pipeline or not isinstance(self.pipeline, str):
            raise ConfigurationError('After: name the pipeline that is followed: After("devices_loader").')
        if self.every is not None and self.every not in _EVERY:
            raise ConfigurationError(f"After: every is one of {', '.join(_EVERY)}, not {self.every!r}.")
        if self.backfills not in get_args(Backfills):
            raise ConfigurationError(f"After: backfills is 'accept', 'decline' or 'ask', not {self.backfills!r}.")
        if self.on_skipped not in ("fail", "skip"):
            raise ConfigurationError(f"After: on_skipped is 'fail' or 'skip', not {self.on_skipped!r}.")


@dataclass(frozen=True, slots=True)
class WhenReady:
    """A dataset that must be ready for the date of a run, before the run begins.

    Without ``flag``, ``table`` and ``project`` it is one of this project, and its marker is the one in the store.
    """

    dataset: str
    flag: str | None = None
    """A file that its producer writes last: ``../visits/lake/_ready/clean_visits/{slice}/COMPLETED``."""
    table: str | None = None
    """The folder of its Delta table: a commit that carries rows of the date is the marker."""
    project: str | None = None
    """The folder of another Lakewright project, in whose lake its table lies."""
    within: str | None = None
    """How long after a time of the schedule it may take; then that time fails, and is still waited for."""

    def __post_init__(self) -> None:
        if not self.dataset or not isinstance(self.dataset, str):
            raise ConfigurationError('WhenReady: name the dataset: WhenReady("clean_visits").')
        if sum(one is not None for one in (self.flag, self.table, self.project)) > 1:
            raise ConfigurationError(
                "WhenReady: a dataset is told by flag, by table or by project, not by two of them."
            )
        if self.flag is not None:
            flag_of(self.flag, "2026-01-05")
        if self.within is not None:
            parse_duration(self.within)

    @property
    def is_here(self) -> bool:
        """Whether it is a dataset of this project."""
        return self.flag is None and self.table is None and self.project is None

    def expected(self, slice_id: str) -> str:
        """The marker in words."""
        if self.flag is not None:
            return f"the flag {flag_of(self.flag, slice_id)}"
        if self.table is not None:
            return f"a commit with rows of {slice_id} in {self.table}"
        where = "the store" if self.project is None else f"the project {self.project}"
        return f"a commit of {slice_id} in {where}"


def flag_of(flag: str, slice_id: str) -> str:
    """The flag file of a slice: ``{slice}``, ``{date}``, ``{date_nodash}`` and ``{hour}`` are filled in.

    >>> flag_of("landing/{date_nodash}/{hour}/_SUCCESS", "2026-01-05T07")
    'landing/20260105/07/_SUCCESS'
    """
    date, _, hour = slice_id.partition("T")
    try:
        filled = flag.format(slice=slice_id, date=date, date_nodash=date.replace("-", ""), hour=hour)
    except (LookupError, ValueError):
        raise ConfigurationError(
            f"'{flag}' is no flag: {{slice}}, {{date}}, {{date_nodash}} and {{hour}} can be filled in."
        ) from None
    if filled == flag:
        raise ConfigurationError(
            f"The flag '{flag}' is the same for every date: nothing would tell which one is ready.",
            hint=f"Name the date in it: {flag}/{{slice}}",
        )
    return filled


def dataset_not_yet(slice_id: str, *, flag: str | None = None, log: Log | None = None) -> str | None:
    """Why a slice of somebody else's dataset may not be read yet; None where it may. Runs no job.

    Its marker is a ``flag`` file, see `flag_of`, or a commit with rows of the slice in the ``log`` of its Delta table.
    """
    if flag is not None:
        return None if os.path.lexists(flag_of(flag, slice_id)) else "its flag is not there"
    if log is None:
        raise ConfigurationError("A dataset is ready by a flag or by a commit: give flag= or log=.")
    return None if find_data_commit(log, Slice.parse(slice_id).id) is not None else "no commit carries rows for it"


def wait_for_dataset(
    dataset: str,
    slice_id: str,
    *,
    flag: str | None = None,
    log: Log | None = None,
    at_most: str | timedelta,
    every: str | timedelta = "30 seconds",
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until a slice of somebody else's dataset is ready; `NotReady` names dataset, date and marker after a while.

    For a process of your own: it sleeps. In a pipeline ``waits_for=WhenReady(...)`` holds no process.

    >>> Path(folder, "2026-01-05").mkdir(parents=True)
    >>> Path(folder, "2026-01-05", "COMPLETED").touch()
    >>> wait_for_dataset("visits", "2026-01-05", flag=f"{folder}/{{slice}}/COMPLETED", at_most="1 hour")
    """
    how = WhenReady(dataset, flag=flag) if flag is not None else WhenReady(dataset, table=str(getattr(log, "path", "")))
    wait_until(
        lambda: dataset_not_yet(slice_id, flag=flag, log=log),
        what=f"{dataset} {slice_id} ({how.expected(slice_id)})",
        at_most=at_most,
        every=every,
        sleep=sleep,
        clock=clock,
    )


def resolve_marker(path: str, project: Path) -> str:
    """A flag or a folder that is relative to the project, as it is found from anywhere."""
    return path if os.path.isabs(path) or "://" in path else os.path.normpath(project / path)
