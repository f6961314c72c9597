"""``sessions=Sessions(...)`` on a dataset: what it brings along, and what cannot go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError
from lakewright.model.references import Lookback, SameSlice
from lakewright.model.times import finest
from lakewright.patterns.data_value.incremental_sessionizer import UsableVisits
from lakewright.patterns.data_value.sessions import Sessions, check_known
from lakewright.patterns.error_management.dead_letter import DeadLetter
from lakewright.patterns.idempotency.data_overwrite import DataOverwrite
from lakewright.patterns.idempotency.merger import Merger
from lakewright.pipelines.definitions import Dataset, Input, PrivateOutput

if TYPE_CHECKING:
    from lakewright.pipelines.graph import Graph

__all__ = ["bring_sessions", "check_sessions", "pending_of", "sessions_of_dataset", "visits_input"]

_ID = "session_id"
_REFUSED = {
    "event_time": "sessions tell their own times; the column of the visits is Sessions(..., time=...)",
    "outputs": "the step returns visits, and the pending sessions are the only further table",
    "into": "the next slice goes on with what is kept in the lake; send out a dataset that reads this one",
    "contract": "the declaration tells the columns",
    "wrap": "a dataset that reads this one can have it",
    "metadata": "a dataset that reads this one can have it",
    "skew_buffer": "visits that wait would be late for their session; bound the stream that it follows",
}


def bring_sessions(name: str, layer: str, options: dict[str, Any]) -> None:
    """Fill in what a dataset of sessions has by declaration: its private output, its writer, its guard."""
    if options.get("sessions") is None:
        return
    sessions = check_known(options["sessions"], name)
    for option, why in _REFUSED.items():
        if options.get(option):
            raise ConfigurationError(f"{name}: a dataset with sessions has no '{option}': {why}.")
    if options.get("rows") not in (None, "reduce"):
        raise ConfigurationError(f'{name}: visits become fewer sessions, so rows is "reduce" or left out.')
    writer = options.get("writer")
    if options.get("mode", "batch") == "stream":
        options["writer"] = writer or Merger(keys=[_ID])
        if not isinstance(options["writer"], Merger) or tuple(options["writer"].keys) != (_ID,):
            raise ConfigurationError(
                f'{name}: a stream of sessions is merged by its ids: writer=Merger(keys=["{_ID}"]).'
            )
    else:
        if writer is not None and not isinstance(writer, DataOverwrite):
            raise ConfigurationError(
                f"{name}: slices of sessions are replaced as a whole. Leave the writer out, or use DataOverwrite()."
            )
        if sessions.expiry == "watermark":
            raise ConfigurationError(f'{name}: expiry="watermark" is for streams; slices have none.')
        options["outputs"] = {f"{name}_pending": PrivateOutput(DataOverwrite(), layer)}
        options["event_time"] = "end_time"
    options["inputs"] = _guarded(options.get("inputs", ()), sessions)


def _guarded(inputs: Sequence[Input], sessions: Sessions) -> tuple[Input, ...]:
    """The same inputs; that of the visits sets those aside that can belong to no session."""
    visits = visits_input(inputs)
    guard = UsableVisits(tuple(sessions.keys), sessions.time)
    return tuple(replace(one, guards=(*one.guards, guard)) if one is visits else one for one in inputs)


def visits_input(inputs: Sequence[Input]) -> Input | None:
    """The input that brings the visits: the first that is read slice by slice, or followed."""
    return next((one for one in inputs if one.reference is None or isinstance(one.reference, SameSlice)), None)


def pending_of(dataset: Dataset) -> str:
    """The private table of sessions that are not over."""
    return f"{dataset.name}_pending"


def sessions_of_dataset(graph: Graph, dataset: Dataset) -> Sessions:
    """The declaration, with the input's event time where it names none."""
    sessions = dataset.sessions
    assert sessions is not None
    if sessions.time is not None:
        return sessions
    given = visits_input(dataset.inputs)
    above = None if given is None else graph.datasets.get(given.dataset)
    if above is None or above.event_time is None:
        raise ConfigurationError(
            f"{dataset.name}: nothing tells when a visit was.", hint='Name the column: Sessions(..., time="...").'
        )
    return replace(sessions, time=above.event_time)


def _check_inputs(dataset: Dataset) -> None:
    if not dataset.is_stream:
        if any(getattr(guard, "reads_earlier_slices", False) for one in dataset.inputs for guard in one.guards):
            raise ConfigurationError(
                f"{dataset.name}: a guard with a window looks for visits in earlier slices, which hold sessions.",
                hint="Drop repeats in a dataset of its own, and build the sessions of that one.",
            )
        return
    if len(dataset.inputs) != 1 or dataset.takes_run:
        raise ConfigurationError(
            f"{dataset.name}: the step of a stream of sessions stands in the stream itself: it is called once, with "
            "the visits alone.",
            hint="Join other inputs in a stream of its own, and let this one follow it.",
        )
    for guard in dataset.inputs[0].guards:
        if not isinstance(guard, DeadLetter | UsableVisits) or getattr(guard, "stop_above", None) is not None:
            raise ConfigurationError(
                f"{dataset.name}: {type(guard).__name__} judges micro-batches before they reach a state, and here the "
                "state comes first; DeadLetter without stop_above can be used.",
                hint=f"Judge in a stream of its own, and let this one follow it: {type(guard).__name__} there.",
            )


def check_sessions(graph: Graph, dataset: Dataset) -> None:
    """Refuse sessions without a time, and readers that would look for a session where it does not lie."""
    if dataset.sessions is not None:
        sessions_of_dataset(graph, dataset)
        _check_inputs(dataset)
    for given in dataset.inputs:
        other = graph.datasets.get(given.dataset)
        if other is None or other.sessions is None or other.is_stream or graph.slicing[dataset.name].kind != "event":
            continue
        reference = graph.reference(dataset, given)
        finer = isinstance(reference, SameSlice) and finest(dataset.grid, other.grid) != other.grid
        if finer or isinstance(reference, Lookback):
            raise ConfigurationError(
                f"{dataset.name} reads {other.name}, whose sessions lie in the {other.grid} in which they were "
                "completed, not in that of their visits: a part of it cannot be told.",
                hint=f"Read it by SameSlice() with slices of a {other.grid} or longer, or by Whole().",
            )
