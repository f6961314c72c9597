"""Rows of a log, or of a snapshot, fetched by a worker in small pieces: neither side holds more than one of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from lakewright.connectors.cdc_names import CaptureNames
from lakewright.connectors.postgres_connection import ConnectionArguments, Session, TableName, ask, connect, quoted
from lakewright.connectors.postgres_errors import explain_text, state_of
from lakewright.connectors.postgres_log_decoder import Change, decode_changes
from lakewright.connectors.postgres_log_slot import peeking, when_free
from lakewright.connectors.postgres_log_values import worded
from lakewright.errors import LakewrightError, TargetError
from lakewright.model.secrets import mask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Reading", "explain_log_error", "fetch_texts"]

_PIECE = 5_000
_SESSION = "SET intervalstyle = 'iso_8601'; SET idle_in_transaction_session_timeout = '15min'"
_MARK, _END = "lakewright-log-failed", "lakewright-log-end"
_WHO, _TAKEN = "The log of the database", "55006"
_FAILED = re.compile(rf"{_MARK} SQLSTATE (\w{{5}}): (.*?) {_END}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a worker reads, as plain values that travel to it."""

    arguments: ConnectionArguments
    names: CaptureNames
    table: str
    columns: tuple[tuple[str, str], ...]
    """The wanted columns, each with how its texts are made ready (see `way_of`)."""
    keys: tuple[str, ...] = ()
    start: int = 0
    end: int = 0
    snapshot_at: int | None = None
    """The place that rows of a snapshot get; None: changes are read."""
    again: bool = False
    """Whether the snapshot takes the place of all that was told before."""


def fetch_texts(spark: SparkSession, reading: Reading | None, columns: int) -> DataFrame:
    """The rows with their values as texts (``v0``, ``v1`` and so on), lazy; none where nothing is to be read."""
    values = "".join(f"v{place} STRING, " for place in range(columns))
    shape = f"{values}op STRING, lsn BIGINT, number BIGINT, at BIGINT, left_out ARRAY<STRING>"
    if reading is None:
        return spark.createDataFrame([], shape)
    return spark.range(0, 1, 1, 1).mapInArrow(_fetcher(reading), shape)


def explain_log_error(error: BaseException) -> LakewrightError | None:
    """The error for people; None where the failure was something else."""
    found = _FAILED.search(str(error))
    if found is None:
        return None
    state, said = found.groups()
    if state == _TAKEN:
        return TargetError(f"{_WHO}: {said}", hint="Run again, or give this source a slot of its own.")
    return explain_text(state, said, what=_WHO, effect="Nothing was published.", reading=True)


def _fetcher(reading: Reading) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What the worker does."""

    def fetch(batches: Iterator[Any]) -> Iterator[Any]:
        import psycopg

        for batch in batches:
            if not batch.num_rows:
                continue
            try:
                reading.arguments.mask()
                with connect(reading.arguments, autocommit=False) as session:
                    ask(session, _SESSION)
                    session.commit()
                    yield from _pieces(_rows(session, reading), reading)
            except psycopg.Error as error:
                raise RuntimeError(f"{_MARK} SQLSTATE {state_of(error)}: {mask(str(error))} {_END}") from None
            except LakewrightError as error:
                said = error.message.removeprefix(f"{_WHO}: ")
                raise RuntimeError(f"{_MARK} SQLSTATE {_TAKEN}: {said} {_END}") from None

    return fetch


def _rows(session: Session, reading: Reading) -> Iterator[Change]:
    if reading.snapshot_at is not None:
        return _snapshot(session, reading, reading.snapshot_at)
    return decode_changes(
        _messages(session, reading), table=reading.table, keys=reading.keys, start=reading.start, end=reading.end
    )


def _messages(session: Session, reading: Reading) -> Iterator[tuple[int, bytes]]:
    statement = f"SELECT (lsn - '0/0'::pg_lsn)::bigint, data FROM {peeking(reading.names, upto=reading.end)}"

    def begin() -> tuple[list[tuple[int, bytes]], Iterator[tuple[int, bytes]]]:
        rows = _streamed(session, statement)
        return list(islice(rows, 1)), rows

    first, rest = when_free(session, reading.names.slot, begin, who=_WHO)
    return chain(first, rest)


def _snapshot(session: Session, reading: Reading, at: int) -> Iterator[Change]:
    """The rows as they stand, in one transaction that begins after the slot was made."""
    ask(session, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    row = ask(session, "SELECT (extract(epoch FROM now()) * 1000000)::bigint").fetchone()
    now = int(row[0]) if row else time.time_ns() // 1_000
    if reading.again:
        yield Change("truncate", at, 0, now, {})
    names = [name for name, _ in reading.columns]
    listed = ", ".join(f"{quoted(name)}::text" for name in names)
    for values in _streamed(session, f"SELECT {listed} FROM {TableName.parse(reading.table).sql}"):
        yield Change("snapshot", at, 0, now, dict(zip(names, values, strict=True)))


def _streamed(session: Session, statement: str) -> Iterator[tuple[Any, ...]]:
    with session.cursor(name="lakewright_log", binary=True) as cursor:
        cursor.itersize = _PIECE
        cursor.execute(statement.encode())
        yield from cursor


def _pieces(rows: Iterator[Change], reading: Reading) -> Iterator[Any]:
    import pyarrow as pa

    texts = [(f"v{place}", pa.string()) for place in range(len(reading.columns))]
    own = [("op", pa.string()), ("lsn", pa.int64()), ("number", pa.int64()), ("at", pa.int64())]
    shape = pa.schema([*texts, *own, ("left_out", pa.list_(pa.string()))])
    while piece := list(islice(rows, _PIECE)):
        values = [_column(piece, name, way) for name, way in reading.columns]
        told = [[getattr(row, part) for row in piece] for part in ("op", "lsn", "transaction", "committed")]
        wanted = {name for name, _ in reading.columns}
        left_out = [[name for name in row.not_sent if name in wanted] for row in piece]
        yield pa.RecordBatch.from_pydict(dict(zip(shape.names, [*values, *told, left_out], strict=True)), shape)


def _column(piece: Sequence[Change], name: str, way: str) -> list[str | None]:
    return [worded(row.values.get(name), way) for row in piece]
