"""`lakewright status`: how the datasets and the last runs stand, from the store alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakewright.cli.opening import open_existing_store, settings_of
from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table
from lakewright.model.times import utc_now

if TYPE_CHECKING:
    from lakewright.pipelines.status import Status
    from lakewright.store import HeldLease, RunRecord

__all__ = ["status"]


def status(screen: Screen) -> None:
    """Show how the datasets and the last runs stand. Needs neither Spark nor the project's files."""
    with open_existing_store(screen) as store:
        if store is None:
            if screen.as_json:
                screen.show_json(_EMPTY)
            screen.say("Nothing has run here yet. `lakewright run` starts.")
            return
        from lakewright.pipelines.status import read_status

        found = _with_origins(screen, read_status(store, utc_now()), store.origins.all())
    if screen.as_json:
        screen.show_json(_as_json(found))
    else:
        _show(screen, found)


def _with_origins(screen: Screen, found: Status, origins: Mapping[str, str]) -> Status:
    """The same, with a note at each dataset that is read from another target."""
    if not any(origins.values()):
        return found
    targets = settings_of(screen).targets.values()
    names = {str(target.lake_path or target.lake): target.name for target in targets}
    read_from = {name: names.get(place, place) for name, place in origins.items() if place}
    noted = [
        replace(one, note=f"read from {read_from[one.name]}") if one.name in read_from else one
        for one in found.datasets
    ]
    return replace(found, datasets=noted)


_EMPTY: dict[str, Any] = {
    "datasets": [],
    "runs": [],
    "leases": [],
    "open_steps": [],
    "findings": [],
    "paused": [],
    "error": None,
}


def _show(screen: Screen, found: Status) -> None:
    screen.show(
        plain_table(
            ["dataset", "state", "slices", "last slice", "last commit", "version", "rows", "note"],
            [
                [
                    one.name,
                    one.state,
                    f"{one.slices:,}",
                    one.last_slice or "-",
                    _moment(one.last_commit),
                    "-" if one.version is None else str(one.version),
                    "?" if one.rows is None else f"{one.rows:,}",
                    one.note or "",
                ]
                for one in found.datasets
            ],
            right=["slices", "version", "rows"],
        )
    )
    if found.runs:
        screen.show("")
        columns = ["run", "pipeline", "why", "state", "began", "waited", "seconds", "error"]
        screen.show(plain_table(columns, [_run_cells(run) for run in found.runs], right=["waited", "seconds"]))
    for pause in found.paused:
        because = f" ({pause.because})" if pause.because else ""
        screen.say(
            f"{pause.pipeline} is paused since {_moment(pause.since)}{because}; `lakewright resume` lets it go on."
        )
    for lease in found.leases:
        screen.say(f"{lease.owner or 'An unknown process'} {_doing(lease)}.")
    for step in found.open_steps:
        screen.warn(f"{step.dataset} {step.slice_id}: a step of run {step.run_id} is open; the next run settles it.")
    for finding in found.findings:
        where = f"{finding.dataset} {finding.slice_id or ''}".rstrip()
        screen.warn(f"{where}: {finding.message}" + (f" {finding.cure}" if finding.cure else ""))


def _doing(lease: HeldLease) -> str:
    what = f"{lease.dataset} {lease.slice_id}".removesuffix(" *")
    if not lease.alive:
        return f"is gone and has left a lease on {what}"
    if lease.dataset.startswith("queue:"):
        return f"waits for {lease.dataset.removeprefix('queue:')}"
    return f"works on {what}"


def _run_cells(run: RunRecord) -> list[str]:
    seconds = "" if run.ended_at is None else f"{(run.ended_at - run.started_at).total_seconds():.1f}"
    error = (run.error or "").partition("\n")[0]
    shown = error if len(error) <= 80 else f"{error[:79]}…"
    waited = "" if run.queued_seconds is None else f"{run.queued_seconds:.1f}"
    return [run.run_id, run.pipeline, run.reason, run.state, _moment(run.started_at), waited, seconds, shown]


def _moment(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _as_json(found: Status) -> dict[str, Any]:
    return {
        "datasets": [asdict(one) for one in found.datasets],
        "runs": [
            {**asdict(run), "options": dict(run.options), "queued_seconds": run.queued_seconds} for run in found.runs
        ],
        "leases": [asdict(lease) for lease in found.leases],
        "open_steps": [asdict(step) for step in found.open_steps],
        "findings": [asdict(finding) for finding in found.findings],
        "paused": [pause._asdict() for pause in found.paused],
        "error": None,
    }
