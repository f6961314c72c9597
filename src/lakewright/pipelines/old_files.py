"""Deleting the files of a table that no version within the retention needs, and telling how many there were.

On a local lake the folder is looked at first: where nothing in it is old enough, Spark is not asked.
"""

from __future__ import annotations

import os
from datetime import timedelta

from lakewright.model.paths import local_folder
from lakewright.patterns.ingestion.table_files import read_files
from lakewright.patterns.ingestion.vacuum import vacuum_table
from lakewright.pipelines.workshop import Workshop

__all__ = ["delete_old_files"]


def delete_old_files(
    shop: Workshop, name: str, keep: timedelta, *, unsafe: bool, dry_run: bool
) -> tuple[int, int] | None:
    """Runs a VACUUM where there is something to delete; tells how many files and bytes, or None where there was not."""
    path = shop.lake.resolve(name)
    before = _on_disk(path)
    if before is not None and not _has_old(shop, path, before, keep):
        return None
    # Not told in the log: a commit for that alone would need the table's lock for as long as the files are listed.
    done = vacuum_table(shop.lake.session(), path, retention=keep, dry_run=dry_run, unsafe=unsafe, log=False)
    if before is None:
        return (len(done.files), 0) if dry_run and done.files else None
    left = _on_disk(path) or {}
    gone = [before[one] for one in before if one not in left]
    if dry_run:
        named = {os.path.relpath(str(local_folder(file)), str(local_folder(path))) for file in done.files}
        gone = [before[one] for one in named if one in before]
    return (len(gone), sum(size for size, _ in gone)) if gone else None


def _on_disk(path: str) -> dict[str, tuple[int, float]] | None:
    """The data files in a table's folder with size and time; None for an object store."""
    folder = local_folder(path)
    if folder is None:
        return None
    found: dict[str, tuple[int, float]] = {}
    for place, folders, files in os.walk(folder):
        if "_delta_log" in folders:
            folders.remove("_delta_log")
        for file in files:
            full = os.path.join(place, file)
            try:
                told = os.stat(full)
            except FileNotFoundError:
                continue  # deleted while we looked
            found[os.path.relpath(full, folder)] = (told.st_size, told.st_mtime)
    return found


def _has_old(shop: Workshop, path: str, on_disk: dict[str, tuple[int, float]], keep: timedelta) -> bool:
    """Whether there is a file that is not used any more and old enough: else Spark need not look."""
    live = read_files(path)
    limit = (shop.now() - keep).timestamp()
    return live is None or any(at < limit and name not in live.names for name, (_, at) in on_disk.items())
