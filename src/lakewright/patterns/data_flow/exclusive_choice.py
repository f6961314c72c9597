"""Exclusive Choice: of several declared branches follow exactly one, and record which one and why.

Problem:
    From a certain day on a new job makes the dataset, and backfills of earlier days must still use the old one: in one
    pipeline, so that its history stays whole.
Guarantee:
    A condition names one of the declared branches; none, two or an unknown one is an error that lists them, and no
    branch has run. It sees the slice, the run's logical time and parameters, and what is recorded of an input: never
    its rows, so it costs no Spark job. The slice decides, not the clock: a backfill takes the branch of its day. In a
    pipeline the other branches are *skipped* for the slice: not failed, stale or missing; what reads all of them is
    made of the one that succeeded. The decision and its reason stand in the record of the run, and a slice that was
    made keeps its branch when it is made again.
Consequences:
    - Many branches are a riddle for whoever comes next: beyond five, ``plan`` says so. Two pipelines, one with an
      ``end`` and one with a ``start``, are often easier to read.
    - A condition inside a job is forgotten within weeks: prefer the pipeline's form, which ``plan`` shows.
    - Moving a cutoff does not move what was made: the rows of the old branch stay until somebody removes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from lakewright.errors import ConfigurationError, StepFailed
from lakewright.patterns.data_flow.choice_conditions import (
    ByDate,
    ByMetadata,
    ByParameter,
    BySchema,
    ChoiceFacts,
    Condition,
    Tests,
    check_tests,
    fulfilled,
)
from lakewright.patterns.data_flow.output_types import CsvOutput, DeltaOutput, OutputType, OutputTypes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = [
    "Branch",
    "ByDate",
    "ByMetadata",
    "ByParameter",
    "BySchema",
    "ChoiceFacts",
    "Condition",
    "CsvOutput",
    "DeltaOutput",
    "ExclusiveChoice",
    "OutputType",
    "OutputTypes",
    "choose_branch",
    "choose_by_schema",
]

_NAME = "Exclusive Choice"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ExclusiveChoice:
    """A condition, and the datasets among which it chooses: ``pipeline.choose("migration", ExclusiveChoice(...))``."""

    by: Condition
    branches: Mapping[str, str]
    """Name of the branch -> the dataset that makes it."""

    def __post_init__(self) -> None:
        if not isinstance(self.by, Condition):
            raise ConfigurationError(
                f"{_NAME}: {self.by!r} is no condition. Use ByDate, BySchema, ByParameter or ByMetadata."
            )
        if len(self.branches) < 2 or len(set(self.branches.values())) < len(self.branches):
            raise ConfigurationError(f"{_NAME}: give at least two branches, each a dataset of its own.")
        for name in self.by.names():
            choose_branch(name, self.branches, error=ConfigurationError)


@dataclass(frozen=True, slots=True)
class Branch:
    """What a dataset is of a choice."""

    choice: str
    name: str
    of: ExclusiveChoice


def choose_branch(
    chosen: object, branches: Mapping[str, _T], *, error: type[ConfigurationError | StepFailed] = ConfigurationError
) -> _T:
    """The branch of this name; refused, with the list of branches, where it is none of them, or not one.

    >>> choose_branch("csv", {"delta": "devices", "csv": "devices_files"})
    'devices_files'
    """
    listed = ", ".join(branches)
    if chosen is None:
        raise error(f"{_NAME}: no branch was chosen. The branches are {listed}. None of them has run.")
    if not isinstance(chosen, str):
        raise error(f"{_NAME}: {chosen!r} was chosen, and one branch is wanted: {listed}. None of them has run.")
    if chosen not in branches:
        raise error(f"{_NAME}: there is no branch '{chosen}'. The branches are {listed}. None of them has run.")
    return branches[chosen]


def choose_by_schema(given: DataFrame | StructType, when: Tests) -> str:
    """The one branch whose test the columns fulfil; no row is read.

    >>> devices = spark.createDataFrame([("phone", "X1", "7")], "type string, full_name string, version string")
    >>> choose_by_schema(devices, {"legacy": lambda s: len(s) < 3, "new": lambda s: len(s) >= 3})
    'new'
    """
    check_tests(when)
    schema: StructType = given.schema if hasattr(given, "schema") else given
    found = fulfilled(schema, when)
    choose_branch(found, when, error=StepFailed)
    return str(found)
