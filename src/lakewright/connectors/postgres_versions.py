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

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakewright.connectors.file_windows import refuse_gone_files, window_files, window_folder
from lakewright.connectors.files import CsvFiles
from lakewright.connectors.postgres_connection import TableName
from lakewright.connectors.postgres_opened import OpenedView, PostgresDestination
from lakewright.errors import ConfigurationError
from lakewright.model.arrivals import Arrival
from lakewright.model.loads import LoadLimits
from lakewright.model.protocols import Source, SourceContext, Writer

if TYPE_CHECKING:  # a project file names destinations before Spark is there
    from pyspark.sql.types import StructType

    from lakewright.connectors.postgres_version_load import VersionLoad
    from lakewright.model.receipts import Commit

__all__ = ["PostgresVersions"]


@dataclass(frozen=True, slots=True)
class PostgresVersions(PostgresDestination):
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
    def relation(self) -> str:
        return self.view

    @property
    def opened_as(self) -> type[OpenedVersions]:
        return OpenedVersions

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


class OpenedVersions(OpenedView[PostgresVersions]):
    """`PostgresVersions` opened for one attempt: fulfils ``OutsideTable``, ``CopiesSource`` and ``ShowsEarlier``."""

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
