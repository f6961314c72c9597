"""What all destinations in PostgreSQL have in common once they are opened for one attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from lakewright.connectors.postgres_connection import TableName
from lakewright.errors import ConfigurationError
from lakewright.model.connections import Connection
from lakewright.model.identity import Identity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakewright.model.receipts import Commit

__all__ = ["OpenedRelation"]


class _Shown(Protocol):
    @property
    def shown(self) -> str: ...


Chosen = TypeVar("Chosen", bound=_Shown)


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
