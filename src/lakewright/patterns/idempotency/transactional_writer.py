"""Transactional Writer: show the output of a run all at once, or not at all.

Problem:
    Tasks fail and are started again elsewhere, and the job with them. Readers see half of the rows, and then some of
    them twice.
Guarantee:
    One commit makes everything visible. Killed before it, the old version stands and what was written so far is not
    seen by anybody; a conflict with another writer is tried again from the beginning, and after that told in words,
    with nothing of it visible. With ``run`` (a name and a number that rises, such as query and micro-batch) the same
    run is written once: its repeat is a no-op.
Consequences:
    - Without ``run`` a transaction covers one attempt only: a repeat of the job, or a backfill, adds the rows again. In
      a pipeline every writer carries the identity of its slice and attempt, on Delta, PostgreSQL and Kafka alike.
    - Numbers of one name must never begin anew: those of micro-batches do with a new checkpoint, and all up to the
      highest one known would be skipped as written. Let the name tell which checkpoint it is (``visits-2``); a number
      that is lower than one that the table has seen is skipped with a warning.
    - Files of a write that was not committed stay until ``vacuum_table`` (Compactor) removes them.
    - Readers wait for the slowest task: nothing is seen before the commit.
    - A reader that asks for uncommitted messages of a topic sees them (a dirty read): set
      ``isolation="read_committed"``, which is the default of ``KafkaTopic``.
    - Other targets have their own: ``copy_into``, ``merge_rows`` and ``merge_together`` (PostgreSQL: a staging table,
      then one transaction), ``write_messages`` (Kafka: one producer, one transaction).
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from lakewright.errors import ConfigurationError, TargetError
from lakewright.model.overwrites import only_within, overwriting
from lakewright.model.times import parse_duration
from lakewright.patterns.idempotency.delta_paths import table_exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Written", "check_transaction_timeout", "retry_conflicts", "write_in_transaction"]

Result = TypeVar("Result")

_LOG = logging.getLogger("lakewright.transactional_writer")
_LOG.addHandler(logging.NullHandler())

_CONFLICTS = (
    "DELTA_CONCURRENT_",
    "ConcurrentAppendException",
    "ConcurrentDelete",
    "ConcurrentTransactionException",
    "ConcurrentWriteException",
    "DELTA_METADATA_CHANGED",
    "MetadataChangedException",
    "ProtocolChangedException",
)


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did."""

    version: int | None
    """The version that it made; None where the same run had written before, and nothing happened."""
    rows: int = 0


def write_in_transaction(
    df: DataFrame,
    path: str,
    *,
    run: tuple[str, int] | None = None,
    where: str | None = None,
    partition_by: Sequence[str] = (),
    tries: int = 3,
) -> Written:
    """Runs a job that adds all rows to a Delta table (made if it is not there) in one commit; with ``where``, in place
    of the rows that fulfil it.

    ``run`` is who writes: a name, and a number that rises with each run of that name. The same number, or a lower one,
    is written once.

    >>> visits = spark.createDataFrame([("v1",)], "visit string")
    >>> write_in_transaction(visits, folder, run=("visits", 7))
    Written(version=0, rows=1)
    >>> write_in_transaction(visits, folder, run=("visits", 7))
    Written(version=None, rows=0)
    """
    if run is not None and (not run[0] or isinstance(run[1], bool) or run[1] < 0):
        raise ConfigurationError(
            f"Transactional Writer: 'run' is a name and a number from 0 on, such as (\"visits\", 7), not {run!r}."
        )
    mine = json.dumps({"write": uuid.uuid4().hex, "run": run})

    def write() -> None:
        if where is None:
            writer = df.write.format("delta").mode("append")
        else:
            there = table_exists(df.sparkSession, path)
            writer = overwriting(df if there else only_within(df, where)).option("replaceWhere", where)
        writer = writer.option("userMetadata", mine)
        if run is not None:
            writer = writer.option("txnAppId", run[0]).option("txnVersion", run[1])
        (writer.partitionBy(*partition_by) if partition_by else writer).save(path)

    retry_conflicts(write, what=path, tries=tries)
    history = df.sparkSession.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 100")
    told = history.select("userMetadata", "version", "operationMetrics").where("userMetadata IS NOT NULL").collect()
    made = next((row for row in told if row[0] == mine), None)
    if made is None and run is not None:
        _warn_of_lower(run, path, (row[0] for row in told))
    return Written(None) if made is None else Written(made[1], int((made[2] or {}).get("numOutputRows", 0)))


def _warn_of_lower(run: tuple[str, int], path: str, told: Iterable[str]) -> None:
    """Tell of a run that was skipped although its number was not the last one: perhaps the numbers began anew."""
    known = max((found[1] for text in told if (found := _run_in(text)) is not None and found[0] == run[0]), default=0)
    if run[1] < known:
        _LOG.warning(
            "Transactional Writer: number %d of '%s' was skipped, since %s has number %d of it. If the numbers have "
            "begun anew (a new checkpoint), these rows are missing: give the writer another name.",
            run[1], run[0], path, known,
        )  # fmt: skip


def _run_in(text: str) -> tuple[str, int] | None:
    """Who made a commit, by what it says of itself; None where it was somebody else."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    run = found.get("run") if isinstance(found, dict) and "write" in found else None
    return None if run is None else (run[0], run[1])


def retry_conflicts(write: Callable[[], Result], *, what: str, tries: int = 3) -> Result:
    """Do a write to Delta; where another writer was first, do it again from the beginning, ``tries`` times in all.

    Any other error comes out as it is. Nothing of a try that failed is visible.

    >>> left = ["ConcurrentAppendException: files were added"]
    >>> def write():
    ...     if left:
    ...         raise RuntimeError(left.pop())
    ...     return "done"
    >>> retry_conflicts(write, what="visits")
    'done'
    """
    if tries < 1:
        raise ConfigurationError(f"Transactional Writer: tries is a number from 1 on, not {tries}.")
    for attempt in range(1, tries + 1):
        try:
            return write()
        except Exception as error:
            if not _is_conflict(error):
                raise
            if attempt == tries:
                raise TargetError(
                    f"Transactional Writer: another writer has changed the same rows of {what} meanwhile, {tries} "
                    f"time{'s' if tries > 1 else ''} in a row. Nothing of this write is visible; the other one counts.",
                    hint="Let the writers take turns, or give each of them partitions of its own.",
                ) from error
    raise AssertionError


def check_transaction_timeout(what: str, timeout: str | timedelta, *, longest: str | timedelta) -> None:
    """Refuse a transaction that would end before the longest batch that it may have to hold. Asks nobody.

    >>> check_transaction_timeout("alerts", "1 minute", longest="10 minutes")
    Traceback (most recent call last):
    lakewright.errors.ConfigurationError: alerts: a transaction ends after 1 minute, but a batch may take 10 minutes...
    """
    limit, batch = (parse_duration(one) if isinstance(one, str) else one for one in (timeout, longest))
    if limit < batch:
        raise ConfigurationError(
            f"{what}: a transaction ends after {_shown(timeout)}, but a batch may take {_shown(longest)}: the broker "
            "would take back what was sent, and the commit could not be made.",
            hint="Give the transaction more time (transaction_timeout), or the batch less (timeout).",
        )


def _is_conflict(error: BaseException) -> bool:
    text = f"{type(error).__name__}: {error}"
    return any(word in text for word in _CONFLICTS)


def _shown(length: str | timedelta) -> str:
    return length if isinstance(length, str) else f"{length.total_seconds():g} seconds"
