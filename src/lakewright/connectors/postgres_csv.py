"""CSV files of changes, applied to a table of PostgreSQL by key: by the database's own COPY, without Spark.

Guarantee:
    All files are copied into one staging table, made like the target (``LIKE``); then one transaction merges it. A file
    with a column that the target lacks, or a row that does not fit, leaves the target as it was, with the rows of the
    other files. The same files twice leave the same table.
Consequences:
    - The columns are those of the target: no second schema is declared. A column that the target has gained is taken
      as soon as the files have it; one that the files lack keeps what it holds.
    - The files are read on this machine, one after the other.
"""

from __future__ import annotations

import csv
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lakewright.connectors.postgres_changes import fold_staged, refuse_missing_columns
from lakewright.connectors.postgres_connection import Session, TableName, ask, connecting, connection_arguments
from lakewright.connectors.postgres_copy import TASK_SETTING, Sent
from lakewright.connectors.postgres_filling import CsvDialect
from lakewright.connectors.postgres_settling import settled_transaction
from lakewright.connectors.postgres_shape import stored_columns
from lakewright.connectors.postgres_staging import Stage, stage_name, staging
from lakewright.connectors.postgres_write import changed_rows, merge_staged
from lakewright.errors import ConfigurationError, InputError, SchemaChangeError
from lakewright.model.connections import Connection
from lakewright.model.outside import KeyedChanges

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["merge_csv"]


def merge_csv(
    files: Sequence[str | PathLike[str]],
    connection: Connection,
    *,
    table: str,
    keys: Sequence[str],
    sequence: str | None = None,
    deleted: str | None = None,
    delete: Literal["hard", "soft"] = "hard",
    delimiter: str = ",",
    header: bool = True,
    encoding: str = "UTF-8",
) -> int:
    """COPY the files and merge their rows by key, as one batch: see ``merge_rows``. Returns the rows changed.

    A header names the columns of its file, in any order; without one a file has all columns of the table in their
    order, and the flag of deleted rows after them, where the table does not keep it.
    """
    if isinstance(files, str) or not files:
        raise ConfigurationError("Merger: 'files' is a list of at least one CSV file.")
    changes = KeyedChanges(keys, sequence, deleted, delete)
    target, what = TableName.parse(table), f"{connection.name}: {table}"
    extra = {deleted: "boolean"} if deleted else {}
    dialect = CsvDialect(delimiter, header=header, encoding=encoding)
    stage = Stage(stage_name(target, secrets.token_hex(8), 1), target, what)
    arguments = connection_arguments(connection)
    with connecting(connection, what=what, effect="Nothing was written.") as session:
        columns = {file: _columns(session, stage, file, dialect, extra) for file in map(Path, files)}
        first = next(iter(columns.values()))
        _refuse_other_columns(columns, what)
        refuse_missing_columns(first, changes, what=what)
        with staging(session, stage, first, extra=extra), settled_transaction(session, arguments, what=what):
            stage.sent = _copied(session, stage, columns, dialect)
            fold_staged(session, stage, changes)
            return changed_rows(merge_staged(session, stage, changes))


def _copied(session: Session, stage: Stage, columns: dict[Path, list[str]], dialect: CsvDialect) -> Sent:
    task = secrets.randbits(62)
    ask(session, f"SET LOCAL {TASK_SETTING} = '{task}'")
    rows = sum(dialect.copy(session, stage.table, names, file, stage.what) for file, names in columns.items())
    return Sent((task,), rows)


def _refuse_other_columns(columns: dict[Path, list[str]], what: str) -> None:
    first, of_first = next(iter(columns.items()))
    for file, names in columns.items():
        if set(names) != set(of_first):
            raise SchemaChangeError(
                f"{what}: {file.name} has the columns {', '.join(names)}, and {first.name} has "
                f"{', '.join(of_first)}. Nothing was written.",
                hint="Merge files of different columns by a call each.",
            )


def _columns(session: Session, stage: Stage, file: Path, dialect: CsvDialect, extra: dict[str, str]) -> list[str]:
    if not file.is_file():
        raise InputError(f"{stage.what}: there is no file {file}. Nothing was written.")
    if not dialect.header:
        return list({**dict.fromkeys(stored_columns(session, stage.target) or {}), **extra})
    with file.open("rb") as lines:
        line = lines.readline().rstrip(b"\r\n")
    if not line:
        raise InputError(f"{stage.what}: {file.name} begins without a header. Nothing was written.")
    # The database knows its encodings by names of its own.
    row = ask(session, "SELECT convert_from(%s, %s)", (line, dialect.encoding)).fetchone()
    assert row is not None
    return next(csv.reader([str(row[0])], delimiter=dialect.delimiter, quotechar=dialect.quote))
