"""An input that is two streams, joined: what it needs of the project, refused before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, DefinitionError
from lakewright.model.protocols import Guard, StreamJoin
from lakewright.pipelines.definitions import Dataset, Input, Place

if TYPE_CHECKING:
    from lakewright.pipelines.graph import Graph

__all__ = ["check_join", "joined_input", "refuse_join_at_rest"]


def joined_input(parameter: str, join: StreamJoin, guards: tuple[Guard, ...], place: Place) -> Input:
    """The parameter that receives what the join of two streams gives."""
    try:
        left, _ = join.check_inputs()
    except ConfigurationError as error:
        raise DefinitionError(error.message, file=place.file, line=place.line, hint=error.hint) from None
    return Input(parameter, left, None, guards, join)


def refuse_join_at_rest(dataset: Dataset) -> None:
    """Refuse a join of streams where there is none."""
    joined = [given for given in dataset.inputs if given.join is not None]
    if joined and not dataset.is_stream:
        left, right = joined[0].datasets
        raise ConfigurationError(
            f"{dataset.name} is made slice by slice, and its input {joined[0].parameter} joins two streams.",
            hint=f'Add mode="stream"; or let the step take {left} and {right}, and call join({left}, {right}) of the '
            "joiner.",
        )


def check_join(graph: Graph, dataset: Dataset, given: Input) -> None:
    """Refuse a join that could not hold what it promises on these datasets."""
    for name in given.datasets:
        above = graph.datasets.get(name)
        if above is None or not above.appends:
            raise ConfigurationError(
                f"{dataset.name} joins the rows that {name} gains, but {name} is replaced or merged, so that its rows "
                "change.",
                hint="Join streams that only add rows; read what changes as of a column, from a table of its versions.",
            )
    if given.guards:
        name = type(given.guards[0]).__name__
        raise ConfigurationError(
            f"{dataset.name}: {name} would judge what the join gives, and not what comes in: rows that are late or "
            "wrong are then gone.",
            hint=f"Judge each side in a stream of its own, and join those: {name} there, the join here.",
        )
    if dataset.skew_buffer is not None:
        raise ConfigurationError(
            f"{dataset.name}: a skew_buffer bounds what a stream reads, and a join has read it already.",
            hint="Give it to the streams that are joined.",
        )
