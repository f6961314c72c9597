"""Flag files: a small file that says "this folder is complete", with who wrote it and how much."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.model.times import parse_time, utc_now
from lakewright.patterns.ingestion.folder_readiness import is_hidden, refuse_path

__all__ = ["DEFAULT_NAME", "Flag", "data_files", "mark_when_done", "read_marker", "set_marker", "withdraw_marker"]

DEFAULT_NAME = "_COMPLETED"
"""Hidden from Spark, as ``_SUCCESS`` is: a visible file among the data makes its other readers fail."""


@dataclass(slots=True)
class Flag:
    """What a flag file tells. An empty file, such as Spark's ``_SUCCESS``, tells nothing but that it is there."""

    rows: int | None = None
    run: str | None = None
    version: str | int | None = None
    """The producing version: of the table that was exported, or of the job."""
    files: int | None = None
    bytes: int | None = None
    at: datetime | None = None


def set_marker(
    folder: str | os.PathLike[str],
    *,
    name: str = DEFAULT_NAME,
    rows: int | None = None,
    run: str | None = None,
    version: str | int | None = None,
    at: datetime | None = None,
) -> Path:
    """Declare a folder complete: the last step of whoever writes it. The flag appears whole or not at all.

    It holds the run, the rows and the version as given, the time, and how many data files lie there with how many
    bytes, so that a reader can compare. A partition folder gets a flag of its own.

    >>> import os
    >>> os.makedirs(folder)
    >>> set_marker(folder, rows=2, run="r1").name, read_marker(folder).rows
    ('_COMPLETED', 2)
    """
    refuse_path("Readiness Marker", name)
    place = as_folder(folder)
    if not place.is_dir():
        raise TargetError(
            f"Readiness Marker: there is no folder {place} to mark as complete. Nothing was written.",
            hint="Write the data first; the marker is the last step.",
        )
    found = [file.stat() for file in data_files(place, name)]
    told = {
        "run": run,
        "rows": rows,
        "version": version,
        "files": len(found),
        "bytes": sum(one.st_size for one in found),
        "at": (at or utc_now()).isoformat(),
    }
    draft = place / f".{name}.{secrets.token_hex(4)}.tmp"
    try:
        with open(draft, "x", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, place / name)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise TargetError(f"Readiness Marker: {place / name} cannot be written: {error.strerror}.") from error
    return place / name


def withdraw_marker(folder: str | os.PathLike[str], *, name: str = DEFAULT_NAME) -> bool:
    """Take a declaration back, before the first file changes; False where there was none."""
    refuse_path("Readiness Marker", name)
    flag = as_folder(folder) / name
    try:
        flag.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise TargetError(
            f"Readiness Marker: {flag} cannot be taken away: {error.strerror}. Nothing was written.",
            hint="As long as it is there, readers take the folder for complete: nothing may change in it.",
        ) from error
    return True


@contextmanager
def mark_when_done(
    folder: str | os.PathLike[str],
    *,
    name: str = DEFAULT_NAME,
    run: str | None = None,
    version: str | int | None = None,
) -> Iterator[Flag]:
    """Around a write: the old marker goes before it, the new one comes after it, and none where it failed.

    Put the number of rows into ``rows`` of what it gives.
    """
    withdraw_marker(folder, name=name)
    told = Flag(run=run, version=version)
    yield told
    set_marker(folder, name=name, rows=told.rows, run=told.run, version=told.version, at=told.at)


def read_marker(folder: str | os.PathLike[str], *, name: str = DEFAULT_NAME) -> Flag | None:
    """What the flag of a folder tells; None where there is none."""
    refuse_path("Readiness Marker", name)
    flag = as_folder(folder) / name
    try:
        text = flag.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Readiness Marker: {flag} cannot be read: {error}.") from error
    if not text:
        return Flag()
    try:
        told: Any = json.loads(text)
        at = told.get("at")
        known = {key: told.get(key) for key in ("rows", "run", "version", "files", "bytes")}
        return Flag(**known, at=None if at is None else parse_time(str(at)))
    except (ValueError, AttributeError, ConfigurationError):
        raise InputError(
            f"Readiness Marker: {flag} is neither empty nor one that set_marker wrote: {text[:60]!r}.",
            hint="An empty flag file is taken as a marker without a count.",
        ) from None


def data_files(folder: Path, flag: str = DEFAULT_NAME) -> list[Path]:
    """The files below a folder that hold data: not flags, checksums and what lies in ``_delta_log``."""
    found = []
    for at, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if not is_hidden(one)]
        found += [Path(at, one) for one in files if not one.startswith((".", "_")) and one != flag]
    return sorted(found)


def as_folder(folder: str | os.PathLike[str]) -> Path:
    """A folder of this machine, or one that is mounted here."""
    text = os.fspath(folder).removeprefix("file://")
    if "://" in text:
        raise ConfigurationError(
            f"Readiness Marker: flag files are written and read in folders of this machine, not in '{text}'.",
            hint="Mount the bucket, or let readers ask `lakewright ready`, which needs no file.",
        )
    return Path(text)
