"""Parallel Split: one computed input, several outputs that know nothing of each other.

Problem:
    A dataset has to be written to two places while consumers move from one to the other; done naively it is
    computed twice, and a repeat after a failure writes one of them twice.
Guarantee:
    The input is computed once, before the first branch starts, and the cache is released whatever happens.
    Each branch succeeds or fails alone. A Delta branch writes a batch once, however often it is repeated,
    under an identity of its own; a repeat is reported as ``skipped``, a batch older than the last committed
    one as ``failed``, never as a success. A branch of plain files replaces the folder of its batch.
Consequences:
    - The slowest branch sets the pace: give it a pipeline of its own, which reads the dataset when it is there.
    - All branches share one kind of machine: materialise the input and start one job per branch if that hurts.
    - A stream is split a micro-batch at a time: call it in ``foreachBatch``, with the batch id as ``batch``.
    - Whoever watches the data as a branch of its own may see what then fails to load: watch the written table instead.
    - ``current_timestamp()`` differs between repeats: pass the run's time into the branch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, LakewrightError, TargetError, name_and_words
from lakewright.patterns.data_flow.branches import DeltaBranch, FilesBranch, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BranchOutcome", "DeltaBranch", "FilesBranch", "SplitReport", "run_branches"]

Branch = DeltaBranch | FilesBranch


@dataclass(frozen=True, slots=True)
class BranchOutcome:
    """How one branch ended."""

    status: Literal["written", "skipped", "failed"]
    detail: str = ""
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class SplitReport:
    """All branches, and how many rows the shared input had."""

    rows: int
    branches: Mapping[str, BranchOutcome]

    def raise_failures(self) -> SplitReport:
        """The report, or an error that names every failed branch."""
        failed = {name: outcome for name, outcome in self.branches.items() if outcome.status == "failed"}
        if not failed:
            return self
        told = "; ".join(f"{name}: {outcome.detail}" for name, outcome in failed.items())
        fine = [name for name in self.branches if name not in failed]
        raise TargetError(
            f"Parallel Split: {len(failed)} of {len(self.branches)} branches failed ({told}). "
            f"Done: {', '.join(fine) or 'none'}.",
            hint="Run it again with the same batch: what is done is skipped.",
        ) from next(iter(failed.values())).error


def run_branches(
    df: DataFrame, *, branches: Mapping[str, Branch], job: str, batch: int, parallel: int = 4
) -> SplitReport:
    """Runs a job that computes the frame once, and then one per branch; no branch's failure stops another.

    ``batch`` rises with each new input of ``job`` and stays the same when a batch is repeated.

    >>> devices = spark.createDataFrame([("phone", "X1")], "type string, version string")
    >>> both = {"raw": DeltaBranch(f"{folder}/raw"), "csv": FilesBranch(f"{folder}/csv", file_format="csv")}
    >>> report = run_branches(devices, branches=both, job="devices", batch=1)
    >>> report = run_branches(devices, branches=both, job="devices", batch=1)
    >>> {name: outcome.status for name, outcome in report.branches.items()}
    {'raw': 'skipped', 'csv': 'written'}
    """
    _check(branches, batch, parallel)
    if df.isStreaming:
        raise ConfigurationError(
            "Parallel Split: the input is a stream. Nothing was started.",
            hint="Split each micro-batch: writeStream.foreachBatch(lambda rows, number: run_branches(rows, ..., "
            "batch=number)).",
        )
    with _computed_once(df) as (shared, rows), ThreadPoolExecutor(parallel) as pool:
        begun = {name: pool.submit(_outcome, branch.write, shared, f"{job}:{name}", batch)
                 for name, branch in branches.items()}  # fmt: skip
        return SplitReport(rows, {name: future.result() for name, future in begun.items()})


def _check(branches: Mapping[str, Branch], batch: int, parallel: int) -> None:
    if len(branches) < 2:
        raise ConfigurationError("Parallel Split: give at least two branches.")
    if batch < 0 or parallel < 1:
        raise ConfigurationError("Parallel Split: batch is 0 or more, parallel is 1 or more.")
    places: dict[str, str] = {}
    for name, branch in branches.items():
        place = branch.path if "://" in branch.path else os.path.realpath(branch.path)
        if place in places:
            raise ConfigurationError(
                f"Parallel Split: the branches '{places[place]}' and '{name}' both write to {branch.path}. Nothing "
                "was started.",
                hint="Give each branch its own table; to put their rows together use Aligned Fan-In.",
            )
        places[place] = name


@contextmanager
def _computed_once(df: DataFrame) -> Iterator[tuple[DataFrame, int]]:
    from pyspark import StorageLevel

    if df.storageLevel.useMemory or df.storageLevel.useDisk:
        yield df, df.count()  # the caller's cache is the caller's to release
        return
    shared = df.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        # persist() is lazy: without this job two branches could read the source at once, in two states.
        yield shared, shared.count()
    finally:
        shared.unpersist(blocking=True)


def _outcome(
    write: Callable[[DataFrame, str, int], Written], shared: DataFrame, name: str, batch: int
) -> BranchOutcome:
    try:
        written = write(shared, name, batch)
    except LakewrightError as error:
        return BranchOutcome("failed", str(error), error)
    except Exception as error:
        return BranchOutcome("failed", name_and_words(error), error)
    if written.done:
        return BranchOutcome("written", written.detail)
    if written.last is not None and written.last > batch:
        older = TargetError(f"skipped, version {batch} <= last committed {written.last}; nothing was written")
        return BranchOutcome("failed", str(older), older)
    return BranchOutcome("skipped", f"version {batch} was committed before")
