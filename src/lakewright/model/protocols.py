"""The few things that parts of the product ask of each other.

A pattern or a connector sees the lake and the store only through these, so that it can be used, and tested,
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from lakewright.model.arrivals import Arrival, FileVersion, Window
from lakewright.model.connections import Connections
from lakewright.model.contracts import Contract
from lakewright.model.findings import Finding
from lakewright.model.receipts import Commit
from lakewright.model.runs import Run
from lakewright.model.slices import Slice
from lakewright.model.watermarks import Judgement, Measured, Tracking

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "EACH",
    "FIRST",
    "READ",
    "FilterTally",
    "Found",
    "Guard",
    "GuardContext",
    "Guarded",
    "LatenessGuard",
    "LeavesRest",
    "Load",
    "LoadContext",
    "Notifier",
    "Replicator",
    "SideRows",
    "Source",
    "SourceContext",
    "StreamGuard",
    "StreamJoin",
    "Table",
    "TellsMore",
    "WriteContext",
    "Writer",
]


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What a source may know when it looks for something new."""

    dataset: str
    project: Path
    """Relative paths of a source start here."""
    known_files: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Path -> (version, arrival) of every file that an arrival holds now."""
    last_window: Window | None = None
    waiting: tuple[Window, ...] = ()
    """The windows that were recorded and are not in the dataset yet, in order."""
    connections: Connections = field(default_factory=Connections)
    """The databases and brokers of the target, by name."""
    run_time: datetime | None = None
    """The time that the run stands for: intervals that end later are not over."""
    project_name: str = ""
    """What the project is called, for what a source makes outside of it."""


@dataclass(frozen=True, slots=True)
class Found:
    """Something new at a source: what to read, and which earlier file versions it replaces."""

    window: Window
    files: tuple[FileVersion, ...] = ()
    supersedes: tuple[tuple[int, FileVersion], ...] = ()
    summary: str = ""


class Source(Protocol):
    """Where rows come from. It never decides what was already taken: the store tells it."""

    @property
    def repeatable(self) -> bool:
        """Whether a recorded window can be read again with the same result."""

    def look(self, ctx: SourceContext) -> Found | None:
        """What is new, without reading it; None where nothing is."""

    def gone(self, arrival: Arrival, ctx: SourceContext) -> Sequence[str]:
        """What of a recorded window can no longer be read as it was, in words; empty where all is there."""

    def read(
        self, arrival: Arrival, *, spark: SparkSession, schema: StructType | None, ctx: SourceContext
    ) -> DataFrame:
        """Every record of the window: the declared columns and the record columns (see ``columns``)."""


@runtime_checkable
class LeavesRest(Protocol):
    """A source that may lose a part of a recorded window before it is read, and still give the rest."""

    @property
    def if_lost(self) -> Literal["fail", "go on"] | None:
        """Whether the rest is read without asking; None where that is always for a user to say."""

    def left(self, arrival: Arrival, ctx: SourceContext) -> Found:
        """What is left of a recorded window, which notes what is lost; it ends where that one ends.

        Refused, by an ``InputError``, where the source is another one now, or nobody can tell what is left.
        """


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What a loader may know of the arrival that it judges."""

    what: str
    """The dataset and its arrival, for people."""
    rows_before: int | None = None
    """The rows of the load before it; None where there is none, or nobody knows."""


@runtime_checkable
class Load(Protocol):
    """How a source is loaded, where it is not simply what is new each time."""

    @property
    def replaces_all(self) -> bool:
        """Whether an arrival replaces all that was there."""

    @property
    def apart(self) -> bool:
        """Whether arrivals can be taken side by side."""

    def check_source(self, dataset: str, source: Source) -> None:
        """Refuse, by a ``ConfigurationError``, a source that cannot be loaded so."""

    def look(self, source: Source, ctx: SourceContext) -> Sequence[Found]:
        """What the next arrivals are, in order; none where nothing is new."""

    def prepare(self, frame: DataFrame, arrival: Arrival, held: Callable[[], DataFrame | None]) -> DataFrame:
        """The arrival's rows as they are kept; ``held`` gives those that the dataset holds, None where it is new."""

    def judge(self, frame: DataFrame, ctx: LoadContext) -> None:
        """May run a job; refuses an arrival that must not be published."""


