"""When a folder of files may be read: it holds a flag file, or the producer has gone on to the next partition.

Both are conventions between a producer and its consumers. They look at names alone, so that a look is cheap.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import unquote

from lakewright.errors import ConfigurationError

__all__ = ["FlagFile", "FolderReadiness", "NextPartition"]


@runtime_checkable
class FolderReadiness(Protocol):
    """How to tell whether the files of a folder are complete."""

    def not_yet(self, root: Path, folder: str) -> str | None:
        """Why the files of ``folder`` (below ``root``; empty: the root itself) may not be read; None where they may."""


@dataclass(frozen=True, slots=True)
class FlagFile:
    """A folder is ready while it, or one above it below the root, holds a file of this name.

    A flag in the root speaks for the files that lie in the root alone: after a write of several partitions Spark
    leaves its ``_SUCCESS`` there, which says nothing of the partition that the next write is about to make.
    """

    name: str = "_SUCCESS"

    def __post_init__(self) -> None:
        refuse_path("FlagFile", self.name)

    def not_yet(self, root: Path, folder: str) -> str | None:
        """Runs no job: looks for the file."""
        parts = [part for part in folder.split("/") if part]
        looked_in = [parts[:depth] for depth in range(len(parts), 0, -1)] or [[]]
        if any(os.path.lexists(os.path.join(root, *at, self.name)) for at in looked_in):
            return None
        return f"has no {self.name} yet"

    def marked(self, root: Path) -> list[str]:
        """The folders below the root that hold the flag. Runs no job: looks at names."""
        found = []
        for parent, folders, files in os.walk(root):
            folders[:] = [one for one in folders if not is_hidden(one)]
            if self.name in files and Path(parent) != root:
                found.append(Path(parent).relative_to(root).as_posix())
        return sorted(found)


@dataclass(frozen=True, slots=True)
class NextPartition:
    """A partition such as ``hour=10`` is ready once a later one of the same key is there.

    Numbers are compared as numbers, everything else as text, so dates are written as 2026-01-05. Of several levels
    (``date=2026-01-05/hour=23``) a later one on any level closes those below it.
    """

    def not_yet(self, root: Path, folder: str) -> str | None:
        """Runs no job: looks at the names of the folders beside it."""
        if not folder:
            return "lies in no partition folder such as hour=10, so nothing tells when it is complete"
        parts = folder.split("/")
        for depth, part in enumerate(parts):
            mine = _order(part)
            if mine is not None and any(_is_later(name, mine) for name in _folders(root.joinpath(*parts[:depth]))):
                return None
        return "has no later partition beside it yet"


def refuse_path(what: str, name: str) -> None:
    """The name of a flag file is a name, not a path."""
    if not name or "/" in name or name in (".", ".."):
        raise ConfigurationError(f"{what}: '{name}' is no name of a file. Write one such as COMPLETED, without a '/'.")


def is_hidden(folder: str) -> bool:
    """Whether Spark takes a folder for none of the data: ``_delta_log``, but not ``_day=2026-01-05``."""
    return folder.startswith(".") or (folder.startswith("_") and "=" not in folder)


def _order(folder: str) -> tuple[str, bool, int | str] | None:
    """Key, whether the value is a number, and the value; None for what stands for no value at all."""
    key, _, value = folder.rpartition("=")
    value = unquote(value)
    if not value or value.startswith("__"):  # __HIVE_DEFAULT_PARTITION__: rows without a value
        return None
    return (key, True, int(value)) if value.isascii() and value.isdigit() else (key, False, value)


def _is_later(folder: str, than: tuple[str, bool, int | str]) -> bool:
    found = _order(folder)
    # Key and kind must be the same: only then can the values be compared.
    return found is not None and found[:2] == than[:2] and found[2] > than[2]  # type: ignore[operator]


def _folders(place: Path) -> list[str]:
    try:
        with os.scandir(place) as entries:
            return [one.name for one in entries if one.is_dir() and not is_hidden(one.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
