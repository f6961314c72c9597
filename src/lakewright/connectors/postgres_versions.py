"""Versioned tables behind a view of PostgreSQL: ``into=PostgresVersions("blog_db", "devices", keep=3)``.

Guarantee:
    A load goes into a table of its own (``devices_3``) while readers go on with the one before; only when it is whole
    and has been judged does the view ``devices`` show it, in one transaction that also writes the ledger's row. Killed
    at any moment, the view shows one whole version; a repeat makes the same table anew, no row is there twice. An
    older version that is loaded again is not shown. The last ``keep`` versions stay: ``lakewright rollback`` shows the
    one before, without a load.
Consequences:
    - A column that was dropped, moved or retyped makes the view anew in that transaction, with its grants; that is
      refused where other views are built on it.
    - Write to it through Lakewright only: rows of a versioned table are not looked at again.
    - The user needs the right to create tables and views in the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakewright.connectors.file_windows import refuse_gone_files, window_files, window_folder
from lakewright.connectors.files import CsvFiles
from lakewright.connectors.postgres_connection import TableName
from lakewright.connectors.postgres_opened import OpenedRelation
from lakewright.errors import ConfigurationError
from lakewright.model.arrivals import Arrival
from lakewright.model.connections import Connection, Connections
from lakewright.model.identity import Identity
from lakewright.model.loads import LoadLimits
from lakewright.model.protocols import Source, SourceContext, Writer

if TYPE_CHECKING:  # a project file names destinations before Spark is there
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakewright.connectors.postgres_ledger import PostgresLog
    from lakewright.connectors.postgres_version_load import VersionLoad
    from lakewright.model.receipts import Commit

__all__ = ["PostgresVersions"]


@dataclass(frozen=True, slots=True)
class PostgresVersions:
    """A view (``devices`` or ``shop.devices``) of a connection, and the versioned tables behind it."""

    connection: str
    view: str
    keep: int = 3
    min_rows: int = 1
    max_loss: float | None = None
    rules: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Name -> a condition in PostgreSQL's SQL that every row fulfils before a version is shown."""

    def __post_init__(self) -> None:
        if not self.connection:
            raise ConfigurationError("PostgresVersions: name the connection, as [connections.NAME] declares it.")
        if not self.view or TableName.parse(self.view).name.startswith("_lw_"):
            raise ConfigurationError(f"PostgresVersions: '{self.view}' is no name for a view. Write devices.")
        if self.keep < 1:
            raise ConfigurationError(f"PostgresVersions: keep is at least 1, not {self.keep}.")
        self.limits  # noqa: B018  (a wrong limit is told when the file is loaded)

    @property
    def keeps_versions(self) -> bool:
        """Whether it can be rolled back."""
        return True

    @property
    def limits(self) -> LoadLimits:
        return LoadLimits(self.min_rows, self.max_loss, self.rules)

    @property
    def shown(self) -> str:
        return f"{self.connection}: {self.view}"

    def check_writer(self, dataset: str, writer: Writer) -> None:
        """Refuse what does not write the whole: a version is complete or it is none."""
        if not writer.replaces_slice:
            raise ConfigurationError(
                f"{dataset}: {type(writer).__name__} changes a table, and a version behind a view is always whole.",
                hint="Use DataOverwrite(), or into=PostgresTable(...).",
            )

    def check_source(self, dataset: str, source: Source) -> None:
        """Refuse all but CSV files, which the database reads by its own COPY."""
        if not isinstance(source, CsvFiles) or source.escape != source.quote or source.options:
            raise ConfigurationError(
                f"{dataset}: {type(source).__name__} cannot go into {self.shown} by COPY, which reads plain CSV files.",
                hint="Declare the source without into, and a dataset that reads it with into=PostgresVersions(...).",
            )

    def log(self, dataset: str, *, connections: Connections) -> PostgresLog:
        from lakewright.connectors.postgres_ledger import PostgresLog

        return PostgresLog(self._connection(dataset, connections), TableName.parse(self.view), dataset)

    def open(
        self,
        dataset: str,
        identity: Identity,
        *,
        connections: Connections,
        spark: SparkSession,
        still_mine: Callable[[], bool],
    ) -> OpenedVersions:
        relation, connection = TableName.parse(self.view), self._connection(dataset, connections)
        return OpenedVersions(self, relation, connection, dataset, identity, spark, still_mine)

    def _connection(self, dataset: str, connections: Connections) -> Connection:
        return connections.get(self.connection, kind="postgresql", asked_by=dataset)


class OpenedVersions(OpenedRelation[PostgresVersions]):
    """`PostgresVersions` opened for one attempt: fulfils ``OutsideTable``, ``CopiesSource`` and ``ShowsEarlier``."""

    def exists(self) -> bool:
        from lakewright.connectors.postgres_connection import connecting
        from lakewright.connectors.postgres_views import shown_version

        with connecting(self._connection, what=self._what) as session:
            return shown_version(session, self._relation) is not None

    def replace(
        self, frame: DataFrame, *, where: str, partition_by: Sequence[str] = (), within: bool = False
    ) -> Commit | None:
        """Runs a job that loads the frame as the next version, and shows it; None where a newer attempt was first."""
        from lakewright.connectors.postgres_filling import FrameFilling

        if where != "true":
            raise ConfigurationError(
                f"{self._what}: a version behind a view is whole, but the dataset is cut in slices ({where}).",
                hint="Leave event_time out and read the inputs by Whole(); or use into=PostgresTable(...).",
            )
        filling = FrameFilling(frame, self._identity.app_id, self._identity.number, self._what)
        return self._load().run(filling)

    def copy_source(
        self, source: Source, arrival: Arrival, *, schema: StructType | None, ctx: SourceContext
    ) -> Commit | None:
        """COPY the files of an arrival into the version of its number; None where a newer attempt was first."""
        from lakewright.connectors.postgres_filling import CsvFilling

        assert isinstance(source, CsvFiles)
        if schema is None:
            raise ConfigurationError(
                f"{self._dataset}: COPY into {self.path} needs a schema.", hint='Declare it: schema="type STRING, ...".'
            )
        refuse_gone_files(arrival, ctx)
        folder = window_folder(arrival, ctx)
        filling = CsvFilling(
            [folder / file.path for file in window_files(arrival)],
            schema,
            self._what,
            delimiter=source.delimiter,
            quote=source.quote,
            header=source.header,
            encoding=source.encoding,
        )
        return self._load().run(filling, number=arrival.number)

    def touch(self) -> Commit | None:
        """Record the attempt's number and identity, without rows: what a fence is."""
        return self._load().fence()

    def show_earlier(self, position: int) -> Commit | None:
        """Show the version again that was shown at a position of the ledger, without a load."""
        return self._load().show_earlier(position)

    def _load(self) -> VersionLoad:
        from lakewright.connectors.postgres_version_load import VersionLoad

        chosen = self._destination
        return VersionLoad(
            connection=self._connection,
            view=self._relation,
            dataset=self._dataset,
            identity=self._identity,
            what=self._what,
            still_mine=self._still_mine,
            keep=chosen.keep,
            limits=chosen.limits,
        )
