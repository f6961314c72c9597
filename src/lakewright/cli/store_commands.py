"""`lakewright store`: restore the index from the lake's logs, or bring it to this release's schema."""

from __future__ import annotations

from dataclasses import asdict

from lakewright.cli.opening import open_project, settings_of
from lakewright.cli.screen import Screen

__all__ = ["rebuild", "upgrade"]


def rebuild(screen: Screen) -> None:
    """Restore the store from the logs of the lake's tables, which are the truth.

    What the logs cannot hold (leases, retries in flight, some counters) is told and shown as unknown.
    """
    with open_project(screen) as project:
        summary = project.rebuild_store()
    if screen.as_json:
        screen.show_json({**asdict(summary), "error": None})
        return
    screen.say(
        f"Rebuilt the store: {summary.datasets:,} datasets, {summary.receipts:,} receipts, "
        f"{summary.arrivals:,} arrivals.",
        "bold",
    )
    for one in summary.unknown:
        screen.say(f"  unknown: {one}")


def upgrade(screen: Screen) -> None:
    """Bring the store to the schema of this release. A run does so by itself; a newer store is refused."""
    from lakewright.store import open_store
    from lakewright.store.opening import HEAD

    target = settings_of(screen).target
    open_store(target.reveal_store()).close()
    if screen.as_json:
        screen.show_json({"store": target.shown_store, "schema": HEAD, "error": None})
    else:
        screen.say(f"The store {target.shown_store} has schema version {HEAD}, that of this release.")
