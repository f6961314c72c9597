"""Files as the destination of a dataset that is made whole: each version is written once, and a manifest shows one.

Guarantee:
    Each run writes its rows into a folder of its own, whole or not at all, and makes it read-only; then the manifest
    shows it, and the ledger records who did. Readers (``read_latest_load``) see the former version until then. An
    attempt that was overtaken shows nothing. A version whose manifest could not be made is not written again by the
    next attempt, if nothing that it was made from has changed. Going back shows an earlier version again, and writes no
    row.
Consequences:
    - All versions stay, also those that waited for their manifest until their inputs changed: an administrator deletes
      what need not be kept any longer.
    - The folder is on this machine's file systems. On an object store a dataset of the lake does the same by its
      versions: ``history="3650 days"``.
    - How many rows were written is known of Parquet; of other formats it is shown as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, get_args

from lakewright.connectors.folder_ledger import FolderAttempt, FolderLog, recorded
from lakewright.errors import ConfigurationError, TargetError
from lakewright.failpoints import failpoint
from lakewright.model.connections import Connections
from lakewright.model.identity import Identity
from lakewright.model.protocols import Writer
from lakewright.patterns.idempotency.proxy_manifest import load_rows, load_size, publish_load, whole_loads, write_load

if TYPE_CHECKING:  # a project file names destinations before Spark is there
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakewright.model.receipts import Commit

__all__ = ["FileProxy"]

_Format = Literal["parquet", "json", "csv", "orc"]


@dataclass(frozen=True, slots=True)
class FileProxy:
    """A folder of write-once versions behind a manifest: ``into=FileProxy("exports/devices")``."""

    folder: str
    """Relative to the project, or absolute."""
    file_format: _Format = "parquet"
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Spark's options for the format; readers get the same."""
    empty: Literal["allow", "fail"] = "fail"

    def __post_init__(self) -> None:
        if not self.folder or "://" in self.folder:
            raise ConfigurationError(
                f"FileProxy: '{self.folder}' is no folder of a file system. Write exports/devices.",
                hint='On an object store let the dataset stay in the lake: history="3650 days" keeps its versions.',
            )
        if self.file_format not in get_args(_Format):
            known = ", ".join(get_args(_Format))
            raise ConfigurationError(f"FileProxy: file_format is one of {known}, not {self.file_format!r}.")
        if self.empty not in ("allow", "fail"):
            raise ConfigurationError(f"FileProxy: empty is 'allow' or 'fail', not {self.empty!r}.")

    @property
    def connection(self) -> str:
        """None is needed."""
        return ""

    @property
    def shown(self) -> str:
        return self.folder

    @property
    def keeps_versions(self) -> bool:
        """Whether it can be rolled back."""
        return True

    def within(self, project: Path) -> FileProxy:
        """The same, with a path that begins at the project's folder."""
        return replace(self, folder=str((project / self.folder).resolve()))

    def check_writer(self, dataset: str, writer: Writer) -> None:
        """Refuse what does not write the whole: a version is complete or it is none."""
        if not writer.replaces_slice:
            raise ConfigurationError(
                f"{dataset}: {type(writer).__name__} changes a table, and what lies behind a proxy is written once.",
                hint="Use DataOverwrite(), or leave into out.",
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
    ) -> OpenedFileProxy:
        return OpenedFileProxy(self, identity, spark, still_mine)


class OpenedFileProxy(FolderAttempt):
    """`FileProxy` opened for one attempt: fulfils ``OutsideTable`` and ``ShowsEarlier``."""

    def __init__(
        self, destination: FileProxy, identity: Identity, spark: SparkSession, still_mine: Callable[[], bool]
    ) -> None:
        super().__init__(Path(destination.folder), identity, spark, still_mine)
        self._destination = destination

    @property
    def path(self) -> str:
        return str(self._folder)

    def schema(self) -> StructType:
        self._refuse("is read by its manifest: read_latest_load")

    def read(self) -> DataFrame:
        self._refuse("is read by its manifest: read_latest_load")

    def merge(self, frame: DataFrame, *, on: str, clauses: str, partition_by: Sequence[str] = ()) -> Commit | None:
        self._refuse("takes no MERGE: its versions are written once")

    def replace(
        self, frame: DataFrame, *, where: str, partition_by: Sequence[str] = (), within: bool = False
    ) -> Commit | None:
        """Runs a job that writes the frame as a version, and lets the manifest show it; None where a newer attempt was
        first.
        """
        if where != "true":
            raise ConfigurationError(
                f"{self._identity.dataset}: a version behind a manifest is whole, but the dataset is cut in slices "
                f"({where}). Nothing was written.",
                hint="Leave event_time out and read the inputs by Whole().",
            )
        self._refuse_lost_lease()
        load = self._waiting() or self._written(frame)
        path = str(self._folder)
        return self._show(load, size=load_size(path, load), rows=load_rows(path, load))

    def _written(self, frame: DataFrame) -> str:
        to = self._destination
        load = write_load(
            frame,
            str(self._folder),
            file_format=to.file_format,
            options=to.options,
            empty=to.empty,
            made_from=self._identity.made_from,
        )
        failpoint("loaded")
        return load

    def _waiting(self) -> str | None:
        """A load that was written from the same, whole, by an attempt that died before it was recorded."""
        to, made_from = self._destination, self._identity.made_from
        if made_from is None:
            return None
        whole = whole_loads(str(self._folder), made_from=made_from, file_format=to.file_format, options=to.options)
        known = set(self._recorded())
        return next((load for load in reversed(whole) if load not in known), None)

    def show_earlier(self, position: int) -> Commit | None:
        """Show the version again that was shown at a position of the ledger; no row is written."""
        loads = self._recorded(upto=position)
        if not loads:
            raise TargetError(
                f"{self._identity.dataset}: nothing was shown at position {position} of {self._folder}. Nothing was "
                "changed."
            )
        return self._show(loads[-1], size=0, rows=None)

    def _recorded(self, upto: int | None = None) -> list[str]:
        """The loads that the ledger tells of, in order."""
        log = FolderLog(self._folder, self._identity.dataset)
        told = [Identity.from_json(commit.metadata) for commit in log.commits(upto=upto) if commit.data_change]
        return [str(one.details["load"]) for one in told if one is not None and "load" in one.details]

    def _show(self, load: str, *, size: int, rows: int | None) -> Commit | None:
        def publish() -> None:
            self._refuse_lost_lease()
            publish_load(str(self._folder), load)

        mine = replace(self._identity, details={**self._identity.details, "load": load})
        commit = recorded(self._folder, mine, publish, size=size, rows=rows)
        failpoint(f"committed.{mine.part}")
        return commit

    def _refuse(self, why: str) -> NoReturn:
        raise TargetError(f"{self._identity.dataset}: {self._folder} {why}.")
