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


def _receipts(project: Project, name: str) -> list[Receipt]:
    receipts = project.store.receipts
    return [one for slice_id in receipts.live_slices(name) if (one := receipts.live(name, slice_id)) is not None]


def _rows(receipts: list[Receipt]) -> int:
    return sum(one.rows or 0 for one in receipts)
