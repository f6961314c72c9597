"""COPY from the executors: every task sends its rows in one transaction of its own.

Guarantee:
    A task that is tried again, or run twice by speculation, doubles nothing: each attempt marks its rows with a
    number of its own (``_lw_task``), and only the attempts whose result reached the driver are counted in `Sent`. Rows
    of other attempts stay in the staging table and are never selected. A NULL stays NULL; tabs, line ends and
    backslashes in a text arrive as they are; a NUL character, which PostgreSQL cannot store, is refused.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from lakewright.connectors.postgres_connection import ConnectionArguments, TableName, connect, quoted
from lakewright.connectors.postgres_errors import explain_text, state_of
from lakewright.errors import InputError, LakewrightError
from lakewright.model.secrets import mask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["TASK_COLUMN", "TASK_SETTING", "Sent", "copy_rows"]

TASK_COLUMN = "_lw_task"
TASK_SETTING = "lakewright.task"
"""The session's setting from which the marker's default comes."""
_MARK, _END = "lakewright-copy-failed", "lakewright-copy-end"
_FAILED = re.compile(rf"{_MARK} SQLSTATE (\w{{5}}): (.*?) {_END}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Sent:
    """Which attempts of tasks count, and how many rows they sent."""

    tasks: tuple[int, ...]
    rows: int


def copy_rows(frame: DataFrame, arguments: ConnectionArguments, table: TableName, *, what: str) -> Sent:
    """Runs a job that sends every row into a staging table (see `create_staging`), which has the frame's columns."""
    from lakewright.connectors.postgres_types import copy_line

    schema = frame.schema
    # The marker is the column's default, so that Spark can write the whole text of a row.
    statement = f"COPY {table.sql} ({', '.join(quoted(name) for name in schema.names)}) FROM STDIN"
    lines = frame.select(copy_line(schema).alias("line"))
    try:
        sent = lines.mapInArrow(_sender(arguments, statement), "task bigint, rows bigint").collect()
    except Exception as error:
        explained = _explained(error, what)
        if explained is None:
            raise
        raise explained from (explained.__cause__ or error)
    return Sent(tuple(row["task"] for row in sent), sum(row["rows"] for row in sent))


def _sender(arguments: ConnectionArguments, statement: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What a worker does with its lines; its values travel with it."""

    def send(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        full = (batch for batch in batches if batch.num_rows)
        first = next(full, None)
        if first is not None:  # an empty task needs no connection
            task = secrets.randbits(62)
            rows = _send(chain([first], full), arguments, statement, task)
            yield pa.RecordBatch.from_pydict({"task": [task], "rows": [rows]})

    return send


def _send(batches: Iterator[Any], arguments: ConnectionArguments, statement: str, task: int) -> int:
    """One transaction: all rows of the task are there, under its number, or none."""
    import psycopg

    rows = 0
    arguments.mask()
    try:
        with connect(arguments, autocommit=False) as session, session.cursor() as cursor:
            cursor.execute(f"SET LOCAL {TASK_SETTING} = '{task}'".encode())
            with cursor.copy(statement.encode()) as copy:
                for batch in batches:
                    copy.write(_bytes(batch.column(0)))
                    rows += batch.num_rows
    except psycopg.Error as error:
        # Only text survives the way to the driver; the cause would show more than people should see.
        raise RuntimeError(f"{_MARK} SQLSTATE {state_of(error)}: {mask(str(error))} {_END}") from None
    return rows


def _bytes(lines: Any) -> Any:
    """The text of all lines in one piece: Arrow already keeps it so, nothing is copied."""
    import numpy as np
    import pyarrow as pa

    wide = lines.cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    places = np.frombuffer(offsets, dtype=np.int64)
    return memoryview(data)[places[wide.offset] : places[wide.offset + len(wide)]]


def _explained(error: Exception, what: str) -> LakewrightError | None:
    from lakewright.connectors.postgres_types import NUL_WORDS

    text = str(error)
    if NUL_WORDS in text:
        return InputError(
            f"{what}: {NUL_WORDS}. Nothing was written.",
            hint="Take it out: F.replace(column, F.lit('\\0'), F.lit('')), or keep such text as binary.",
        )
    found = _FAILED.search(text)
    if found is None:
        return None
    return explain_text(found.group(1), found.group(2), what=what, effect="Nothing was written.")
