"""What a project declares, as values: one ``Dataset`` per table, with everything that decides how it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from lakewright.errors import ConfigurationError
from lakewright.model.contracts import Contract
from lakewright.model.maintenance import Maintenance
from lakewright.model.outside import Destination
from lakewright.model.parameters import Parameter
from lakewright.model.policies import LatePolicy, Repair
from lakewright.model.protocols import Guard, LatenessGuard, Load, Replicator, Source, StreamGuard, StreamJoin, Writer
from lakewright.model.references import Previous, Reference
from lakewright.model.schedules import CatchUp, OnDatasets
from lakewright.model.slices import SliceKind
from lakewright.model.times import Grid

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from lakewright.patterns.data_flow.concurrent_runner import ConcurrentRunner
    from lakewright.patterns.data_flow.exclusive_choice import Branch
    from lakewright.patterns.data_flow.isolated_sequencer import After, WhenReady
    from lakewright.patterns.data_flow.single_runner import SingleRunner
    from lakewright.patterns.data_flow.unaligned_fan_in import UnalignedFanIn
    from lakewright.patterns.data_value.metadata_decorator import MetadataDecorator
    from lakewright.patterns.data_value.sessions import Sessions
    from lakewright.patterns.data_value.wrapper import Wrapper
    from lakewright.patterns.ingestion.external_trigger import ExternalTrigger
    from lakewright.patterns.ingestion.readiness_marker import ReadinessMarker
    from lakewright.patterns.storage.horizontal_partitioner import HorizontalPartitioner
    from lakewright.patterns.storage.skew_buffer import SkewBuffer

__all__ = [
    "Closes",
    "Dataset",
    "Input",
    "Mode",
    "Outdated",
    "Place",
    "PrivateOutput",
    "RowsRule",
    "Settings",
    "Slicing",
]

RowsRule = Literal["preserve", "reduce", "expand"]
Outdated = Literal["show", "run"]
Closes = Literal["schedule", "watermark"]
Mode = Literal["batch", "stream"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the project something was declared."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Input:
    """One parameter of a step: which dataset, and how it refers to it (None: the default for the pair)."""

    parameter: str
    dataset: str
    reference: Reference | None = None
    guards: tuple[Guard, ...] = ()
    join: StreamJoin | None = None
    """How the dataset is joined with another stream, where the step is made of both."""

    @property
    def datasets(self) -> tuple[str, ...]:
        """Every dataset that it reads: two, where streams are joined."""
        return (self.dataset,) if self.join is None else self.join.check_inputs()


@dataclass(frozen=True, slots=True)
class PrivateOutput:
    """A further table that a step writes, before its public one."""

    writer: Writer
    layer: str = "silver"
    layout: HorizontalPartitioner | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a pipeline's datasets share."""

    pipeline: str
    schedule: str | None
    start: datetime
    grid: Grid
    runs: SingleRunner | ConcurrentRunner
    tags: tuple[str, ...] = ()
    triggers: tuple[ExternalTrigger, ...] = ()
    """The events that start it, beside its schedule."""
    timezone: str | None = None
    """The zone on whose clock the schedule is read; the times are UTC."""
    catch_up: CatchUp = "all"
    """What becomes of times that nobody was there for."""
    on_datasets: OnDatasets | None = None
    """The datasets whose changes start it, where that is its schedule."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """What its runs may be told by name, with the values that are known."""
    after: After | None = None
    """The pipeline whose runs start it, where that is its schedule."""
    waits_for: tuple[WhenReady, ...] = ()
    """What must be ready before a time of its schedule is run."""
    end: datetime | None = None
    """From here on no slice of event time is begun."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """One dataset as declared. A source has ``source``; every other one has ``function`` or ``sql``."""

    name: str
    settings: Settings
    layer: str
    place: Place
    description: str = ""
    source: Source | None = None
    load: Load | None = None
    """How the source is loaded, where it is not what is new each time."""
    schema: StructType | str | None = None
    function: Callable[..., Any] | None = None
    sql: str | None = None
    inputs: tuple[Input, ...] = ()
    takes_run: bool = False
    writer: Writer | None = None
    into: Destination | None = None
    """Where it goes instead of the lake."""
    location: str | None = None
    """Where its table lies, if not in the lake's own folder: a path, relative to the project, or a URI."""
    replica: Replicator | None = None
    """How it is copied from its one input, where it is a replica."""
    layout: HorizontalPartitioner | None = None
    event_time: str | None = None
    own_grid: Grid | None = None
    late: LatePolicy = field(default_factory=Repair)
    marker: ReadinessMarker | None = None
    """What is promised of a slice that is ready, and who is told beyond the store."""
    rows: RowsRule | None = None
    outputs: Mapping[str, PrivateOutput] = field(default_factory=dict)
    wrap: Wrapper | None = None
    """The envelope that the rows are written in."""
    metadata: MetadataDecorator | None = None
    """What is told of the run beside each row, where readers do not look."""
    contract: Contract | None = None
    tags: tuple[str, ...] = ()
    owner: str | None = None
    wait: timedelta = timedelta(0)
    closes: Closes = "schedule"
    """What must have passed a slice's end, plus ``wait``, before it is made: the run time, or what inputs have seen."""
    idle: timedelta | None = None
    """An input without an arrival for so long holds no slice open."""
    expect_within: timedelta | None = None
    """So long after its end a slice without rows in its input fails."""
    retries: int = 2
    timeout: timedelta | None = None
    compute: str | None = None
    """The compute of the target that makes its slices, where that is not the target's own Spark."""
    history: str | None = None
    mode: Mode = "batch"
    every: timedelta = timedelta(seconds=1)
    """How often a stream looks for something new while it runs continuously."""
    max_records: int | None = None
    """At most so many records in one micro-batch."""
    skew_buffer: SkewBuffer | None = None
    """At most so many rows of one partition in one micro-batch of a stream; its columns are filled in."""
    keep_letters: timedelta | None = None
    """Of a source: for how long what it sets aside, because it cannot be read or used, stays open and is told."""
    maintenance: Maintenance | None = None
    """How its table is looked after, and that of its step's private outputs."""
    sessions: Sessions | None = None
    """What the visits that its step returns are built into."""
    fan_in: UnalignedFanIn | None = None
    """Of how many of its parts a slice may be made, and how that is told."""
    choice: Branch | None = None
    """The choice that it is a branch of: a slice of it is made, or of another branch."""
    own_depends_on_past: bool | None = None
    shared_state: tuple[str, ...] = ()
    """What it uses that several runs at once would change."""
    own_start: datetime | None = None
    valid_from: str | None = None
    valid_to: str | None = None

    @property
    def pipeline(self) -> str:
        return self.settings.pipeline

    @property
    def grid(self) -> Grid:
        return self.own_grid or self.settings.grid

    @property
    def start(self) -> datetime:
        """Event times before this are not usable."""
        return self.own_start or self.settings.start

    @property
    def end(self) -> datetime | None:
        """No slice of event time begins at this or later; what was made before stays up to date."""
        return self.settings.end

    @property
    def is_source(self) -> bool:
        return self.source is not None

    @property
    def is_replaced(self) -> bool:
        """Whether each arrival of the source replaces all that was there."""
        return self.load is not None and self.load.replaces_all

    def has_guard(self, kind: type) -> bool:
        """Whether a guard of this kind judges one of its inputs."""
        return any(isinstance(guard, kind) for given in self.inputs for guard in given.guards)

    @property
    def is_stream(self) -> bool:
        return self.mode == "stream"

    @property
    def appends(self) -> bool:
        """Whether it is a stream that only adds rows, a micro-batch at a time."""
        return self.is_stream and self.writer is None

    @property
    def chained(self) -> bool:
        """Whether a slice is made of earlier ones of the dataset itself: one at a time, in order, on to the newest."""
        return self.sessions is not None or any(
            isinstance(given.reference, Previous)
            or any(getattr(guard, "reads_earlier_slices", False) for guard in given.guards)
            for given in self.inputs
        )

    @property
    def remembers(self) -> bool:
        """Whether it is a stream that keeps state across micro-batches: its guards, its sessions, or its join."""
        joins = any(given.join is not None for given in self.inputs)
        return self.is_stream and (joins or self.sessions is not None or self.has_guard(StreamGuard))

    @property
    def depends_on_past(self) -> bool:
        """Whether a slice is made only when all earlier ones have succeeded: its own option, or its pipeline's."""
        own = self.own_depends_on_past
        return self.settings.runs.depends_on_past if own is None else own

    @property
    def in_order(self) -> bool:
        """Whether its slices must be made one at a time."""
        apart = self.writer is None or self.writer.replaces_slice
        by_turns = self.is_source and not (self.load is not None and self.load.apart)
        return by_turns or not apart or self.chained or self.judged_in_order or self.depends_on_past

    @property
    def judged_in_order(self) -> bool:
        """Whether an arrival is judged by what those before it brought."""
        return self.has_guard(LatenessGuard)

    def input(self, parameter: str) -> Input:
        for found in self.inputs:
            if found.parameter == parameter:
                return found
        raise ConfigurationError(f"{self.name} has no input '{parameter}'.")


@dataclass(frozen=True, slots=True)
class Slicing:
    """How a dataset is cut: the kind of its slices, and the input whose arrivals it follows."""

    kind: SliceKind
    grid: Grid = "day"
    follows: str | None = None
