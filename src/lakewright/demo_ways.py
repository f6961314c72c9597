"""The demo's second table: every other way in and out, each beside what is true where the rows came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakewright.demo_capture import HISTORY, LATEST, LegacyDatabase
from lakewright.demo_figures import Way, receipts_of, rows_in
from lakewright.demo_values import value_ways
from lakewright.pipelines.accounts import accounts_of
from lakewright.pipelines.maintain import TableOutcome
from lakewright.pipelines.project import Project

if TYPE_CHECKING:
    from rich.console import Console

    from lakewright.demo_world import World

__all__ = ["show_ways"]

_GOLD = "daily_pages"
_EXPORTS = {"devices_for_staging": ("Passthrough Replicator", "devices")}
_EXPORTS["visits_for_partners"] = ("Transformation Replicator", "clean_visits")


def show_ways(
    project: Project, world: World, legacy: LegacyDatabase, kept: TableOutcome, truth: Any, console: Console
) -> bool:
    """Show the table; whether all of it agrees."""
    from rich.table import Table

    table = Table("pattern", "dataset", "ours = true", "what is compared", box=None, header_style="bold")
    agreed = True
    ways = [
        _loaded(project, "Incremental Loader", "users", world.users, "rows taken, users who came or moved"),
        _loaded(project, "Full Loader", "devices", world.devices, "rows here, rows in PostgreSQL"),
        _events(project),
        *_captured(legacy),
        *[_exported(project, name) for name in _EXPORTS],
        _marked(project, truth),
        _compacted(project, kept, truth),
        _in_time(project, truth),
        _restoring(project, world),
        *_sent(project, world),
        *_for_analysts(project, world),
        *value_ways(project, world, truth),
    ]
    for way in ways:
        same = way.ours == way.true and way.equal
        agreed &= same
        figures = f"{way.ours:,} = {way.true:,}" if same else f"[red]{way.ours} != {way.true}[/]"
        table.add_row(way.pattern, way.dataset, figures, way.told)
    console.print(table)
    return agreed


def _loaded(project: Project, pattern: str, source: str, true: int, told: str) -> Way:
    taken = sum(account.read or 0 for account in accounts_of(project.store, source, is_source=True))
    return Way(pattern, source, taken, true, told)


def _events(project: Project) -> Way:
    runs = [run for run in project.store.runs.latest(limit=1000) if run.reason == "trigger"]
    return Way("External Trigger", "devices", len(runs), 1, "runs started, releases (each was told twice)")


def _captured(legacy: LegacyDatabase) -> list[Way]:
    told, made = legacy.told(), legacy.made
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(made.items()))
    ours, theirs = legacy.copied_rows(), legacy.rows()
    word = "equal" if ours == theirs else "NOT EQUAL"
    name = "Change Data Capture"
    return [
        Way(name, HISTORY, told.total(), made.total(), kinds, told == made),
        Way(name, LATEST, len(ours), len(theirs), f"{word} in all columns to the table in PostgreSQL", ours == theirs),
    ]


def _exported(project: Project, name: str) -> Way:
    pattern, original = _EXPORTS[name]
    copied, there = receipts_of(project, name), receipts_of(project, original)
    proofs = [one.counters.proof for one in copied]
    # A proof is in a receipt only where counts and checksums of both sides were the same.
    word = "proven" if all(proofs) else "NOT PROVEN"
    slices = f"{len(copied)} slice{'s' if len(copied) != 1 else ''}"
    told = f"rows copied, rows of {original}; {slices} {word} by checksums"
    return Way(pattern, name, rows_in(copied), rows_in(there), told, bool(proofs) and all(proofs))


def _marked(project: Project, truth: Any) -> Way:
    ready = [day for day in truth.recipe.dates if project.ready(_GOLD, str(day)).ready]
    return Way("Readiness Marker", _GOLD, len(ready), len(truth.recipe.dates), "days that are ready, days closed")


def _compacted(project: Project, kept: TableOutcome, truth: Any) -> Way:
    rows = project.lake.read(kept.dataset, system_columns=True).count()
    sent = sum(day.lines for day in truth.deliveries.values()) + truth.late_delivery[truth.recipe.dates[0]].lines
    told = f"rows after `lakewright maintain`, visits sent; {kept.files_before} files became {kept.files_after}"
    return Way("Compactor", kept.dataset, rows, sent, told, kept.state in ("done", "nothing"))


def _in_time(project: Project, truth: Any) -> Way:
    first = truth.recipe.dates[0]
    days = truth.deliveries.values()
    usable = sum(day.lines - day.malformed - day.bad_time - day.future_time for day in days)
    usable += truth.late_delivery[first].lines
    accounts = accounts_of(project.store, "visits_in_time")
    in_time, late = sum(one.kept or 0 for one in accounts), sum(one.held or 0 for one in accounts)
    told = f"{in_time:,} in time and {late:,} late, visits with a usable time"
    return Way("Late Data Detector", "visits_in_time", in_time + late, usable, told, late > 0)


def _restoring(project: Project, world: World) -> Way:
    query = "SELECT user_id, login, country FROM current_users ORDER BY user_id"
    ours, theirs = [tuple(row) for row in project.sql(query).collect()], world.current_users()
    word = "equal" if ours == theirs else "NOT EQUAL"
    return Way(
        "Stateful Merger", "current_users", len(ours), len(theirs), f"users, {word} to PostgreSQL", ours == theirs
    )


def _sent(project: Project, world: World) -> list[Way]:
    keys, figures = world.figures(), rows_in(receipts_of(project, _GOLD))
    return [
        Way(
            "Transactional Writer", "page_figures", len(keys), figures, "committed messages, figures of pages and days"
        ),
        Way("Keyed Idempotency", "page_figures", len(set(keys)), figures, "keys among them, figures"),
    ]


def _for_analysts(project: Project, world: World) -> list[Way]:
    shown, tables = world.analysts_see("visits")
    kept = receipts_of(project, "clean_visits")
    parts = f"rows of the view, rows of clean_visits; {tables} tables behind it, {len(kept)} days"
    released, versions = world.analysts_see("devices")
    catalogue = f"rows of the view, devices; {versions} version{'s' if versions != 1 else ''} behind it"
    return [
        Way("Fast Metadata Cleaner", "analyst_visits", shown, rows_in(kept), parts, tables == len(kept)),
        Way("Proxy", "device_catalogue", released, world.devices, catalogue),
    ]
