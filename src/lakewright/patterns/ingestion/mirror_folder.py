"""A full load of files: make a folder the mirror of another, with what was deleted gone there too.

Guarantee:
    Afterwards the target holds exactly the source's files, under the same relative names, byte for byte (checked by
    SHA-256). Each file is written aside and renamed, so that a reader meets a whole file; deletions come last. Killed
    at any moment, a repeat ends in the same mirror. A source that is missing or empty deletes nothing, and a partition
    (``date=2026-01-05``) is copied only to one of the same name.
Consequences:
    - Readers may meet files of the old and of the new delivery side by side while it runs: files have no transaction.
      For readers that must not, load into a table, or give the folder a Readiness Marker.
    - Both folders are on this machine's file systems. For buckets use the provider's own replication.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lakewright.errors import ConfigurationError, InputError, TargetError

__all__ = ["Mirrored", "drop_empty_folders", "mirror_folder"]

_ASIDE = ".lakewright-mirror-"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Mirrored:
    """What a mirror did: the relative names of the files."""

    copied: tuple[str, ...]
    deleted: tuple[str, ...]
    same: int
    bytes: int


def mirror_folder(source: str | Path, target: str | Path, *, delete: bool = True) -> Mirrored:
    """Copy what is new or changed, then delete what the source no longer has (unless ``delete=False``)."""
    origin, mirror = Path(source).resolve(), Path(target).resolve()
    if origin == mirror or origin in mirror.parents or mirror in origin.parents:
        raise ConfigurationError(f"{target} and {source} lie within each other. Nothing was copied.")
    _refuse_flattening(origin, mirror)
    wanted = _files(origin) if origin.is_dir() else {}
    if not wanted:
        problem = "holds no file" if origin.is_dir() else "is not there"
        raise InputError(
            f"{source} {problem}, and a mirror of it would delete everything in {target}. Nothing was changed.",
            hint="Correct the path, or wait for the delivery.",
        )
    known = _files(mirror) if mirror.is_dir() else {}
    changed = [name for name in wanted if name not in known or not _same(origin / name, mirror / name)]
    size = sum(_copy(origin / name, mirror / name) for name in changed)
    deleted = [name for name in known if name not in wanted] if delete else []
    for name in deleted:
        (mirror / name).unlink(missing_ok=True)
    drop_empty_folders(mirror, deleted)
    return Mirrored(tuple(changed), tuple(deleted), len(wanted) - len(changed), size)


def _refuse_flattening(origin: Path, mirror: Path) -> None:
    """A partition goes to the partition of the same name: without its name the days would lie in one heap."""
    partition = _partition(origin)
    if partition and _partition(mirror)[-len(partition) :] != partition:
        name = "/".join(partition)
        raise ConfigurationError(
            f"{origin} is the partition {name}, and {mirror} does not end in it: its files would lie beside those of "
            "other partitions. Nothing was copied.",
            hint=f"Name the partition on both sides: {mirror.as_posix()}/{name}.",
        )


def _partition(folder: Path) -> list[str]:
    """The last parts of a path that are partitions, such as ``date=2026-01-05``."""
    parts = list(folder.parts)
    while parts and "=" in parts[-1]:
        parts.pop()
    return list(folder.parts[len(parts) :])


def _files(folder: Path) -> dict[str, int]:
    """Relative name -> size of every file; drafts of a mirror that died are removed."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if name.startswith(_ASIDE):
                path.unlink(missing_ok=True)
            else:
                found[path.relative_to(folder).as_posix()] = path.stat().st_size
    return dict(sorted(found.items()))


def _same(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and _checksum(one) == _checksum(other)


def _copy(source: Path, target: Path) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{_ASIDE}{target.name}")
    shutil.copyfile(source, draft)
    shutil.copystat(source, draft)
    if _checksum(draft) != _checksum(source):
        draft.unlink()
        raise TargetError(
            f"{source} changed while it was copied, or the copy is damaged. {target} is as it was.",
            hint="Run it again when nobody writes to the source.",
        )
    os.replace(draft, target)
    return target.stat().st_size


def _checksum(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def drop_empty_folders(mirror: Path, deleted: Sequence[str]) -> None:
    """Folders that held only what was deleted go too."""
    for name in deleted:
        folder = (mirror / name).parent
        while folder != mirror and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent
