"""A folder as the destination of a source of files: each arrival is copied with names and bytes, and proven.

Guarantee:
    Files are copied aside and read once more there. Only where number, names, sizes and SHA-256 are those of the
    source, they are moved to their names, each as a whole, and the ledger records the arrival with its proof. A copy
    that differs, or dies half-way, is not recorded, and its repeat leaves what one copy would have left. An attempt
    whose number is not higher than the one recorded for its arrival changes nothing, whenever it wakes up.
Consequences:
    - A file that is replaced at the source is replaced here. One that is deleted there stays, unless the copy is a
      ``mirror``: then each arrival is the whole of the source, and what it no longer has is deleted here once all the
      rest is in its place. Only files that were copied here are ever deleted.
    - While an arrival is moved to its names, a reader may meet some of its files without the others: ask
      ``lakewright ready`` before reading.
    - Both folders are on this machine's file systems. For buckets use the provider's own replication.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lakewright.connectors.file_windows import refuse_gone_files, window_files, window_folder
from lakewright.connectors.files import CsvFiles, JsonFiles, ParquetFiles
from lakewright.connectors.folder_ledger import FolderAttempt, FolderLog, recorded
from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.failpoints import failpoint
from lakewright.model.arrivals import Arrival
from lakewright.model.connections import Connections
from lakewright.model.identity import Identity
from lakewright.model.protocols import Source, SourceContext
from lakewright.model.slices import Slice
from lakewright.patterns.ingestion.mirror_folder import drop_empty_folders

if TYPE_CHECKING:  # a project file names destinations before Spark is there
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakewright.model.receipts import Commit

__all__ = ["FolderCopy"]

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """A folder that files are copied to: ``to="/mnt/staging/visits"`` of ``Pipeline.replicate``."""

    folder: str
    mirror: bool = False
    """Whether what is deleted at the source is deleted here."""

    @property
    def connection(self) -> str:
        """None is needed."""
        return ""

    @property
    def shown(self) -> str:
        return self.folder

    @property
    def adds_arrivals(self) -> bool:
        """Each arrival is added to those before it, or is the whole of a mirror; nobody judges rows."""
        return True

    def within(self, project: Path) -> FolderCopy:
        """The same, with a path that begins at the project's folder."""
        return replace(self, folder=str((project / self.folder).resolve()))

    def check_source(self, dataset: str, source: Source) -> None:
        """Refuse all but files."""
        if not isinstance(source, JsonFiles | CsvFiles | ParquetFiles):
            raise ConfigurationError(
                f"{dataset}: {type(source).__name__} has no files that could be copied to {self.folder}.",
                hint="Copy a folder of files, such as JsonFiles('landing/visits'); a topic goes to a TopicCopy(...).",
            )

    def log(self, dataset: str, *, connections: Connections) -> FolderLog:
        return FolderLog(Path(self.folder), dataset)

    def open(
        self,
        dataset: str,
        identity: Identity,
        *,
        connections: Connections,
        spark: SparkSession,
        still_mine: Callable[[], bool] = lambda: True,
    ) -> OpenedFolder:
        return OpenedFolder(self, identity, spark, still_mine)


class OpenedFolder(FolderAttempt):
    """A folder opened for one attempt: fulfils ``OutsideTable`` and ``CopiesSource``."""

    def __init__(
        self, destination: FolderCopy, identity: Identity, spark: SparkSession, still_mine: Callable[[], bool]
    ) -> None:
        super().__init__(Path(destination.folder), identity, spark, still_mine)
        self._mirror = destination.mirror

    @property
    def path(self) -> str:
        return str(self._folder)

    def schema(self) -> StructType:
        self._refuse()

    def read(self) -> DataFrame:
        self._refuse()

    def merge(self, frame: DataFrame, *, on: str, clauses: str, partition_by: Sequence[str] = ()) -> Commit | None:
        self._refuse()

    def replace(
        self, frame: DataFrame, *, where: str, partition_by: Sequence[str] = (), within: bool = False
    ) -> Commit | None:
        self._refuse()

    def copy_source(
        self, source: Source, arrival: Arrival, *, schema: StructType | None, ctx: SourceContext
    ) -> Commit | None:
        """Copy the files of an arrival, prove and record them; None where a newer attempt was first."""
        origin, names = window_folder(arrival, ctx), [file.path for file in window_files(arrival)]
        self._refuse_overlap(origin)
        log = FolderLog(self._folder, self._identity.dataset)
        lost = sorted(set(ctx.known_files) - set(names)) if self._mirror else []
        if self._mirror:
            self._refuse_older(log, arrival)
        aside = log.place / f"aside-{self._identity.number}"
        try:
            told, size = _proof(names, [_copy(origin / name, aside / name) for name in names])
            refuse_gone_files(arrival, ctx)  # what changed while it was copied is another version
            if (told, size) != _proof(names, [_checksum(aside / name) for name in names]):
                raise TargetError(
                    f"{self._identity.dataset}, {self._identity.slice_id}: the copy in {self._folder} is not what was "
                    "read from the source. Nothing was moved to its place.",
                    hint="The disk may be faulty, or somebody wrote there: run again.",
                )
            failpoint("folder.copied")
            self._refuse_lost_lease()
            proven = replace(self._identity, details={**self._identity.details, "proof": told})
            return recorded(self._folder, proven, lambda: self._move(aside, names, lost), size=size)
        except OSError as error:
            raise TargetError(
                f"{self._identity.dataset}: {error.filename or self._folder} could not be copied ({error.strerror}). "
                "The arrival was not recorded.",
                hint="Give this user the rights, or free some space, then run again.",
            ) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _move(self, aside: Path, names: Sequence[str], lost: Sequence[str]) -> None:
        self._refuse_lost_lease()
        for name in names:
            target = self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(aside / name, target)
        for name in lost:
            (self._folder / name).unlink(missing_ok=True)
        drop_empty_folders(self._folder, lost)
        failpoint("folder.moved")

    def _refuse_older(self, log: FolderLog, arrival: Arrival) -> None:
        """An older state of the source must not take the place of a newer one."""
        told = [Identity.from_json(commit.metadata) for commit in log.commits() if commit.data_change]
        taken = [Slice.parse(one.slice_id).number for one in told if one is not None]
        if taken and max(taken) > arrival.number:
            raise ConfigurationError(
                f"{self._identity.dataset}: arrival-{max(taken)} is in place, which is newer than "
                f"{self._identity.slice_id}. Nothing was copied.",
                hint="A mirror holds what the source holds now: to have an earlier state back, bring it back there.",
            )

    def _refuse_overlap(self, origin: Path) -> None:
        mine = self._folder
        if origin == mine or origin in mine.parents or mine in origin.parents:
            raise ConfigurationError(
                f"{self._identity.dataset}: {mine} and {origin} lie within each other, so copies would be taken for "
                "new files. Nothing was copied.",
                hint="Name a folder elsewhere.",
            )

    def _refuse(self) -> NoReturn:
        raise TargetError(f"{self._identity.dataset}: {self._folder} takes files as they are, and has no rows.")


def _copy(source: Path, target: Path) -> tuple[str, int]:
    """Copy a file; its checksum as it was read, and its size."""
    target.parent.mkdir(parents=True, exist_ok=True)
    found, size = hashlib.sha256(), 0
    try:
        read = source.open("rb")
    except FileNotFoundError:
        raise InputError(f"{source} vanished while it was to be copied. Nothing was moved to its place.") from None
    with read, target.open("wb") as written:
        while chunk := read.read(_CHUNK):
            found.update(chunk)
            size += written.write(chunk)
        written.flush()
        os.fsync(written.fileno())
    shutil.copystat(source, target)
    return found.hexdigest(), size


def _checksum(path: Path) -> tuple[str, int]:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest(), path.stat().st_size


def _proof(names: Sequence[str], sums: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """What two copies have in common, in words, and their bytes."""
    size = sum(one for _, one in sums)
    whole = hashlib.sha256(json.dumps(sorted(zip(names, sums, strict=True))).encode()).hexdigest()[:32]
    noun = "file" if len(names) == 1 else "files"
    return f"{len(names):,} {noun}, {size:,} bytes, checksum {whole}", size
