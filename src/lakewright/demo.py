"""The demo: three days of blog visits with known faults, from landing files to gold tables.

Every figure that the platform accounts for stands beside the generator's truth, so that anyone can see that no row
was lost and none counted twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewright.demo_accounts import show_accounts
from lakewright.demo_project import load_generator, platform_folder, prepare, shown
from lakewright.errors import InterruptedRun
from lakewright.pipelines.progress import DatasetDone, Event, Note, RunSummary, SliceDone
from lakewright.pipelines.project import Project

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "DAYS",
    "after",
    "generate_visits",
    "platform_folder",
    "repair",
    "run_demo",
    "run_night",
    "say_the_end",
    "succeeded",
    "teller",
]

DAYS = 3
_START = date(2026, 1, 1)


def run_demo(folder: Path, *, visits: int, days: int = DAYS, console: Console) -> int:
    """Generate, run day by day, account, deliver late files, repair exactly what they touched; 0 if all agrees."""
    began = time.monotonic()
    home = prepare(folder)
    generator, truth = generate_visits(home, visits, days, console)
    with Project(home) as project:
        console.print("[bold]2. Starting Spark[/] (once; everything below runs in this session)")
        project.spark()
        for day in truth.recipe.dates:
            generator.deliver(home, day)
            console.print(f"[bold]3. Files of {day} land, the run of that night begins[/]")
            if not run_night(project, day, console):
                return 1
        console.print("[bold]4. Every row accounted for[/] (ours = the generator's truth)")
        agreed = show_accounts(project, truth, console, late=False)
        agreed &= repair(project, truth, console, lambda day: generator.deliver_late(home, [day]))
    say_the_end(console, agreed, began)
    console.print(
        f"\nNext:\n  cd {shown(home)}\n  lakewright plan\n  lakewright show daily_pages\n"
        '  lakewright sql "SELECT rule, count(*) FROM dead_letters GROUP BY rule"\n'
        "  lakewright backfill --from 2026-01-02 --dry-run"
    )
    return 0 if agreed else 1


def generate_visits(home: Path, visits: int, days: int, console: Console) -> tuple[Any, Any]:
    """The generator, and the truth about what it has made; nothing is delivered yet."""
    generator: Any = load_generator()
    console.print(f"[bold]1. Generating {visits:,} visits of {days} days, with known faults[/] in {shown(home)}")
    return generator, generator.generate(home, visits=visits, days=days, start=_START, seed=7, replace=True)


def run_night(project: Project, day: str, console: Console, select: Sequence[str] = ()) -> bool:
    """The scheduled run after a day; whether it succeeded."""
    return succeeded(project.run(select, at=after(day), reason="scheduled", listener=teller(console)), console)


def repair(
    project: Project,
    truth: Any,
    console: Console,
    bring_late: Callable[[str], object],
    *,
    step: int = 5,
    select: Sequence[str] = (),
) -> bool:
    """Bring late visits of the first day, tell what they touch, and make exactly that again; whether all agrees."""
    first, last = truth.recipe.dates[0], truth.recipe.dates[-1]
    bring_late(first)
    at = after(last, days=2)
    console.print(f"[bold]{step}. Visits of {first} come late: which slices are touched?[/]")
    if not succeeded(project.run(["raw_visits"], at=at, listener=teller(console)), console):
        return False
    expected = set()
    for plan in project.plan(select, at=at).datasets:
        for state in plan.to_make:
            expected.add((plan.dataset.name, state.slice.id))
            console.print(f"   {plan.dataset.name} {state.slice.id} is {state.status}: {state.reason}")
    console.print(f"[bold]{step + 1}. Repairing exactly those[/]")
    summary = project.run(select, at=at, reason="late", listener=teller(console))
    if not succeeded(summary, console):
        return False
    made = {(outcome.dataset, outcome.slice_id) for outcome in summary.made}
    # What else was made lies below those: it is of the day that the visits are of.
    exactly = expected <= made and all(slice_id == first for _, slice_id in made - expected)
    return show_accounts(project, truth, console, late=True) and exactly


def say_the_end(console: Console, agreed: bool, began: float) -> None:
    seconds = time.monotonic() - began
    console.print(f"\n{'All figures agree' if agreed else 'SOME FIGURES DIFFER'}. Done in {seconds:.0f} s.")


def after(day: date | str, days: int = 1) -> date:
    """The time of a run some days after the beginning of a day."""
    return date.fromisoformat(str(day)) + timedelta(days=days)


def teller(console: Console) -> Callable[[Event], None]:
    """Tells what a run does, a line each."""

    def tell(event: Event) -> None:
        if isinstance(event, SliceDone) and event.outcome.error is None:
            done = event.outcome
            rows = "" if done.receipt is None or done.receipt.rows is None else f", {done.receipt.rows:,} rows"
            console.print(f"   {done.dataset} {done.slice_id} {done.state} {done.seconds:.1f} s{rows}", highlight=False)
        elif isinstance(event, Note):
            console.print(f"   {event.message}", highlight=False, markup=False)
        elif isinstance(event, DatasetDone) and event.state in ("failed", "skipped"):
            told = f": {event.detail}" if event.detail else ""
            console.print(f"   {event.dataset} {event.state}{told}", highlight=False, markup=False)

    return tell


def succeeded(summary: RunSummary, console: Console) -> bool:
    """Whether a run has; what went wrong is shown."""
    if summary.state == "interrupted":
        raise InterruptedRun("Interrupted.")
    for error in summary.errors:
        console.print(f"error: {error}", style="red", markup=False)
    return summary.state == "ok"
