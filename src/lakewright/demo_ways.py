"""The demo's second table: every other way in and out, each beside what is true where the rows came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lakewright.demo_capture import HISTORY, LATEST, LegacyDatabase
from lakewright.pipelines.accounts import accounts_of
from lakewright.pipelines.maintain import TableOutcome
from lakewright.pipelines.project import Project

if TYPE_CHECKING:
    from rich.console import Console

    from lakewright.demo_world import World
    from lakewright.model.receipts import Receipt

__all__ = ["show_ways"]

_GOLD = "daily_pages"
_EXPORTS = {"devices_for_staging": ("Passthrough Replicator", "devices")}
_EXPORTS["visits_for_partners"] = ("Transformation Replicator", "clean_visits")


class _Way(NamedTuple):
    pattern: str
    dataset: str
    ours: int
    true: int
    told: str
    equal: bool = True
    """What counts cannot tell."""


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
    ]
    for way in ways:
        same = way.ours == way.true and way.equal
        agreed &= same
        figures = f"{way.ours:,} = {way.true:,}" if same else f"[red]{way.ours} != {way.true}[/]"
        table.add_row(way.pattern, way.dataset, figures, way.told)
    console.print(table)
    return agreed


def _loaded(project: Project, pattern: str, source: str, true: int, told: str) -> _Way:
    taken = sum(account.read or 0 for account in accounts_of(project.store, source, is_source=True))
    return _Way(pattern, source, taken, true, told)


def _events(project: Project) -> _Way:
    runs = [run for run in project.store.runs.latest(limit=1000) if run.reason == "trigger"]
    return _Way("External Trigger", "devices", len(runs), 1, "runs started, releases (each was told twice)")


def _captured(legacy: LegacyDatabase) -> list[_Way]:
    told, made = legacy.told(), legacy.made
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(made.items()))
    ours, theirs = legacy.copied_rows(), legacy.rows()
    word = "equal" if ours == theirs else "NOT EQUAL"
    name = "Change Data Capture"
    return [
        _Way(name, HISTORY, told.total(), made.total(), kinds, told == made),
        _Way(name, LATEST, len(ours), len(theirs), f"{word} in all columns to the table in PostgreSQL", ours == theirs),
    ]


def _exported(project: Project, name: str) -> _Way:
    pattern, original = _EXPORTS[name]
    copied, there = _receipts(project, name), _receipts(project, original)
    proofs = [one.counters.proof for one in copied]
    # A proof is in a receipt only where counts and checksums of both sides were the same.
    word = "proven" if all(proofs) else "NOT PROVEN"
    slices = f"{len(copied)} slice{'s' if len(copied) != 1 else ''}"
    told = f"rows copied, rows of {original}; {slices} {word} by checksums"
    return _Way(pattern, name, _rows(copied), _rows(there), told, bool(proofs) and all(proofs))


def _marked(project: Project, truth: Any) -> _Way:
    ready = [day for day in truth.recipe.dates if project.ready(_GOLD, str(day)).ready]
    return _Way("Readiness Marker", _GOLD, len(ready), len(truth.recipe.dates), "days that are ready, days closed")


def _compacted(project: Project, kept: TableOutcome, truth: Any) -> _Way:
    rows = project.lake.read(kept.dataset, system_columns=True).count()
    sent = sum(day.lines for day in truth.deliveries.values()) + truth.late_delivery[truth.recipe.dates[0]].lines
    told = f"rows after `lakewright maintain`, visits sent; {kept.files_before} files became {kept.files_after}"
    return _Way("Compactor", kept.dataset, rows, sent, told, kept.state in ("done", "nothing"))


def _in_time(project: Project, truth: Any) -> _Way:
    first = truth.recipe.dates[0]
    days = truth.deliveries.values()
    usable = sum(day.lines - day.malformed - day.bad_time - day.future_time for day in days)
    usable += truth.late_delivery[first].lines
    accounts = accounts_of(project.store, "visits_in_time")
    in_time, late = sum(one.kept or 0 for one in accounts), sum(one.held or 0 for one in accounts)
    told = f"{in_time:,} in time and {late:,} late, visits with a usable time"
    return _Way("Late Data Detector", "visits_in_time", in_time + late, usable, told, late > 0)


def _restoring(project: Project, world: World) -> _Way:
    query = "SELECT user_id, login, country FROM current_users ORDER BY user_id"
    ours, theirs = [tuple(row) for row in project.sql(query).collect()], world.current_users()
    word = "equal" if ours == theirs else "NOT EQUAL"
    return _Way(
        "Stateful Merger", "current_users", len(ours), len(theirs), f"users, {word} to PostgreSQL", ours == theirs
    )


def _sent(project: Project, world: World) -> list[_Way]:
    keys, figures = world.figures(), _rows(_receipts(project, _GOLD))
    return [
        _Way(
            "Transactional Writer", "page_figures", len(keys), figures, "committed messages, figures of pages and days"
        ),
        _Way("Keyed Idempotency", "page_figures", len(set(keys)), figures, "keys among them, figures"),
    ]


def _for_analysts(project: Project, world: World) -> list[_Way]:
    shown, tables = world.analysts_see("visits")
    kept = _receipts(project, "clean_visits")
    parts = f"rows of the view, rows of clean_visits; {tables} tables behind it, {len(kept)} days"
    released, versions = world.analysts_see("devices")
    catalogue = f"rows of the view, devices; {versions} version{'s' if versions != 1 else ''} behind it"
    return [
        _Way("Fast Metadata Cleaner", "analyst_visits", shown, _rows(kept), parts, tables == len(kept)),
        _Way("Proxy", "device_catalogue", released, world.devices, catalogue),
    ]


def _receipts(project: Project, name: str) -> list[Receipt]:
    receipts = project.store.receipts
    return [one for slice_id in receipts.live_slices(name) if (one := receipts.live(name, slice_id)) is not None]


def _rows(receipts: list[Receipt]) -> int:
    return sum(one.rows or 0 for one in receipts)
