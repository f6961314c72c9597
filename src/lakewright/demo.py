"""The demo: three days of blog visits with known faults, from landing files to gold tables.

Every figure that the platform accounts for stands beside the generator's truth, so that anyone can see that no row
was lost and none counted twice.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from datetime import date, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError
from lakewright.pipelines.accounts import Account, accounts_of
from lakewright.pipelines.progress import DatasetDone, Event, Note, RunSummary, SliceDone
from lakewright.pipelines.project import Project
from lakewright.pipelines.settle import NO_EVENT_TIME, UNREADABLE

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["platform_folder", "run_demo"]

_DAYS = 3
_START = date(2026, 1, 1)


def run_demo(folder: Path, *, visits: int, console: Console) -> int:
    """Generate, run day by day, account, deliver late files, repair exactly what they touched; 0 if all agrees."""
    began = time.monotonic()
    home = _prepare(folder)
    generator = _generator()
    console.print(f"[bold]1. Generating {visits:,} visits of {_DAYS} days, with known faults[/] in {_shown(home)}")
    truth = generator.generate(home, visits=visits, days=_DAYS, start=_START, seed=7, replace=True)
    with Project(home) as project:
        console.print("[bold]2. Starting Spark[/] (once; everything below runs in this session)")
        project.spark()
        for day in truth.recipe.dates:
            generator.deliver(home, day)
            console.print(f"[bold]3. Files of {day} land, the run of that night begins[/]")
            if _failed(project.run(at=_after(day), reason="scheduled", listener=_teller(console)), console):
                return 1
        console.print("[bold]4. Every row accounted for[/] (ours = the generator's truth)")
        agreed = _show_accounts(project, truth, console, late=False)
        agreed &= _repair(project, generator, home, truth, console)
    seconds = time.monotonic() - began
    console.print(f"\n{'All figures agree' if agreed else 'SOME FIGURES DIFFER'}. Done in {seconds:.0f} s.")
    console.print(
        f"\nNext:\n  cd {_shown(home)}\n  lakewright plan\n  lakewright show daily_pages\n"
        '  lakewright sql "SELECT rule, count(*) FROM dead_letters GROUP BY rule"\n'
        "  lakewright backfill --from 2026-01-02 --dry-run"
    )
    return 0 if agreed else 1


def platform_folder() -> Path:
    """Where the blog platform's files are: in the repository, or beside the installed package."""
    here = Path(__file__).resolve().parent
    for place in (here / "_platforms" / "blog", here.parents[1] / "platforms" / "blog"):
        if (place / "lakewright.toml").exists():
            return place
    raise ConfigurationError(
        "The blog platform's files are not installed.", hint="Clone the repository and run `make demo`."
    )


