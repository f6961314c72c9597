"""Full loads into PostgreSQL without a pipeline: a version behind a view, from a frame or by COPY from CSV files.

Guarantee:
    The version is loaded into a table of its own and judged there; then the view shows it, in one transaction. A
    repeat of the same version makes its table anew. A version older than the one that is shown is loaded and not
    shown. See ``PostgresVersions`` for the same in a pipeline, where a run that was overtaken is stopped as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from lakewright.connectors.postgres_connection import TableName, connecting, connection_arguments
from lakewright.connectors.postgres_filling import CsvFilling, FrameFilling
from lakewright.connectors.postgres_settling import settled_transaction
from lakewright.connectors.postgres_version_load import IN_DOUBT, Filling, filled_version, switched_to
from lakewright.connectors.postgres_views import show_version, shown_version, versions_of
from lakewright.errors import TargetError
from lakewright.model.connections import Connection
from lakewright.model.loads import LoadLimits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["copy_version", "load_version", "show_earlier_version"]


def load_version(
    df: DataFrame,
    connection: Connection,
    *,
    view: str,
    version: int,
    keep: int = 3,
    min_rows: int = 1,
    max_loss: float | None = None,
    rules: Mapping[str, str] = MappingProxyType({}),
) -> bool:
    """Runs a job that loads the frame as ``view_version``; tells whether the view shows it now."""
    what = f"{connection.name}: {view}, version {version}"
    filling = FrameFilling(df, "library", version, what)
    return _load(filling, connection, view, version, keep, LoadLimits(min_rows, max_loss, rules), what)


def copy_version(
    files: Sequence[Path],
    connection: Connection,
    *,
    view: str,
    version: int,
    schema: StructType,
    delimiter: str = ",",
    header: bool = True,
    encoding: str = "UTF-8",
    keep: int = 3,
    min_rows: int = 1,
    max_loss: float | None = None,
    rules: Mapping[str, str] = MappingProxyType({}),
) -> bool:
    """Load CSV files as ``view_version`` by COPY, without Spark; tells whether the view shows it now."""
    what = f"{connection.name}: {view}, version {version}"
    filling = CsvFilling(files, schema, what, delimiter=delimiter, header=header, encoding=encoding)
    return _load(filling, connection, view, version, keep, LoadLimits(min_rows, max_loss, rules), what)


def show_earlier_version(connection: Connection, *, view: str, version: int | None = None) -> int:
    """Let the view show a version that is kept (by default the one before), without a load; tells which."""
    name = TableName.parse(view)
    with connecting(connection, what=f"{connection.name}: {view}") as session, session.transaction():
        current, kept = shown_version(session, name), versions_of(session, name)
        earlier = [number for number in sorted(kept) if current is not None and number < current]
        chosen = version if version is not None else (earlier[-1] if earlier else None)
        if chosen is None or chosen not in kept:
            listed = ", ".join(str(number) for number in sorted(kept)) or "none"
            raise TargetError(f"{view}: there is no such version to go back to. Kept: {listed}. Nothing was changed.")
        show_version(session, name, kept[chosen])
    return chosen


def _load(
    filling: Filling,
    connection: Connection,
    view: str,
    number: int,
    keep: int,
    limits: LoadLimits,
    what: str,
) -> bool:
    name, arguments = TableName.parse(view), connection_arguments(connection)
    with (
        connecting(connection, what=what, effect="The view shows what it showed.") as session,
        filled_version(session, name, number, filling, arguments=arguments, limits=limits, what=what) as version,
        settled_transaction(session, arguments, what=what, in_doubt=IN_DOUBT),
    ):
        return switched_to(session, name, version, keep=keep)
