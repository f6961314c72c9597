"""The demo's sessions, beside those that plain Python makes of the same visits."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date, timedelta
from typing import Any

from lakewright.demo_project import load_part
from lakewright.model.times import parse_duration
from lakewright.pipelines.project import Project
from lakewright.pipelines.session_options import pending_of

__all__ = ["BATCH", "check_sessions", "figures_in", "true_figures"]

BATCH = "reading_sessions"
_FIGURES = """
    SELECT count(*) AS sessions, coalesce(sum(events), 0) AS visits,
           coalesce(sum(crc32(concat_ws('|', user_id, string(unix_millis(start_time)), string(unix_millis(end_time)),
                                        string(events), array_join(pages, ' ')))), 0) AS checksum
    FROM {name}
"""


def check_sessions(project: Project, truth: Any, late_days: Collection[str], table: Any) -> bool:
    """The sessions that the days so far have completed, against the truth; nothing where none was due yet."""
    made = project.store.receipts.live_slices(BATCH)
    if not made:
        return True
    part = load_part("generator.true_sessions")
    end = date.fromisoformat(max(made)) + timedelta(days=1)
    until_ms = part.millis(f"{end}T00:00:00Z")
    visits = part.kept_visits(project.folder, late_days=late_days)
    ours = figures_in(project, BATCH)
    wanted, going_on = true_figures(project, BATCH, visits, until_ms=until_ms)
    pending = project.store.receipts.live(pending_of(project.graph[BATCH]), max(made))
    still_open = None if pending is None else pending.rows
    same = ours == wanted and still_open == going_on
    pairs = zip(ours[:2], wanted[:2], strict=True)
    sessions, in_them = (f"{a:,} = {b:,}" if same else f"[red]{a} != {b}[/]" for a, b in pairs)
    told = f"{BATCH} to {max(made)}, {still_open} go on"
    table.add_row("silver to gold", told, in_them, *["-"] * 5, sessions, "-")
    return same


def figures_in(project: Project, name: str) -> tuple[int, int, int]:
    """Runs a job: how many sessions a table has, how many visits in them, and a sum over all that they tell."""
    (found,) = project.sql(_FIGURES.format(name=name)).collect()
    return found["sessions"], found["visits"], found["checksum"]


def true_figures(
    project: Project, name: str, visits: Iterable[Any], *, until_ms: int
) -> tuple[tuple[int, int, int], int]:
    """The same of the sessions that were over by then, by the gap that is declared; and how many went on."""
    part = load_part("generator.true_sessions")
    declared = project.graph[name].sessions
    assert declared is not None
    gap = parse_duration(declared.gap)
    begun = [one for one in part.sessions_of(visits, gap=gap) if one.start_ms < until_ms]
    over = [one for one in begun if one.end_ms + gap // timedelta(milliseconds=1) < until_ms]
    sessions, in_them, checksum = part.figures_of(over)
    return (sessions, in_them, checksum), len(begun) - len(over)
