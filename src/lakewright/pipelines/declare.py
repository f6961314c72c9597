"""Pipeline: declare sources and steps; the functions stay ordinary functions.

A wrong option fails when the file is loaded, with file, line and a hint, before Spark starts.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from lakewright.errors import ConfigurationError, DefinitionError, did_you_mean
from lakewright.model.contracts import Contract
from lakewright.model.maintenance import Maintenance
from lakewright.model.outside import ChecksTimeout, Destination
from lakewright.model.parameters import Parameter, as_parameter
from lakewright.model.policies import LatePolicy
from lakewright.model.protocols import Guard, Load, Replicator, Source, StreamJoin, Writer
from lakewright.model.references import Reference
from lakewright.model.schedules import CatchUp, OnDatasets
from lakewright.model.times import GRIDS, Grid, parse_time
from lakewright.patterns.data_flow.concurrent_runner import ConcurrentRunner
from lakewright.patterns.data_flow.exclusive_choice import ExclusiveChoice
from lakewright.patterns.data_flow.isolated_sequencer import After, WhenReady
from lakewright.patterns.data_flow.single_runner import SingleRunner
from lakewright.patterns.data_flow.unaligned_fan_in import UnalignedFanIn
from lakewright.patterns.data_value.metadata_decorator import MetadataDecorator
from lakewright.patterns.data_value.sessions import Sessions
from lakewright.patterns.data_value.wrapper import Wrapper
from lakewright.patterns.idempotency.data_overwrite import DataOverwrite
from lakewright.patterns.ingestion.external_trigger import ExternalTrigger
from lakewright.patterns.ingestion.readiness_marker import ReadinessMarker
from lakewright.patterns.storage.horizontal_partitioner import HorizontalPartitioner
from lakewright.patterns.storage.skew_buffer import SkewBuffer
from lakewright.pipelines.choice_options import as_branches
from lakewright.pipelines.compute_options import check_compute_option
from lakewright.pipelines.definitions import Closes, Dataset, Input, Mode, Place, PrivateOutput, RowsRule, Settings
from lakewright.pipelines.envelopes import check_envelopes
from lakewright.pipelines.fan_in_options import bring_fan_in
from lakewright.pipelines.freezing import check_late
from lakewright.pipelines.joined_inputs import joined_input
from lakewright.pipelines.maintenance_options import check_maintenance
from lakewright.pipelines.marker_options import late_policy
from lakewright.pipelines.options import (
    NO_START,
    as_length,
    check_closing,
    check_load,
    check_mode,
    check_options,
    checked_end,
    checked_skew_buffer,
)
from lakewright.pipelines.outside import check_destination
from lakewright.pipelines.replicas import check_replica, copy_of_source, refuse_pointless
from lakewright.pipelines.session_options import bring_sessions
from lakewright.pipelines.timetables import checked_schedule, checked_waits
from lakewright.pipelines.trigger_options import checked_triggers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["Pipeline"]

Step = TypeVar("Step", bound=Callable[..., Any])

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LAYERS = ("bronze", "silver", "gold")
_GRID_OF_SCHEDULE: dict[str, Grid] = {"@hourly": "hour", "@daily": "day", "@monthly": "month"}


class Pipeline:
    """Datasets and steps that share a schedule and a run policy."""

    def __init__(
        self,
        name: str,
        *,
        schedule: str | OnDatasets | After | None = "@daily",
        timezone: str | None = None,
        catch_up: CatchUp = "all",
        start: str | date | datetime = NO_START,
        end: str | date | datetime | None = None,
        grid: Grid | None = None,
        runs: SingleRunner | ConcurrentRunner | None = None,
        triggers: Sequence[ExternalTrigger] = (),
        waits_for: WhenReady | Sequence[WhenReady] = (),
        parameters: Mapping[str, Parameter | Sequence[str]] | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        place = _caller()
        try:
            _check_name("pipeline", name)
            cron, on_datasets, after = checked_schedule(schedule, timezone, catch_up)
            if grid is not None and grid not in GRIDS:
                raise ConfigurationError(f"grid is one of {', '.join(GRIDS)}, not '{grid}'.")
            self.settings = Settings(
                pipeline=name,
                schedule=cron,
                timezone=timezone,
                catch_up=catch_up,
                on_datasets=on_datasets,
                start=parse_time(start),
                end=checked_end(start, end),
                grid=grid or _GRID_OF_SCHEDULE.get(cron or "", "day"),
                runs=runs or SingleRunner(),
                tags=tuple(tags),
                triggers=checked_triggers(triggers),
                after=after,
                waits_for=checked_waits(waits_for, cron),
                parameters={name: as_parameter(name, given) for name, given in (parameters or {}).items()},
            )
        except ConfigurationError as error:
            raise _placed(error, place) from None
        self.name = name
        self.place = place
        self.datasets: list[Dataset] = []

    def source(
        self,
        name: str,
        source: Source,
        *,
        load: Load | None = None,
        into: Destination | None = None,
        schema: StructType | str | None = None,
        event_time: str | None = None,
        start: str | date | datetime | None = None,
        mode: Mode = "batch",
        every: str | None = None,
        max_records: int | None = None,
        skew_buffer: SkewBuffer | None = None,
        layer: str = "bronze",
        contract: Contract | None = None,
        tags: Sequence[str] = (),
        owner: str | None = None,
        retries: int = 2,
        timeout: str | None = None,
        compute: str | None = None,
        history: str | None = None,
        keep_letters: str | None = None,
        maintenance: Maintenance | None = None,
        description: str = "",
    ) -> None:
        """Declare where rows come in: each arrival is kept whole in the bronze table of this name.

        ``load`` says how it is loaded where that is not what is new each time, such as ``FullLoader()``;
        ``into`` sends it past the lake, by a command of the target's own.

        Event times before ``start`` (the pipeline's, where none is given) count as unusable. With ``mode="stream"``
        each micro-batch is an arrival, of at most ``max_records``; a continuous run looks for one ``every`` so often.
        ``skew_buffer`` bounds what one partition may have of it; the surplus comes with later ones. ``history`` is for
        how long earlier versions can be read, ``keep_letters`` for how long its dead letters are kept.
        """
        place = _caller()
        if not hasattr(source, "look"):
            raise DefinitionError(
                f"source '{name}': {source!r} is no source. Use one of lakewright.connectors, such as "
                'JsonFiles("landing/visits").',
                file=place.file,
                line=place.line,
            )
        if schema is None and contract is not None:
            schema = contract.schema()
        self._add(
            place,
            name=name,
            layer=layer,
            source=source,
            load=load,
            into=into,
            schema=schema,
            event_time=event_time or (contract.event_time if contract else None),
            own_start=None if start is None else parse_time(start),
            mode=mode,
            every=every,
            max_records=max_records,
            skew_buffer=skew_buffer,
            contract=contract,
            tags=tuple(tags),
            owner=owner,
            retries=retries,
            timeout=timeout,
            compute=compute,
            history=history,
            keep_letters=keep_letters,
            maintenance=maintenance,
            description=description or (contract.description if contract else "") or "",
        )

    def dataset(self, **options: Any) -> Callable[[Step], Step]:
        """Declare a step: its parameters name its inputs; see ``add`` for the options."""
        place = _caller()
        check_options("dataset", options, inspect.signature(self.add).parameters, place)

        def declare(function: Step) -> Step:
            self.add(function, **options)
            return function

        return declare

    def add(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        layer: str = "silver",
        mode: Mode = "batch",
        every: str | None = None,
        max_records: int | None = None,
        skew_buffer: SkewBuffer | None = None,
        writer: Writer | None = None,
        into: Destination | None = None,
        event_time: str | None = None,
        grid: Grid | None = None,
        late: LatePolicy | None = None,
        marker: ReadinessMarker | None = None,
        layout: HorizontalPartitioner | None = None,
        inputs: Mapping[str, Reference | StreamJoin | str] | None = None,
        guards_in: Mapping[str, Sequence[Guard]] | None = None,
        rows: RowsRule | None = None,
        outputs: Mapping[str, PrivateOutput] | None = None,
        sessions: Sessions | None = None,
        fan_in: UnalignedFanIn | None = None,
        wrap: Wrapper | None = None,
        metadata: MetadataDecorator | None = None,
        contract: Contract | None = None,
        tags: Sequence[str] = (),
        owner: str | None = None,
        wait: str | None = None,
        closes: Closes = "schedule",
        idle: str | None = None,
        expect_within: str | None = None,
        retries: int = 2,
        timeout: str | None = None,
        compute: str | None = None,
        history: str | None = None,
        maintenance: Maintenance | None = None,
        depends_on_past: bool | None = None,
        shared_state: Sequence[str] = (),
        description: str | None = None,
    ) -> None:
        """Declare a step without a decorator, for datasets that a loop generates."""
        place = _place_of(function)
        parameters, takes_run = _parameters(function, place)
        self._add(
            place,
            name=name or function.__name__,
            layer=layer,
            function=function,
            takes_run=takes_run,
            inputs=_inputs(parameters, inputs or {}, guards_in or {}, place),
            mode=mode,
            every=every,
            max_records=max_records,
            skew_buffer=skew_buffer,
            writer=writer,
            into=into,
            event_time=event_time or (contract.event_time if contract else None),
            own_grid=grid,
            late=late,
            marker=marker,
            layout=layout,
            rows=rows,
            outputs=outputs,
            sessions=sessions,
            fan_in=fan_in,
            wrap=wrap,
            metadata=metadata,
            contract=contract,
            tags=tuple(tags),
            owner=owner,
            wait=wait,
            closes=closes,
            idle=idle,
            expect_within=expect_within,
            retries=retries,
            timeout=timeout,
            compute=compute,
            history=history,
            maintenance=maintenance,
            own_depends_on_past=depends_on_past,
            shared_state=tuple(shared_state),
            description=description or _first_line(function.__doc__),
        )

    def sql(
        self, name: str, query: str, *, inputs: Mapping[str, Reference | str] | None = None, **options: Any
    ) -> None:
        """Declare a step as SQL; the names after FROM and JOIN are its inputs, unless ``inputs`` says which."""
        place = _caller()
        guards = options.pop("guards_in", None)
        found = list(inputs) if inputs else _tables_of(query)
        if not found:
            raise DefinitionError(
                f"sql '{name}': no input found in the query. Name the inputs: inputs={{'table': 'dataset'}}.",
                file=place.file,
                line=place.line,
            )
        check_options(f"sql '{name}'", options, inspect.signature(self.add).parameters, place)
        contract = options.get("contract")
        options["event_time"] = options.get("event_time") or (contract.event_time if contract else None)
        options["own_grid"] = options.pop("grid", None)
        options["own_depends_on_past"] = options.pop("depends_on_past", None)
        options["shared_state"] = tuple(options.pop("shared_state", ()))
        options.setdefault("layer", "gold")
        self._add(place, name=name, sql=query, inputs=_inputs(found, inputs or {}, guards or {}, place), **options)

    def replicate(
        self,
        name: str,
        original: str | Source,
        how: Replicator,
        *,
        to: str | Destination,
        contract: Contract | None = None,
        layer: str = "gold",
        event_time: str | None = None,
        grid: Grid | None = None,
        tags: Sequence[str] = (),
        owner: str | None = None,
        retries: int = 2,
        timeout: str | None = None,
        compute: str | None = None,
        description: str = "",
    ) -> None:
        """Declare a copy of a dataset in another place, as ``how`` says; each slice of it is proven.

        ``to`` is a folder, relative to the project, or a URI. With ``event_time`` it is copied slice by slice.

        ``original`` may also be a source of files, or a topic (``to=TopicCopy(...)``): each arrival is then copied
        past the lake as it is. What its ``contract`` tags as private is refused. With ``PassthroughReplicator(deleted=
        "delete")`` a folder of files has a mirror: what is deleted there is deleted in the copy.
        """
        place = _caller()
        told: dict[str, Any] = {"tags": tuple(tags), "owner": owner, "retries": retries, "timeout": timeout}
        told["compute"] = compute
        try:
            refuse_pointless(name, original, event_time=event_time, grid=grid, contract=contract)
            if not isinstance(original, str):
                into, load = copy_of_source(name, original, how, to, contract)
                told |= {"source": original, "into": into, "load": load, "contract": contract}
                shown = type(original).__name__
            else:
                check_replica(name, how, to)
                told |= {"function": _unchanged, "inputs": (Input("original", original),), "replica": how}
                told |= {"location": to, "rows": "preserve", "event_time": event_time, "own_grid": grid}
                shown = original
        except ConfigurationError as error:
            raise _placed(error, place) from None
        self._add(place, name=name, layer=layer, description=description or f"A copy of {shown}", **told)

    def choose(self, name: str, choice: ExclusiveChoice) -> None:
        """Let each slice be made by one of several datasets, declared before: its branches."""
        place = _caller()
        try:
            _check_name("choice", name)
            self.datasets[:] = as_branches(name, choice, self.datasets, self.settings)
        except ConfigurationError as error:
            raise _placed(error, place) from None

    def _add(self, place: Place, *, name: str, layer: str, **options: Any) -> None:
        try:
            _check_name("dataset", name)
            if layer not in _LAYERS:
                hint = did_you_mean(layer, _LAYERS)
                raise ConfigurationError(f"'{layer}' is no layer: bronze, silver or gold.", hint=hint)
            self.datasets.append(self._definition(place, name, layer, options))
        except ConfigurationError as error:
            raise _placed(error, place) from None

    def _definition(self, place: Place, name: str, layer: str, options: dict[str, Any]) -> Dataset:
        rows = options.get("rows")
        if rows not in (None, "preserve", "reduce", "expand"):
            raise ConfigurationError(f"{name}: rows is 'preserve', 'reduce' or 'expand', not '{rows}'.")
        retries = options.get("retries", 2)
        if not isinstance(retries, int) or retries < 0:
            raise ConfigurationError(f"{name}: retries is a number from 0 on, not {retries!r}.")
        check_compute_option(name, options.get("compute"))
        check_envelopes(name, options)
        bring_fan_in(name, layer, options)
        bring_sessions(name, layer, options)
        stream = check_mode(name, options)
        check_load(name, options)
        options["skew_buffer"] = checked_skew_buffer(name, options)
        writer = options.pop("writer", None) or (None if options.get("source") or stream else DataOverwrite())
        if writer is not None and not hasattr(writer, "publish"):
            raise ConfigurationError(f"{name}: {writer!r} is no writer. Use DataOverwrite() or Merger(keys=[...]).")
        check_destination(name, options.get("into"), writer, options)
        check_maintenance(name, options)
        late = late_policy(name, options)
        check_late(name, options.get("into"), late)
        wait, idle, expect_within, timeout, every, keep_letters = (
            as_length(name, option, options.pop(option, None))
            for option in ("wait", "idle", "expect_within", "timeout", "every", "keep_letters")
        )
        if isinstance(into := options.get("into"), ChecksTimeout):
            into.check_timeout(name, timeout)
        check_closing(
            name,
            closes=options.get("closes", "schedule"),
            idle=idle,
            expect_within=expect_within,
            event_time=options.get("event_time"),
            settings=self.settings,
        )
        if isinstance(options.get("tags"), list):
            options["tags"] = tuple(options["tags"])
        validity = getattr(writer, "validity", None)
        return Dataset(
            name=name,
            layer=layer,
            settings=self.settings,
            place=place,
            writer=writer,
            late=late,
            outputs=dict(options.pop("outputs", None) or {}),
            wait=wait or timedelta(0),
            idle=idle,
            expect_within=expect_within,
            timeout=timeout,
            keep_letters=keep_letters,
            every=every or timedelta(seconds=1),
            valid_from=validity[0] if validity else None,
            valid_to=validity[1] if validity else None,
            **options,
        )


def _unchanged(original: DataFrame) -> DataFrame:
    """The step of a replica: what becomes of the rows, its replicator says."""
    return original


def _inputs(
    parameters: Sequence[str],
    references: Mapping[str, Reference | StreamJoin | str],
    guards: Mapping[str, Sequence[Guard]],
    place: Place,
) -> tuple[Input, ...]:
    for option, given in (("inputs", references), ("guards_in", guards)):
        if unknown := [name for name in given if name not in parameters]:
            raise DefinitionError(
                f"{option} names '{unknown[0]}', which is no parameter of the step "
                f"({', '.join(parameters) or 'it has none'}).",
                file=place.file,
                line=place.line,
                hint=did_you_mean(unknown[0], parameters),
            )
    found = []
    for parameter in parameters:
        reference = references.get(parameter)
        if isinstance(reference, StreamJoin):
            found.append(joined_input(parameter, reference, tuple(guards.get(parameter, ())), place))
            continue
        dataset = reference if isinstance(reference, str) else getattr(reference, "dataset", None) or parameter
        found.append(
            Input(
                parameter,
                dataset,
                None if isinstance(reference, str) else reference,
                tuple(guards.get(parameter, ())),
            )
        )
    return tuple(found)


def _parameters(function: Callable[..., Any], place: Place) -> tuple[list[str], bool]:
    names = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise DefinitionError(
                f"{function.__name__} takes *{parameter.name}; a step names each input as a parameter.",
                file=place.file,
                line=place.line,
            )
        if parameter.default is parameter.empty:
            names.append(parameter.name)
    return [name for name in names if name != "run"], "run" in inspect.signature(function).parameters


_TABLES = re.compile(r"\b(?:from|join)\s+([a-z_][a-z0-9_]*)", re.IGNORECASE)
_CTES = re.compile(r"(?:\bwith\s+|,\s*)([a-z_][a-z0-9_]*)\s+as\s*\(", re.IGNORECASE)


def _tables_of(query: str) -> list[str]:
    plain = re.sub(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", " ", query, flags=re.DOTALL)
    ctes = {name.lower() for name in _CTES.findall(plain)}
    return list(dict.fromkeys(name for name in _TABLES.findall(plain) if name.lower() not in ctes))


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"'{name}' is no name for a {what}: small letters, digits and _, beginning with a letter."
        )


def _first_line(docstring: str | None) -> str:
    return inspect.cleandoc(docstring or "").split("\n", 1)[0]


def _placed(error: ConfigurationError, place: Place) -> DefinitionError:
    if isinstance(error, DefinitionError):
        return error
    return DefinitionError(error.message, file=place.file, line=place.line, hint=error.hint)


def _place_of(function: Callable[..., Any]) -> Place:
    code = inspect.unwrap(function).__code__
    return Place(code.co_filename, code.co_firstlineno)


def _caller() -> Place:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)