@runtime_checkable
class Replicator(Protocol):
    """How a dataset is copied to another place, and how the copy is proven."""

    def check_contract(self, dataset: str, contract: Contract | None) -> None:
        """Refuse, by a ``ConfigurationError``, to copy what the contract of the original keeps back."""

    def copy(self, frame: DataFrame, contract: Contract | None) -> DataFrame:
        """The rows as they may leave; lazy."""

    def prove(self, original: DataFrame, copied: DataFrame, contract: Contract | None, *, what: str) -> str:
        """Runs jobs that compare both sides; tells the proof, and refuses a copy that differs."""


class Table(Protocol):
    """One table of the lake, opened for one attempt: each call is one commit that carries its identity."""

    @property
    def path(self) -> str: ...

    @property
    def spark(self) -> SparkSession: ...

    def exists(self) -> bool: ...

    def schema(self) -> StructType:
        """The columns as stored, system columns included."""

    def read(self) -> DataFrame:
        """All rows, system columns included, as the table stands."""

    def replace(
        self, frame: DataFrame, *, where: str, partition_by: Sequence[str] = (), within: bool = False
    ) -> Commit | None:
        """Runs a job that replaces the rows that fulfil ``where`` by the frame's; None where Delta skipped it.

        ``within`` says that the frame was made to fulfil it, so that not each row is looked at once more.
        """

    def merge(self, frame: DataFrame, *, on: str, clauses: str, partition_by: Sequence[str] = ()) -> Commit | None:
        """Runs a MERGE of the frame (``s``) into the table (``t``); None where Delta skipped it."""


@runtime_checkable
class TellsMore(Protocol):
    """A table whose commits carry what a writer knew before the write."""

    def telling(self, **details: str) -> Table:
        """The same table; its commits tell these facts as well."""


@dataclass(frozen=True, slots=True)
class WriteContext:
    """What a writer may know."""

    dataset: str
    slice: Slice
    table: Table
    run: Run
    partition_by: tuple[str, ...] = ()
    back_to: int | None = None
    """The position that a table outside the lake goes back to before the slice is merged; None: it does not."""


@runtime_checkable
class Writer(Protocol):
    """How rows reach a dataset: an idempotency pattern, always."""

    @property
    def streams(self) -> bool:
        """Whether it may follow a stream (replacing an interval would erase earlier micro-batches)."""

    @property
    def replaces_slice(self) -> bool:
        """Whether a slice's rows can be told by its predicate, so that slices are independent of each other."""

    def publish(self, frame: DataFrame, ctx: WriteContext) -> Commit | None:
        """Runs the job that writes the slice in one commit; None where a newer attempt has already written it."""


@dataclass(frozen=True, slots=True)
class GuardContext:
    """What a guard may know of the rows that it judges."""

    dataset: str
    input: str
    slice: Slice
    run: Run
    record_columns: tuple[str, ...] = ()
    """Columns that tell a record's identity, in the order in which to keep them."""
    event_time: str | None = None
    """The column that the input declares as its event time."""
    earlier: Callable[[timedelta], DataFrame | None] | None = None
    """The rows that the dataset's own slices hold within a stretch of event time before this one; None: no slice."""
    streamed: bool = False
    """Whether the rows are a micro-batch, to which ``on_stream`` of the same guard has been applied before."""
    apart: Column | None = None
    """On a stream: the rows that guards before this one will take out, so that it leaves them alone."""
    lateness: Judgement | None = None
    """By what a guard that asks for it (``measure``) tells late rows; the same in each attempt."""


