"""Which files lie in a folder, and in which version.

A file's version is its size and its modification time in milliseconds, ``"1204-1767571200123"``: not
nanoseconds, because Spark's ``_metadata`` holds milliseconds, and the text that a reader computes from it
must be the same as the text recorded here. The same name with another version is another file.

A file that is still being written cannot be told from a finished one. Producers write aside, under a name
that is ignored here (``.visits.json``, ``_visits.json``, ``visits.json.tmp``), and rename when they are done.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.arrivals import FileVersion

__all__ = ["list_files", "resolve_folder", "version_of"]

HIDDEN_PREFIXES = (".", "_")
TEMPORARY_SUFFIXES = (".tmp", ".crc", "._COPYING_", ".part")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def resolve_folder(path: str, project: Path) -> Path:
    """The folder that a source's path names: relative to the project, absolute, or a ``file:`` URI."""
    scheme = _SCHEME.match(path)
    if scheme is None:
        # Not realpath: Spark reports the path that it was given, links included.
        return Path(os.path.abspath(project / path))
    if scheme.group(1).lower() == "file":
        return Path(os.path.abspath(unquote(re.sub(r"^file:(//(localhost)?)?", "", path, flags=re.I))))
    raise ConfigurationError(
        f"A source of files reads local folders for now, but got '{path}'. Listing '{scheme.group(1)}:' will "
        "come by way of Hadoop's file systems.",
        hint="Mount or copy the folder, or land the files as a Delta table and use DeltaTable.",
    )


def version_of(stat: os.stat_result) -> str:
    """The version of a file as this listing and Spark's ``_metadata`` both tell it."""
    return f"{stat.st_size}-{stat.st_mtime_ns // 1_000_000}"


def list_files(folder: Path, pattern: str = "*") -> list[FileVersion]:
    """The files below a folder, sorted by their path relative to it; hidden and temporary ones are left out.

    ``pattern`` is a shell pattern for the file's name, or for its whole relative path where it holds a ``/``
    (there ``*`` crosses folders). Links to files are followed, links to folders are not.
    """
    matches = re.compile(fnmatch.translate(pattern)).match
    whole = "/" in pattern
    try:
        found = [
            file for name, file in _walk(os.fspath(folder), "") if matches(file.path if whole else name) is not None
        ]
    except FileNotFoundError:
        raise InputError(
            f"There is no folder {folder}. Nothing was read.",
            hint="Create it (it may be empty), or correct the path; relative ones start at the project.",
        ) from None
    except NotADirectoryError:
        raise InputError(
            f"{folder} is a file, but a source takes a folder. Nothing was read.",
            hint=f"Name its folder, with pattern='{folder.name}' if only this file is meant.",
        ) from None
    except PermissionError as error:
        raise InputError(
            f"No permission to list {error.filename}. Nothing was read.",
            hint="Give the user that runs the pipeline the right to read and enter the folder.",
        ) from error
    return sorted(found, key=lambda file: file.path)


def _walk(folder: str, prefix: str) -> Iterator[tuple[str, FileVersion]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith(HIDDEN_PREFIXES):
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(entry.path, f"{prefix}{name}/")
                elif not name.endswith(TEMPORARY_SUFFIXES) and entry.is_file():
                    stat = entry.stat()
                    yield name, FileVersion(f"{prefix}{name}", version_of(stat), stat.st_size)
            except FileNotFoundError:
                continue  # renamed or deleted while we looked: it is not there