def _prepare(folder: Path) -> Path:
    source = platform_folder()
    if folder.exists() and any(folder.iterdir()) and not (folder / "truth.json").exists():
        raise ConfigurationError(
            f"{folder} has files that the demo did not make.", hint="Choose another place with --folder."
        )
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "lakewright.toml", folder)
    for part in ("pipelines", "contracts"):
        shutil.copytree(source / part, folder / part, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder.resolve()


def _generator() -> ModuleType:
    file = platform_folder() / "generate.py"
    spec = importlib.util.spec_from_file_location("lakewright_blog_generate", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _repair(project: Project, generator: Any, home: Path, truth: Any, console: Console) -> bool:
    first, last = truth.recipe.dates[0], truth.recipe.dates[-1]
    generator.deliver_late(home, [first])
    at = _after(last, days=2)
    console.print(f"[bold]5. Visits of {first} land late: which slices are touched?[/]")
    summary = project.run(["raw_visits"], at=at, listener=_teller(console))
    if _failed(summary, console):
        return False
    expected = set()
    for plan in project.plan(at=at).datasets:
        for state in plan.to_make:
            expected.add((plan.dataset.name, state.slice.id))
            console.print(f"   {plan.dataset.name} {state.slice.id} is {state.status}: {state.reason}")
    console.print("[bold]6. Repairing exactly those[/]")
    summary = project.run(at=at, reason="late", listener=_teller(console))
    if _failed(summary, console):
        return False
    made = {(outcome.dataset, outcome.slice_id) for outcome in summary.made}
    below = {slice_id for _, slice_id in expected}
    exactly = expected <= made and {slice_id for _, slice_id in made} == below
    agreed = _show_accounts(project, truth, console, late=True)
    return agreed and exactly


def _show_accounts(project: Project, truth: Any, console: Console, *, late: bool) -> bool:
    from rich.table import Table

    table = Table("boundary", "slice", "read", *_COLUMNS, "duplicate", "kept", "late", box=None, header_style="bold")
    agreed = True
    late_days = {str(truth.recipe.dates[0])} if late else set()
    if not late:
        for account, day in zip(
            accounts_of(project.store, "raw_visits", is_source=True), truth.deliveries, strict=True
        ):
            told = truth.deliveries[day]
            usable = told.lines - told.malformed - told.bad_time - told.future_time
            wanted = (told.lines, told.malformed, told.bad_time + told.future_time, None, None, None, usable, None)
            agreed &= _row(table, "source to bronze", account, wanted)
    for account in accounts_of(project.store, "clean_visits"):
        told = _day(truth.events, account.slice_id)
        extra = told.kept_after_late - told.kept if account.slice_id in late_days else 0
        wanted = (
            told.lines + extra, None, None, told.missing_id, told.bad_page, told.duplicates, told.kept + extra,
            told.late + extra,
        )  # fmt: skip
        agreed &= _row(table, "bronze to silver", account, wanted)
    for name, count in (("daily_pages", "pages"), ("daily_countries", "countries")):
        agreed &= _check_gold(project, truth, name, count, late_days, table)
    console.print(table)
    return agreed


_COLUMNS = (UNREADABLE, NO_EVENT_TIME, "has_id", "known_page")


def _row(table: Any, boundary: str, account: Account, wanted: tuple[int | None, ...]) -> bool:
    rejected = [account.rejected.get(rule, 0) for rule in _COLUMNS]
    ours = (account.read, *rejected, account.duplicates, account.kept, account.late)
    cells, agreed = [], bool(account.balanced)
    for mine, truth in zip(ours, wanted, strict=True):
        if truth is None:
            cells.append("-")
            continue
        same = mine == truth
        agreed &= same
        cells.append(f"{mine:,} = {truth:,}" if same else f"[red]{mine} != {truth}[/]")
    table.add_row(boundary, account.slice_id, *cells)
    return agreed


def _check_gold(project: Project, truth: Any, name: str, count: str, late_days: set[str], table: Any) -> bool:
    """The gold table's own rows against the truth, group by group."""
    column = "page" if count == "pages" else "country"
    rows = project.sql(f"SELECT string(event_date) AS day, {column} AS value, visits FROM {name}").collect()
    ours = {(row["day"], row["value"]): row["visits"] for row in rows}
    wanted: dict[tuple[str, str], int] = {}
    for day in truth.events:
        told = truth.events[day]
        groups = getattr(told, f"{count}_after_late" if str(day) in late_days else count)
        wanted |= {(str(day), value): visits for value, visits in groups.items()}
    same = ours == wanted
    total, told_total = sum(ours.values()), sum(wanted.values())
    cell = f"{total:,} = {told_total:,}" if same else f"[red]{total} != {told_total}[/]"
    table.add_row("silver to gold", f"{name}, {len(ours)} groups", cell, *["-"] * 5, cell, "-")
    return same


def _after(day: date | str, days: int = 1) -> date:
    return date.fromisoformat(str(day)) + timedelta(days=days)


def _day(days: Any, text: str) -> Any:
    return days[text] if text in days else days[date.fromisoformat(text)]


def _teller(console: Console) -> Any:
    def tell(event: Event) -> None:
        if isinstance(event, SliceDone) and event.outcome.error is None:
            done = event.outcome
            rows = "" if done.receipt is None or done.receipt.rows is None else f", {done.receipt.rows:,} rows"
            console.print(f"   {done.dataset} {done.slice_id} {done.state} {done.seconds:.1f} s{rows}", highlight=False)
        elif isinstance(event, Note):
            console.print(f"   {event.message}", highlight=False)
        elif isinstance(event, DatasetDone) and event.state in ("failed", "skipped"):
            told = f": {event.detail}" if event.detail else ""
            console.print(f"   {event.dataset} {event.state}{told}", highlight=False)

    return tell


def _failed(summary: RunSummary, console: Console) -> bool:
    for error in summary.errors:
        console.print(f"[red]error:[/] {error}")
    return summary.state != "ok"


def _shown(folder: Path) -> str:
    try:
        return str(folder.relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