@dataclass(frozen=True, slots=True)
class SideRows:
    """Rows that a guard sets aside: how to tell them, what to keep of them, and when there are too many."""

    broken: Column
    """Whether a row is set aside, never NULL: asked of every row, so it is kept cheap."""
    reasons: Column
    """An array with the names of all broken rules: asked only of the rows set aside."""
    keep: tuple[str, ...] = ()
    """The columns to copy; what tells the record is kept in any case."""
    stop_above: float | None = None
    stop_above_rows: int | None = None
    error: Column | None = None
    """What a function said that raised on a row; asked only of the rows set aside."""
    table: Literal["dead_letters", "late_rows", "repeats"] = "dead_letters"
    """Where they are kept."""
    told: Mapping[str, Column] = field(default_factory=dict)
    """Further columns of that table, beside those that all side rows have."""
    conditions: Callable[[], Mapping[str, Column]] | None = None
    """Each rule as a column by its name: asked only to find out which of them cannot be computed."""


READ, FIRST, EACH = "read", "first:", "each:"
"""The columns of a tally's totals: the rows judged, and by filter those that it removed, or that break it."""


@dataclass(frozen=True, slots=True)
class FilterTally:
    """How a guard wants the rows that it removes to be counted, in a narrow pass before anything is written."""

    judged: DataFrame
    conditions: Mapping[str, Column]
    totals: DataFrame | None
    """One row, of whole numbers (see ``READ``); None where nothing is counted."""
    stop_above: Mapping[str, float] = field(default_factory=dict)
    sample: float = 1.0


@dataclass(frozen=True, slots=True)
class Guarded:
    """What a guard made of a frame: the rows kept, and how to tell the rows set aside, or to count those removed."""

    kept: DataFrame
    side: SideRows | None = None
    drops_duplicates: bool = False
    tally: FilterTally | None = None
    judged: DataFrame | None = None
    """The rows that ``side`` and ``also`` are told from, where they have columns that only the guard adds."""
    also: tuple[SideRows, ...] = ()
    """Further rows set aside, for other tables or reasons."""
    added: Mapping[str, Column] = field(default_factory=dict)
    """Columns of ``kept`` that only the guard adds, for those after it."""


@runtime_checkable
class Notifier(Protocol):
    """Carries findings out, to whoever wants to know. It may get one twice, after a kill, and never loses one."""

    @property
    def name(self) -> str:
        """What tells it from others, without a secret: ``file notices.jsonl``."""

    def within(self, project: Path) -> Notifier:
        """The same, for a project: relative paths begin at its folder."""

    def notify(self, finding: Finding) -> None:
        """Deliver one finding, or raise a ``LakewrightError``: then the next run tries again."""


@runtime_checkable
class Guard(Protocol):
    """Judges rows on the way in or out."""

    def on_batch(self, frame: DataFrame, ctx: GuardContext) -> Guarded:
        """Lazy: no job runs here."""


@runtime_checkable
class StreamGuard(Protocol):
    """A guard that needs the stream itself, not only its micro-batches: it remembers across them."""

    def check_stream(self, event_time: str | None) -> None:
        """Refuse, by a ``ConfigurationError``, what it cannot do on a stream."""

    def on_stream(self, frame: DataFrame, ctx: GuardContext) -> DataFrame:
        """The stream after it; lazy. ``on_batch`` is asked for each micro-batch afterwards."""


@runtime_checkable
class StreamJoin(Protocol):
    """How two streams become one input of a step."""

    @property
    def matched(self) -> str:
        """Whether a row of the result is a pair, as SQL."""

    @property
    def patience(self) -> timedelta:
        """How much longer one side may be silent than the other before people are told."""

    def check_inputs(self) -> tuple[str, str]:
        """The datasets of both sides; refused, by a ``ConfigurationError``, where they are not named."""

    def join(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """Both streams as one; lazy."""


@runtime_checkable
class LatenessGuard(Protocol):
    """A guard that judges the rows of a batch by what was known before it."""

    @property
    def tracking(self) -> Tracking:
        """How the watermark follows what batches bring."""

    def measure(self, frame: DataFrame, ctx: GuardContext) -> Measured:
        """Runs a job that tells what the batch brings; its rows are judged by ``ctx.lateness``, not by that."""
