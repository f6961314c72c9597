"""Where the rows of a version come from: a frame, sent by the executors; or CSV files, by the database's own COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakewright.connectors.postgres_connection import ConnectionArguments, Session, TableName, ask, quoted, words
from lakewright.connectors.postgres_staging import Stage, stage_name, staging
from lakewright.errors import InputError, first_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["CsvDialect", "CsvFilling", "FrameFilling", "column_types"]

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class FrameFilling:
    """A frame's rows, by way of a staging table (see `staging`)."""

    frame: DataFrame
    owner: str
    number: int
    what: str

    def types(self) -> Mapping[str, str]:
        return column_types(self.frame.schema, self.what)

    @contextmanager
    def sending(
        self, session: Session, table: TableName, arguments: ConnectionArguments
    ) -> Iterator[Callable[[], int]]:
        """Runs the job that sends the rows."""
        stage = Stage(stage_name(table, self.owner, self.number), table, self.what)
        with staging(session, stage, self.frame.columns):
            stage.fill(self.frame, arguments)

            def move() -> int:
                stage.refuse_incomplete(session)
                columns = ", ".join(quoted(name) for name in stage.columns)
                return ask(
                    session, f"INSERT INTO {table.sql} ({columns}) SELECT {columns} FROM {stage.rows()}"
                ).rowcount

            yield move


@dataclass(frozen=True, slots=True)
class CsvFilling:
    """CSV files as they are: no Spark, no parsing of ours. The header must name the columns in their order."""

    files: Sequence[Path]
    schema: StructType
    what: str
    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    encoding: str = "UTF-8"

    def types(self) -> Mapping[str, str]:
        return column_types(self.schema, self.what)

    @contextmanager
    def sending(
        self, session: Session, table: TableName, arguments: ConnectionArguments
    ) -> Iterator[Callable[[], int]]:
        def move() -> int:
            return sum(self.dialect.copy(session, table, self.schema.names, file, self.what) for file in self.files)

        yield move

    @property
    def dialect(self) -> CsvDialect:
        return CsvDialect(self.delimiter, self.quote, self.header, self.encoding)


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How CSV files are written."""

    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    encoding: str = "UTF-8"

    def copy(self, session: Session, table: TableName, columns: Sequence[str], file: Path, what: str) -> int:
        """COPY a file into these columns of a table, whose names are its header; returns the rows."""
        import psycopg

        header = "MATCH" if self.header else "false"
        statement = (
            f"COPY {table.sql} ({', '.join(quoted(name) for name in columns)}) FROM STDIN WITH (FORMAT csv, "
            f"HEADER {header}, DELIMITER {words(self.delimiter)}, QUOTE {words(self.quote)}, "
            f"ENCODING {words(self.encoding)})"
        )
        if self.header and file.stat().st_size == 0:
            raise InputError(f"{what}: {file.name} is empty, without even a header. The data was kept as it was.")
        try:
            with session.cursor() as cursor:
                with cursor.copy(statement.encode()) as copy, file.open("rb") as lines:
                    while chunk := lines.read(_CHUNK):
                        copy.write(chunk)
                return cursor.rowcount
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise _wrong_file(what, file, error) from None


def column_types(schema: StructType, what: str) -> dict[str, str]:
    """The columns of a schema with their types in PostgreSQL."""
    from lakewright.connectors.postgres_types import postgres_type

    return {field.name: postgres_type(what, field) for field in schema.fields}


def _wrong_file(what: str, file: Path, error: Exception) -> InputError:
    """PostgreSQL's own words, which name the line and the column."""
    diagnosis = getattr(error, "diag", None)
    said = getattr(diagnosis, "message_primary", None) or first_words(error)
    context = getattr(diagnosis, "context", None) or ""
    place = context.splitlines()[0].partition(", ")[2] if context else ""
    where = f" ({place})" if place else ""
    return InputError(
        f"{what}: {file.name} cannot be loaded: {said}{where}. The data was kept as it was.",
        hint="Correct the file and deliver it again, whole.",
    )
