"""Destinations outside the lake: a table of a database, a topic.

A target without a Delta log keeps a ledger that plays the log's part: a rising position per dataset, each with the
identity of the attempt that wrote it. So receipts, recovery and ``store rebuild`` need nothing of their own for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from lakewright.errors import ConfigurationError
from lakewright.model.arrivals import Arrival
from lakewright.model.connections import Connections
from lakewright.model.identity import Identity
from lakewright.model.policies import LatePolicy
from lakewright.model.protocols import Source, SourceContext, Table, Writer
from lakewright.model.receipts import Commit
from lakewright.model.slices import Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "ChecksTimeout",
    "ChecksWriter",
    "CopiesSource",
    "Destination",
    "Freezes",
    "KeyedChanges",
    "Log",
    "MergesRows",
    "OutsideTable",
    "RestoresRows",
    "ShowsEarlier",
    "TakesSource",
]


class Log(Protocol):
    """What was committed to a dataset, and by whom: a Delta log, or the ledger of a target that has none."""

    @property
    def path(self) -> str: ...

    def exists(self) -> bool: ...

    def latest(self) -> int | None:
        """The newest version, or None where there is none."""

    def bounds(self) -> tuple[int | None, int | None]:
        """The oldest and the newest version that the log holds."""

    def commit(self, version: int) -> Commit:
        """What one version did."""

    def commits(self, after: int | None = None, upto: int | None = None) -> Iterator[Commit]:
        """The commits with ``after < version <= upto``, in order."""


class OutsideTable(Table, Protocol):
    """A destination opened for one attempt: each call is one transaction that carries its identity."""

    def touch(self) -> Commit | None:
        """Record the attempt's number and nothing else (a fence); None where a higher one is recorded."""


@runtime_checkable
class Destination(Protocol):
    """Where a dataset goes that is not in the lake: the noun in a project file. Declaring one connects to nothing."""

    @property
    def connection(self) -> str:
        """The name of the connection, in ``lakewright.toml``."""

    @property
    def shown(self) -> str:
        """For people: ``blog_db: daily_pages``."""

    def log(self, dataset: str, *, connections: Connections) -> Log:
        """The ledger of a dataset in this destination."""

    def open(
        self,
        dataset: str,
        identity: Identity,
        *,
        connections: Connections,
        spark: SparkSession,
        still_mine: Callable[[], bool],
    ) -> OutsideTable:
        """The destination, to be written to under one attempt's identity."""


@runtime_checkable
class ChecksWriter(Protocol):
    """A destination that takes some writers only; asked when the project is loaded."""

    def check_writer(self, dataset: str, writer: Writer) -> None:
        """Refuse, by a ``ConfigurationError``, a writer that cannot write here."""


@runtime_checkable
class ChecksTimeout(Protocol):
    """A destination whose transactions end by themselves; asked when the project is loaded."""

    def check_timeout(self, dataset: str, timeout: timedelta | None) -> None:
        """Refuse, by a ``ConfigurationError``, a step that may take longer than a transaction lasts."""


@dataclass(frozen=True, slots=True)
class KeyedChanges:
    """How changes are applied by key: see Merger."""

    keys: Sequence[str]
    sequence: str | None = None
    deleted: str | None = None
    delete: Literal["hard", "soft"] = "hard"

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or not self.keys:
            raise ConfigurationError("Merger: 'keys' is a list of at least one column, such as keys=[\"user_id\"].")
        if self.delete not in ("hard", "soft"):
            raise ConfigurationError(f"Merger: delete is 'hard' or 'soft', not {self.delete!r}.")
        object.__setattr__(self, "keys", tuple(self.keys))


@runtime_checkable
class MergesRows(Protocol):
    """A table that applies changes in its own way, because it knows no MERGE of Spark's."""

    def merge_rows(self, frame: DataFrame, changes: KeyedChanges) -> Commit | None:
        """Runs a job that applies the changes in one transaction; None where a newer attempt was first."""


@runtime_checkable
class RestoresRows(Protocol):
    """A table without versions that can still be what it was before a slice: see Stateful Merger."""

    def merge_rows_restoring(
        self, frame: DataFrame, changes: KeyedChanges, *, execution: str, back_to: int | None
    ) -> Commit | None:
        """Runs a job that takes the table back and applies the changes, in one transaction; None where a newer attempt
        was first. ``execution`` is a text that sorts as the slices do, ``back_to`` the position that receipts know.
        """


@runtime_checkable
class Freezes(Protocol):
    """A destination that may hold old slices read-only."""

    def frozen(self, dataset: str, slices: Sequence[Slice], *, connections: Connections) -> Sequence[str]:
        """The ids of those that are: making them again is refused. Asks the destination."""

    def check_late(self, dataset: str, late: LatePolicy) -> None:
        """Refuse, by a ``ConfigurationError``, a policy that makes slices again which are read-only by then."""


@runtime_checkable
class ShowsEarlier(Protocol):
    """A destination that keeps what it held before, so that it can be rolled back."""

    def show_earlier(self, position: int) -> Commit | None:
        """Hold again what was there at a position of the ledger; None where a newer attempt was first."""


@runtime_checkable
class TakesSource(Protocol):
    """A destination that takes some sources by a command of its own; asked when the project is loaded."""

    def check_source(self, dataset: str, source: Source) -> None:
        """Refuse, by a ``ConfigurationError``, a source that it cannot take so."""


@runtime_checkable
class CopiesSource(Protocol):
    """A `TakesSource` opened for one attempt."""

    def copy_source(
        self, source: Source, arrival: Arrival, *, schema: StructType | None, ctx: SourceContext
    ) -> Commit | None:
        """Load an arrival without Spark; None where a newer attempt was first."""
