"""The demo's table: every figure that the platform accounts for, beside the generator's truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from lakewright.demo_sessions import check_sessions
from lakewright.pipelines.accounts import Account, accounts_of
from lakewright.pipelines.project import Project
from lakewright.pipelines.settle import NO_EVENT_TIME, UNREADABLE

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_up", "show_accounts"]

_FILTERED, _UNKNOWN = "daily_countries", "unknown"
_COLUMNS = (UNREADABLE, NO_EVENT_TIME, "has_id", "known_page")


def show_accounts(
    project: Project, truth: Any, console: Console, *, late: bool, deliveries: Sequence[Account] | None = None
) -> bool:
    """Show the table; whether all of it agrees. ``deliveries`` are the accounts of each day's visits at the source,
    where they are not one arrival each.
    """
    from rich.table import Table

    table = Table("boundary", "slice", "read", *_COLUMNS, "duplicate", "kept", "late", box=None, header_style="bold")
    agreed = True
    late_days = {str(truth.recipe.dates[0])} if late else set()
    if not late:
        taken = accounts_of(project.store, "raw_visits", is_source=True) if deliveries is None else deliveries
        for account, day in zip(taken, truth.deliveries, strict=True):
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
    agreed &= _check_filtered(project, truth, late_days, table)
    agreed &= check_sessions(project, truth, late_days, table)
    console.print(table)
    return agreed


def add_up(accounts: Sequence[Account], slice_id: str) -> Account:
    """Several accounts as one, under a name of its own; what one of them does not know, the sum does not know."""
    rejected: Counter[str] = Counter()
    for account in accounts:
        rejected.update(account.rejected)

    def total(figures: Sequence[int | None]) -> int | None:
        return None if None in figures else sum(figure or 0 for figure in figures)

    return Account(
        dataset=accounts[0].dataset,
        slice_id=slice_id,
        read=total([account.read for account in accounts]),
        kept=total([account.kept for account in accounts]),
        rejected=rejected,
        duplicates=total([account.duplicates for account in accounts]),
        late=total([account.late for account in accounts]),
    )


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
        wanted |= {(str(day), value): visits for value, visits in groups.items() if value != _UNKNOWN}
    same = ours == wanted
    total, told_total = sum(ours.values()), sum(wanted.values())
    cell = f"{total:,} = {told_total:,}" if same else f"[red]{total} != {told_total}[/]"
    table.add_row("silver to gold", f"{name}, {len(ours)} groups", cell, *["-"] * 5, cell, "-")
    return same


def _check_filtered(project: Project, truth: Any, late_days: set[str], table: Any) -> bool:
    """What the filter before the figures of countries took away, and what they count of the rest."""
    rows = project.sql(f"SELECT string(event_date) AS day, sum(visits) AS visits FROM {_FILTERED} GROUP BY 1").collect()
    ours = {row["day"]: row["visits"] for row in rows}
    agreed = True
    for account in accounts_of(project.store, _FILTERED):
        told = _day(truth.events, account.slice_id)
        after = "_after_late" if account.slice_id in late_days else ""
        kept, unknown = getattr(told, f"kept{after}"), getattr(told, f"unknown_user{after}")
        mine = (account.read, sum(account.filtered.values()), ours.get(account.slice_id))
        true = (kept, unknown, kept - unknown)
        agreed &= mine == true
        pairs = zip(mine, true, strict=True)
        read, filtered, counted = (f"{a:,} = {b:,}" if a == b else f"[red]{a} != {b}[/]" for a, b in pairs)
        table.add_row(_FILTERED, f"{account.slice_id}, filtered {filtered}", read, *["-"] * 5, counted, "-")
    return agreed


def _day(days: Any, text: str) -> Any:
    return days[text] if text in days else days[date.fromisoformat(text)]
