"""What all destinations in PostgreSQL have in common: as a project declares them, and opened for one attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lakewright.connectors.postgres_connection import TableName
from lakewright.errors import ConfigurationError
from lakewright.model.connections import Connection, Connections
from lakewright.model.identity import Identity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakewright.connectors.postgres_ledger import PostgresLog
    from lakewright.connectors.postgres_version_load import VersionLoad
    from lakewright.model.receipts import Commit

__all__ = ["OpenedRelation", "OpenedView", "PostgresDestination"]


class PostgresDestination:
    """A table or view of a connection (``into=...``): where it is, and how an attempt opens it."""

    __slots__ = ()

    connection: str
    """As ``[connections.NAME]`` declares it."""

    @property
    def relation(self) -> str:
        """The name of the table or view."""
        raise NotImplementedError

    @property
    def opened_as(self) -> type[OpenedRelation[Any]]:
        """What an attempt works with."""
        raise NotImplementedError

    @property
    def shown(self) -> str:
        return f"{self.connection}: {self.relation}"

    def log(self, dataset: str, *, connections: Connections) -> PostgresLog:
        """What the ledger says of a dataset."""
        from lakewright.connectors.postgres_ledger import PostgresLog

        return PostgresLog(self._connection(dataset, connections), TableName.parse(self.relation), dataset)

    def open(
        self,
        dataset: str,
        identity: Identity,
        *,
        connections: Connections,
        spark: SparkSession,
        still_mine: Callable[[], bool],
    ) -> OpenedRelation[Any]:
        """The table or view, to be written by one attempt."""
        relation, connection = TableName.parse(self.relation), self._connection(dataset, connections)
        return self.opened_as(self, relation, connection, dataset, identity, spark, still_mine)

    def _connection(self, dataset: str, connections: Connections) -> Connection:
        return connections.get(self.connection, kind="postgresql", asked_by=dataset)


Chosen = TypeVar("Chosen", bound=PostgresDestination)


class OpenedRelation(Generic[Chosen]):
    """A table or view of PostgreSQL, opened by one attempt of one dataset."""

    def __init__(
        self,
        destination: Chosen,
        relation: TableName,
        connection: Connection,
        dataset: str,
        identity: Identity,
        spark: SparkSession,
        still_mine: Callable[[], bool],
    ) -> None:
        self._destination = destination
        self._relation = relation
        self._connection = connection
        self._dataset = dataset
        self._identity = identity
        self._spark = spark
        self._still_mine = still_mine
        self.path = destination.shown
        self._what = f"{dataset}, {identity.slice_id} ({self.path})"

    @property
    def spark(self) -> SparkSession:
        return self._spark

    def schema(self) -> StructType:
        return self.read().schema

    def read(self) -> DataFrame:
        from lakewright.connectors.postgres_connection import jdbc_options

        options = jdbc_options(self._connection)
        return self._spark.read.format("jdbc").options(**options).option("dbtable", self._relation.sql).load()

    def merge(self, frame: DataFrame, *, on: str, clauses: str, partition_by: Sequence[str] = ()) -> Commit | None:
        raise ConfigurationError(f"{self._what}: PostgreSQL takes no MERGE of Spark's. Nothing was written.")


class OpenedView(OpenedRelation[Chosen]):
    """A view that shows one of several whole versions: fulfils ``OutsideTable`` and ``ShowsEarlier``."""

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

    def touch(self) -> Commit | None:
        """Record the attempt's number and identity, without rows: what a fence is."""
        return self._load().fence()

    def show_earlier(self, position: int) -> Commit | None:
        """Show the version again that was shown at a position of the ledger, without a load."""
        return self._load().show_earlier(position)

    def _load(self) -> VersionLoad:
        raise NotImplementedError
