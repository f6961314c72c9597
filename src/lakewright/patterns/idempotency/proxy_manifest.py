"""A proxy over plain files: each load in a folder of its own, and a manifest that lists exactly its files.

Guarantee:
    A load's folder appears whole, by a rename, and is made read-only; a manifest appears whole too, under a number that
    nobody had before. A reader goes by the newest manifest and gets the files that it lists, each of the size that was
    noted, or an error that names the file; what else lies in the folder is not read. A manifest lists what was written,
    not what lies there: a load of which a file is missing or changed since is not shown, nor shown again.
Consequences:
    - It needs a file system with rename and hard links. On an object store use Delta, whose log is a manifest.
    - On a cluster the folder must be one that the driver and all workers see under this path. A load of which nothing
      reached the driver's folder is refused; that a part is missing cannot be told.
    - Read-only files keep honest programs out, not the owner: where the law asks for more, lock them in the store
      (S3 Object Lock and the like).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lakewright.errors import ConfigurationError, TargetError
from lakewright.failpoints import failpoint
from lakewright.patterns.idempotency.refusals import refuse_empty, refuse_no_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Manifest",
    "load_rows",
    "load_size",
    "publish_load",
    "read_latest_load",
    "read_manifest",
    "whole_loads",
    "write_load",
]

_LOADS, _MANIFESTS, _FORMAT = "loads", "manifests", "_format.json"
_CHUNK = 1 << 20
_NOT_SHOWN = "Readers see what they saw."


@dataclass(frozen=True, slots=True)
class Listed:
    """One file of a load, as it was when the manifest was made."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What readers are to read: a load, and its files."""

    number: int
    load: str
    file_format: str
    options: Mapping[str, str]
    files: tuple[Listed, ...]


def write_load(
    df: DataFrame,
    path: str,
    *,
    file_format: Literal["parquet", "json", "csv", "orc"] = "parquet",
    options: Mapping[str, str] | None = None,
    empty: Literal["allow", "fail"] = "fail",
    made_from: str | None = None,
) -> str:
    """Runs a job that writes the frame into a new folder; returns the load's name. Readers see nothing of it yet.

    ``made_from`` is a name for all that decides on the rows, by which `whole_loads` finds the load again.

    >>> load = write_load(spark.createDataFrame([("v1",)], "visit string"), folder)
    >>> publish_load(folder, load).number
    1
    >>> read_latest_load(spark, folder, schema="visit string").count()
    1
    """
    home = _home(path)
    if empty == "fail":
        refuse_empty(df, what=f"Proxy ({path})")
    name = uuid.uuid4().hex
    new, place = home / f".new-{name}", home / _LOADS / name
    place.parent.mkdir(parents=True, exist_ok=True)
    chosen = dict(options or {})
    try:
        df.write.format(file_format).options(**chosen).save(str(new))
        sizes = _sizes(new)
        if empty == "fail":
            refuse_no_files(sizes, what=f"Proxy ({path})")
        told = {"format": file_format, "options": chosen, "from": made_from, "files": sizes}
        (new / _FORMAT).write_text(json.dumps(told), encoding="utf-8")
        for file in _walk(new):
            file.chmod(0o444)
        failpoint("staged")
        os.rename(new, place)
        _close(place)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return name


def whole_loads(path: str, *, made_from: str, file_format: str, options: Mapping[str, str]) -> list[str]:
    """The loads that were made from exactly this and are what they were when they were written, the oldest first."""
    found = []
    for note in (_home(path) / _LOADS).glob(f"*/{_FORMAT}"):
        told = _note(note)
        same = (told.get("from"), told.get("format"), told.get("options")) == (made_from, file_format, dict(options))
        if same and told["files"] == _sizes(note.parent):
            found.append((note.stat().st_mtime_ns, note.parent.name))
    return [name for _, name in sorted(found)]


