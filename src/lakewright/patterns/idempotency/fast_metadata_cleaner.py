"""Fast Metadata Cleaner: drop or truncate a whole part of a table instead of deleting its rows.

Problem:
    A daily load begins by deleting the rows of the run before. The table grows, and with it the time that the DELETE
    takes, until cleaning is slower than loading.
Guarantee:
    The dataset is one table per week (month, year) behind one view. The first day of a part cleans it, by TRUNCATE or
    DROP, whose cost does not follow the rows; the other days only load, each once: a day that is there already is
    refused, with the part that would have to be made again. So a replay of a whole part leaves what one pass left. A
    reader of the view never meets a missing table.
Consequences:
    - The part is the smallest that can be made again: ``part_runs`` widens a backfill to it, or refuses. For one
      customer or one day use Data Overwrite or Merger.
    - While a part is made again, day by day, the view shows the days that are done. ``whole=True`` loads a part
      at once.
    - TRUNCATE and DROP are no part of a snapshot: a REPEATABLE READ reader that began before a part was made again
      finds that part empty. READ COMMITTED, the default, does not.
    - Parts add up, and stores have quotas: ``max_parts`` refuses one too many, ``freeze_parts`` folds old ones into one
      read-only table per year.
    - An optional column is added to all parts by ``add_column_to_parts``, without loading anything again; one that must
      have a value is filled by replaying the parts.
    - It needs a database. On Delta the unit is the table too (TRUNCATE takes no partition), and its Data Overwrite
      replaces a partition by metadata alone: use that.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from lakewright.connectors.postgres_connection import TableName, ask, connecting, connection_arguments
from lakewright.connectors.postgres_filling import CsvFilling, FrameFilling, column_types
from lakewright.connectors.postgres_part_freezing import fold_parts, old_by_year
from lakewright.connectors.postgres_part_load import load_part, part_table
from lakewright.connectors.postgres_parts import (
    add_part_column,
    begin_parts,
    clean_by_drop,
    create_part,
    note_loaded,
    refuse_no_metadata,
    types_of_parts,
)
from lakewright.connectors.postgres_version_load import Filling
from lakewright.model.connections import Connection
from lakewright.model.parts import PartTables, part_of, part_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = [
    "PartTables",
    "add_column_to_parts",
    "copy_part_table",
    "freeze_parts",
    "part_runs",
    "prepare_part",
    "replace_part_table",
]


def prepare_part(connection: Connection, parts: PartTables, *, day: date, schema: StructType) -> bool:
    """The first step of a run: on the first day of a part, make its table (or clean it) and refresh the view.

    Tells whether it did; on any other day nothing happens. For jobs that load by other means than `replace_part_table`,
    which does this itself.
    """
    refuse_no_metadata(connection)
    part, view, what = part_of(day, parts.every), TableName.parse(parts.view), f"{connection.name}: {parts.view}, {day}"
    if part.start != day:
        return False
    types = column_types(schema, what)
    with connecting(connection, what=what, effect="Nothing was written.") as session, session.transaction():
        known = part_table(session, view, part, what=what)
        if known is None:
            create_part(session, view, part, types, limit=parts.max_parts)
        else:
            stored = types_of_parts(session, known.table, types, what=what)
            if parts.clean == "drop":
                clean_by_drop(session, view, known, stored)
            else:
                ask(session, f"TRUNCATE {known.table.sql}")
            note_loaded(session, view, known.table, [])
    return True


def replace_part_table(
    df: DataFrame, connection: Connection, parts: PartTables, *, day: date, whole: bool = False
) -> int:
    """Runs a job that loads a day into its part, which is cleaned first on its first day; returns the rows.

    With ``whole`` the frame has all days of the part that ``day`` lies in, and replaces it at once.
    """
    refuse_no_metadata(connection)
    what = f"{connection.name}: {parts.view}, {day}"
    return _load(FrameFilling(df, "parts", 0, what), connection, parts, day, whole=whole, what=what)


def copy_part_table(
    files: Sequence[Path],
    connection: Connection,
    parts: PartTables,
    *,
    day: date,
    schema: StructType,
    delimiter: str = ",",
    header: bool = True,
    encoding: str = "UTF-8",
    whole: bool = False,
) -> int:
    """The same from CSV files by PostgreSQL's own COPY, without Spark."""
    refuse_no_metadata(connection)
    what = f"{connection.name}: {parts.view}, {day}"
    filling = CsvFilling(files, schema, what, delimiter=delimiter, header=header, encoding=encoding)
    return _load(filling, connection, parts, day, whole=whole, what=what)


def freeze_parts(connection: Connection, parts: PartTables, *, before: date) -> tuple[str, ...]:
    """Fold the parts that end on or before a day into one read-only table per year; returns the tables that grew.

    The view shows the same rows. Repeating it adds what has become old since to the table of its year, which is named
    after the days that it holds; a part between them that is not old yet, or was never loaded (no load came through),
    begins a table of its own, so that it can still be loaded.
    """
    refuse_no_metadata(connection)
    view, what = TableName.parse(parts.view), f"{connection.name}: {parts.view}, freezing"
    with connecting(connection, what=what, effect="Nothing was changed.") as session, session.transaction():
        begin_parts(session, view)
        return tuple(str(fold_parts(session, view, group)) for group in old_by_year(session, view, before))


def add_column_to_parts(connection: Connection, parts: PartTables, *, column: str, kind: str) -> int:
    """Add an optional column (``kind`` in PostgreSQL's words) to all parts and the view; returns the number of parts.

    Nothing is loaded again: rows that are there have NULL. Repeating it changes nothing.
    """
    refuse_no_metadata(connection)
    view, what = TableName.parse(parts.view), f"{connection.name}: {parts.view}, column {column}"
    with connecting(connection, what=what, effect="Nothing was changed.") as session, session.transaction():
        begin_parts(session, view)
        return add_part_column(session, view, column, kind)


def _load(filling: Filling, connection: Connection, parts: PartTables, day: date, *, whole: bool, what: str) -> int:
    with connecting(connection, what=what, effect="Nothing was written.") as session:
        arguments = connection_arguments(connection)
        return load_part(session, parts, filling, day=day, whole=whole, arguments=arguments, what=what)
