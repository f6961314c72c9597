"""What a maintenance policy is, and what it is given: it decides from the table's own figures, and moves files only.

Guarantee:
    Maintenance leaves every row as it is. Its commits carry an identity of the kind "maintenance", which never makes a
    reader stale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from lakewright.model.connections import Connections
from lakewright.model.receipts import Commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Maintained", "MaintainsItself", "Maintenance", "MaintenanceContext", "When"]

When = Literal["maintain", "after run"]


@dataclass(frozen=True, slots=True)
class MaintenanceContext:
    """What a policy may know of one table, and the one thing that it may do to it."""

    dataset: str
    path: str
    session: Callable[[], SparkSession]
    """Asked for only where it is needed: it may have to start Spark."""
    compact: Callable[[str | None, int], Commit | None]
    """Runs the job that joins files of the partitions that a filter names (None: all) into files of about so many
    bytes, in one commit with identity; None where there was nothing to join.
    """
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Maintained:
    """What a policy found and did, or would do: files and bytes of the table before and after."""

    due: bool
    reason: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    version: int | None = None
    """The last version that it made."""


@runtime_checkable
class Maintenance(Protocol):
    """How a dataset's table is looked after: the noun in a project file."""

    @property
    def when(self) -> When:
        """Only by `lakewright maintain`, or also at the end of a run that wrote to the dataset."""

    @property
    def unsafe(self) -> bool:
        """Whether files may be deleted sooner than is safe, because somebody said so."""

    def run(self, ctx: MaintenanceContext) -> Maintained:
        """Decide, and unless it is a dry run, compact."""

    def keeps(self, history: timedelta | None) -> timedelta:
        """How long files that are no longer used stay, of a dataset that declares so much history."""


@runtime_checkable
class MaintainsItself(Protocol):
    """A destination outside the lake that can be looked after where it is.

    One that says so itself (``asks_for_maintenance``) is looked after without a policy of its dataset.
    """

    def maintain(self, dataset: str, *, connections: Connections, dry_run: bool, now: datetime) -> tuple[bool, str]:
        """Do what is to be done there; tells whether there was anything, and what was done or found, in words."""