def _note(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except ValueError:  # a machine that lost its power, perhaps
        return {}


def _told(path: str, place: Path) -> dict[str, Any]:
    """What the note of a load says that it is."""
    if not place.is_dir():
        raise TargetError(
            f"Proxy: {path} has no load {place.name}. Readers see what they saw.",
            hint="Publish what write_load returned.",
        )
    told = _note(place / _FORMAT) if (place / _FORMAT).is_file() else {}
    if "files" not in told:
        raise TargetError(
            f"Proxy: the note {place / _FORMAT} is missing or cannot be read, so nobody can tell whether the load is "
            "whole. Readers see what they saw.",
            hint="Write it once more: write_load makes another one.",
        )
    return told


def load_size(path: str, load: str) -> int:
    """The bytes of a load's data files."""
    return sum(_told(path, _home(path) / _LOADS / load)["files"].values())


def load_rows(path: str, load: str) -> int | None:
    """The rows of a load, as the footers of its Parquet files tell; None of other formats."""
    import pyarrow.parquet

    place = _home(path) / _LOADS / load
    told = _told(path, place)
    if told["format"] != "parquet":
        return None
    return sum(int(pyarrow.parquet.read_metadata(place / file).num_rows) for file in told["files"])


def publish_load(path: str, load: str) -> Manifest:
    """Make the manifest that lets readers see a load; no data is written, and a repeat changes nothing.

    A load that was published before is listed once more, under a new number: that is how to go back. Its files are then
    compared with what was listed before, and otherwise with what was written.
    """
    home = _home(path)
    place = home / _LOADS / load
    told = _told(path, place)
    newest, earlier = _newest(home), _last_listing(path, load)
    if earlier is not None:
        if earlier.number == newest:
            return earlier
        files = earlier.files
        for listed in files:
            _refuse_changed(home / listed.path, listed, f"manifest {earlier.number}", effect=_NOT_SHOWN, checksums=True)
    else:
        files = tuple(_listed(home, place / name, size) for name, size in sorted(told["files"].items()))
    _close(place)  # whoever wrote it may have died before
    made = Manifest((newest or 0) + 1, load, told["format"], told["options"], files)
    _create(home, made)
    return made


def _listed(home: Path, file: Path, size: int) -> Listed:
    """A file that was never listed before, if it still is what was written."""
    written = Listed(file.relative_to(home).as_posix(), size, "")
    _refuse_changed(file, written, f"the note {_FORMAT} of its load", effect=_NOT_SHOWN, checksums=False)
    return replace(written, sha256=_checksum(file))


def _last_listing(path: str, load: str) -> Manifest | None:
    """The newest manifest that lists a load; one that was cut short lists none."""
    for file in sorted(_manifest_files(_home(path)), reverse=True):
        if load.encode() in file.read_bytes():
            with suppress(TargetError):
                return read_manifest(path, number=int(file.stem))
    return None


def read_manifest(path: str, *, number: int | None = None) -> Manifest:
    """The newest manifest, or the one of a number; no file that it lists is opened."""
    home = _home(path)
    chosen = _newest(home) if number is None else number
    file = home / _MANIFESTS / f"{chosen or 0:08d}.json"
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        which = "no load was published yet" if chosen is None else f"there is no manifest {chosen}"
        raise TargetError(f"Proxy: {path}: {which}.", hint="publish_load(path, load) makes one.") from None
    except ValueError as error:  # of an earlier release, and a machine that lost its power
        raise TargetError(
            f"Proxy: the manifest {file} cannot be read: it was cut short. Nothing was read.",
            hint="Publish the load again, which makes the next one, or read an earlier one: "
            "read_latest_load(..., number=...).",
        ) from error
    files = tuple(Listed(one["path"], one["bytes"], one["sha256"]) for one in told["files"])
    return Manifest(told["number"], told["load"], told["format"], told["options"], files)


def read_latest_load(
    spark: SparkSession,
    path: str,
    *,
    schema: str | None = None,
    number: int | None = None,
    verify: Literal["sizes", "checksums"] = "sizes",
) -> DataFrame:
    """The rows of the load that the newest manifest lists (or that of a number); no job runs.

    Every listed file is looked at first; with ``verify="checksums"`` it is read for that. ``schema`` (DDL) spares Spark
    the look into the files, and is needed for a load without any.
    """
    if verify not in ("sizes", "checksums"):
        raise ConfigurationError(f"Proxy: verify is 'sizes' or 'checksums', not {verify!r}.")
    manifest, home = read_manifest(path, number=number), _home(path)
    for listed in manifest.files:
        _refuse_changed(
            home / listed.path, listed, f"manifest {manifest.number}", effect="Nothing was read.",
            checksums=verify == "checksums",
        )  # fmt: skip
    reader = spark.read.format(manifest.file_format).options(**dict(manifest.options))
    # Partition folders are columns only where Spark knows at which folder they begin.
    reader = reader.option("basePath", str(home / _LOADS / manifest.load))
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load([str(home / listed.path) for listed in manifest.files])


def _refuse_changed(file: Path, listed: Listed, by: str, *, effect: str, checksums: bool) -> None:
    """Refuse a file that is no longer what it was when it was listed, ``by`` a manifest or a note."""
    wrong = None
    if not file.is_file():
        wrong = "is missing"
    elif (size := file.stat().st_size) != listed.bytes:
        wrong = f"has {size:,} bytes instead of {listed.bytes:,}"
    elif checksums and _checksum(file) != listed.sha256:
        wrong = "has another content than it had (SHA-256)"
    if wrong is not None:
        raise TargetError(
            f"Proxy: the file {listed.path} {wrong}; {by} lists it. {effect}",
            hint="Bring the file back, or go by another load: read_latest_load(..., number=...) reads one, "
            "publish_load(path, load) shows one.",
        )


def _create(home: Path, made: Manifest) -> None:
    """Let a manifest appear whole, and only where nobody else has made one of that number."""
    folder = home / _MANIFESTS
    folder.mkdir(parents=True, exist_ok=True)
    files = [{"path": one.path, "bytes": one.bytes, "sha256": one.sha256} for one in made.files]
    told = {"number": made.number, "load": made.load, "format": made.file_format, "options": dict(made.options)}
    draft = folder / f".{uuid.uuid4().hex}"
    try:
        with draft.open("w", encoding="utf-8") as file:
            json.dump({**told, "files": files}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())  # an empty manifest would be the newest one, if the power goes
        draft.chmod(0o444)
        failpoint("manifest")
        os.link(draft, folder / f"{made.number:08d}.json")
        _sync(folder)
    except FileExistsError:
        raise TargetError(
            f"Proxy: another process has published manifest {made.number} of {home} meanwhile. Its load counts.",
            hint="Publish again if yours is the newer one.",
        ) from None
    finally:
        draft.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Let what was made in a folder outlast a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _newest(home: Path) -> int | None:
    return max((int(file.stem) for file in _manifest_files(home)), default=None)


def _manifest_files(home: Path) -> list[Path]:
    return [file for file in (home / _MANIFESTS).glob("*.json") if file.stem.isdigit()]


def _walk(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file())


def _close(place: Path) -> None:
    """Make the folders of a load read-only."""
    for folder in [place, *(found for found in place.rglob("*") if found.is_dir())]:
        if folder.stat().st_mode & 0o222:
            folder.chmod(0o555)


def _sizes(place: Path) -> dict[str, int]:
    return {file.relative_to(place).as_posix(): file.stat().st_size for file in _data_files(place)}


def _data_files(place: Path) -> list[Path]:
    """What readers read of a load, in order."""
    return [file for file in sorted(_walk(place)) if not file.name.startswith(("_", "."))]


def _checksum(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _home(path: str) -> Path:
    if "://" in path and not path.startswith("file://"):
        raise ConfigurationError(
            f"Proxy: {path} is not on a file system, so that no manifest can be made there exclusively.",
            hint="Write a Delta table: its log is the manifest, see keep_versions.",
        )
    return Path(path.removeprefix("file://")).absolute()
