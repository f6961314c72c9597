"""What guards need of the dataset that they guard: refused when the project is loaded, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError
from lakewright.model.protocols import Guard, LatenessGuard, StreamGuard
from lakewright.model.times import parse_duration
from lakewright.patterns.error_management.dead_letter import DeadLetter
from lakewright.patterns.error_management.filter_interceptor import FilterInterceptor
from lakewright.pipelines.definitions import Dataset, Input

if TYPE_CHECKING:
    from lakewright.pipelines.graph import Graph

__all__ = ["check_guards", "watermark_warnings"]


def check_guards(graph: Graph, dataset: Dataset) -> None:
    """Refuse a guard that cannot do here what it promises."""
    _check_told_apart(dataset)
    lateness = 0
    for given in dataset.inputs:
        _check_filters(dataset, given)
        for guard in given.guards:
            name = type(guard).__name__
            if isinstance(guard, LatenessGuard):
                lateness += 1
                _check_lateness(graph, dataset, given, guard)
            if getattr(guard, "reads_earlier_slices", False) and not dataset.is_stream:
                _check_earlier(graph, dataset, name)
            if isinstance(guard, StreamGuard) and dataset.is_stream:
                _check_on_stream(graph, dataset, given, guard)
    if lateness > 1:
        raise ConfigurationError(f"{dataset.name} has {lateness} guards that keep a watermark; it can have one.")


def _check_told_apart(dataset: Dataset) -> None:
    """Refuse two parameters of one dataset that both set rows aside: letters name the dataset, and count for both."""
    first: dict[str, str] = {}
    for given in dataset.inputs:
        if not any(isinstance(one, DeadLetter) or getattr(one, "nulls", "") == "set aside" for one in given.guards):
            continue
        other = first.setdefault(given.dataset, given.parameter)
        if other != given.parameter:
            raise ConfigurationError(
                f"{dataset.name} reads {given.dataset} twice, as {other} and as {given.parameter}, and guards of both "
                "set rows aside: a row would have two dead letters, and count twice.",
                hint=f"Set them aside in a dataset of its own, made of {given.dataset}, and read that one twice.",
            )


def _check_filters(dataset: Dataset, given: Input) -> None:
    """Several guards that filter have one account: their names and shares must not contradict each other."""
    filters = [guard for guard in given.guards if isinstance(guard, FilterInterceptor)]
    names = [name for guard in filters for name in guard.filters]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"{dataset.name} has two filters '{twice[0]}' on {given.dataset}: nobody could tell which of "
            "them removed a row.",
            hint="Give one of them another name.",
        )
    if len({guard.sample for guard in filters}) > 1:
        raise ConfigurationError(
            f"{dataset.name} has filters on {given.dataset} that count different samples: their figures would not "
            "add up.",
            hint="Give each FilterInterceptor of an input the same sample.",
        )


def _check_lateness(graph: Graph, dataset: Dataset, given: Input, guard: Guard) -> None:
    name = type(guard).__name__
    if dataset.into is not None:
        raise ConfigurationError(
            f"{dataset.name}: {name} keeps its watermark in the dataset's own commits, and this one goes to "
            f"{dataset.into.shown}.",
            hint="Judge in a dataset of the lake, and send that one out.",
        )
    if dataset.is_stream and (given is not graph.streamed_input(dataset) or graph.reads_changes(dataset)):
        raise ConfigurationError(f"{dataset.name}: {name} judges the rows that a stream adds, and none else.")
    if not dataset.is_stream and graph.slicing[dataset.name].follows != given.dataset:
        raise ConfigurationError(
            f"{dataset.name}: {name} judges batch by batch as they come, and this dataset is not cut so.",
            hint="A dataset with slices of event time says by late=Capture() that rows which come after their slice "
            'was made are kept aside, and by closes="watermark" and wait="30 minutes" when that is.',
        )
    above = graph.datasets.get(given.dataset)
    if getattr(guard, "event_time", None) is None and (above is None or above.event_time is None):
        raise ConfigurationError(
            f"{dataset.name}: {name} has no event time to judge {given.dataset} by.",
            hint=f'Name the column: {name}(..., event_time="..."). The time of processing is never late.',
        )


def _check_earlier(graph: Graph, dataset: Dataset, name: str) -> None:
    if graph.slicing[dataset.name].kind != "event":
        raise ConfigurationError(
            f"{dataset.name}: {name} has a window, but no slices of event time to look back over.",
            hint="Give the dataset an event_time, or leave window out: then repeats within a slice are found.",
        )
    if dataset.into is not None:
        raise ConfigurationError(
            f"{dataset.name}: {name} looks into earlier slices, which are outside the lake: {dataset.into.shown}.",
            hint="Drop repeats in a dataset of the lake, and send that one out.",
        )


def _check_on_stream(graph: Graph, dataset: Dataset, given: Input, guard: StreamGuard) -> None:
    name = type(guard).__name__
    if given is not graph.streamed_input(dataset):
        return  # it is read as it stands when a micro-batch begins
    if graph.reads_changes(dataset):
        raise ConfigurationError(
            f"{dataset.name} follows the changes of {given.dataset}: a change that looks like another one is none the "
            f"less a change, so {name} is not for it.",
        )
    above = graph.datasets.get(given.dataset)
    guard.check_stream(None if above is None else above.event_time)
    if any(isinstance(one, LatenessGuard) for one in given.guards):
        other = next(type(one).__name__ for one in given.guards if isinstance(one, LatenessGuard))
        raise ConfigurationError(
            f"{dataset.name}: {name} drops what lies behind its own watermark before {other} could judge it.",
            hint=f"Judge in a stream of its own, and let this one follow it: {other} there, {name} here.",
        )
    judged, window = _judged_above(graph, dataset), getattr(guard, "window", None)
    if judged is None or window is None:
        return
    source, judge, time = judged
    own = None if above is None else above.event_time
    if (getattr(guard, "event_time", None) or own) != time:
        return  # two times of a row say nothing of each other
    # Spark drops what lies exactly at its watermark as well, which a detector lets pass.
    if judge.tracking.lateness >= parse_duration(window):
        raise ConfigurationError(
            f"{dataset.name}: {name} drops what lies {window} or more behind the newest event time, and {source.name} "
            f"lets pass what is no more than {judge.tracking.lateness} late: what lies between would be counted, and "
            "be in no table.",
            hint=f'Give the {type(judge).__name__} of {source.name} a lateness shorter than "{window}", or {name} a '
            "longer window.",
        )


def watermark_warnings(graph: Graph) -> tuple[str, ...]:
    """What is said of a stream whose state may drop rows that the detector above it lets pass.

    The state follows the newest event time of all rows; a detector may wait for the slowest partition, or source.
    """
    found = []
    for dataset in graph.datasets.values():
        given, judged = graph.streamed_input(dataset), _judged_above(graph, dataset)
        if given is None or judged is None or not any(isinstance(one, StreamGuard) for one in given.guards):
            continue
        source, judge, _ = judged
        waits = ['across="max"'] if judge.tracking.across != "max" else []
        if getattr(judge, "source", None) is not None and judge.tracking.over_sources != "max":
            waits.append('over_sources="max"')
        if waits:
            found.append(
                f"{dataset.name}: its state follows the newest event time of all rows, and {source.name} waits for the "
                "slowest: what that lets pass may lie behind the watermark here, and is then counted, and in no table. "
                f"With {' and '.join(waits)} the {type(judge).__name__} of {source.name} captures it."
            )
    return tuple(found)


def _judged_above(graph: Graph, dataset: Dataset) -> tuple[Dataset, LatenessGuard, str | None] | None:
    """The nearest dataset above a stream, along what it follows, that judges what is late; its judge, and by what."""
    given = graph.streamed_input(dataset)
    above = None if given is None else graph.datasets.get(given.dataset)
    if above is None:
        return None
    for one in above.inputs:
        for guard in one.guards:
            if isinstance(guard, LatenessGuard):
                source = graph.datasets.get(one.dataset)
                own = None if source is None else source.event_time
                return above, guard, getattr(guard, "event_time", None) or own
    return _judged_above(graph, above)
