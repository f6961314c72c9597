"""Swapping a folder of plain files (Parquet, JSON, CSV, text): Data Overwrite where there is no Delta log.

Problem:
    Spark's overwrite mode deletes the old files first: a failure half-way leaves nothing, or half the data.
Guarantee:
    A reader that opens the path sees the whole old or the whole new dataset at any moment, also when a task
    fails or the process is killed half-way: the rows are written aside, and then one rename exchanges a link.
Consequences:
    - The path is a symbolic link, so it needs a file system that has them; on an object store use Delta. On a cluster
      the driver and all workers must see it under this path; where none of the files comes to be there, it is refused.
    - A reader that may outlive a swap opens ``current_files(path)``, the folder behind the link: the dataset
      that was replaced last stays on disk for it. The one before it, and what a killed writer left, is
      removed by the next swap.
    - One writer at a time; a second one is refused.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, TargetError
from lakewright.patterns.idempotency.refusals import refuse_empty, refuse_no_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["current_files", "overwrite_files"]


def overwrite_files(
    df: DataFrame,
    path: str,
    *,
    file_format: Literal["parquet", "json", "csv", "text", "orc"] = "parquet",
    options: Mapping[str, str] | None = None,
    empty: Literal["allow", "fail"] = "fail",
) -> None:
    """Runs a job that writes the frame aside and then puts it in the place of the dataset at ``path``.

    >>> visits = spark.createDataFrame([("v1",)], "visit string")
    >>> overwrite_files(visits, f"{folder}/visits")
    >>> overwrite_files(visits, f"{folder}/visits")
    >>> spark.read.parquet(f"{folder}/visits").count()
    1
    """
    place = _place(path)
    if empty == "fail":
        refuse_empty(df, what=f"Data Overwrite ({path})")
    versions = place.parent / f".{place.name}.versions"
    versions.mkdir(parents=True, exist_ok=True)
    with _only_writer(versions, path):
        current = place.resolve() if place.is_symlink() else None
        new = versions / uuid.uuid4().hex
        try:
            df.write.format(file_format).options(**dict(options or {})).save(str(new))
            if empty == "fail":
                files = [file.name for file in new.rglob("[!_.]*") if file.is_file()]
                refuse_no_files(files, what=f"Data Overwrite ({path})")
            _exchange(place, new)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        for found in versions.iterdir():
            if found.is_dir() and found not in (new, current):
                shutil.rmtree(found, ignore_errors=True)


def current_files(path: str) -> str:
    """The folder that holds the dataset just now; it stays whole until the next swap but one."""
    return str(_place(path).resolve())


def _place(path: str) -> Path:
    if "://" in path and not path.startswith("file://"):
        raise ConfigurationError(
            f"Data Overwrite: {path} is not on a local file system, so that no link can be exchanged there.",
            hint="Write a Delta table instead: overwrite_slice(df, path).",
        )
    given = Path(path.removeprefix("file://")).absolute()
    # Only the last part is our link: a folder above it that is one, too, would give each version two names.
    place = given.parent.resolve() / given.name
    if place.exists() and not place.is_symlink():
        raise ConfigurationError(
            f"Data Overwrite: {place} is an ordinary folder, and replacing it would take two steps. Nothing was "
            "written.",
            hint=f"Turn it into a link once: mv {place} {place}.first && ln -s {place.name}.first {place}",
        )
    return place


def _exchange(place: Path, new: Path) -> None:
    link = new.with_name(f"{new.name}.link")
    os.symlink(os.path.relpath(new, place.parent), link)
    os.replace(link, place)


@contextmanager
def _only_writer(versions: Path, path: str) -> Iterator[None]:
    descriptor = os.open(versions / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TargetError(f"Data Overwrite: another process is writing {path}. Nothing was written.") from None
        yield
    finally:
        os.close(descriptor)
