"""What a failed slice is told as: one kind error with its place, whatever it was that went wrong."""

from __future__ import annotations

from lakewright.errors import LakewrightError, StepFailed
from lakewright.lake.delta_errors import explain_lost_java, explain_lost_server
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.private_columns import words_of_step

__all__ = ["explain_failure"]


def explain_failure(
    error: BaseException, graph: Graph, dataset: Dataset, slice_id: str, *, lost_java: bool
) -> LakewrightError:
    """An error of ours for any error; with ``lost_java`` the Spark of the process that made the slice has ended."""
    if lost_java:
        return explain_lost_java(f"{dataset.name} {slice_id}")
    if (lost := explain_lost_server(error, what=f"{dataset.name} {slice_id}")) is not None:
        lost.__cause__ = error
        return lost
    if isinstance(error, LakewrightError):
        return error
    # Whatever nobody explained comes out as one line with its place, never as a stack trace.
    said = words_of_step(graph, dataset, error, named=True)
    unexplained = StepFailed(f"{dataset.place}: {dataset.name}, slice {slice_id} failed: {said}")
    unexplained.__cause__ = error
    return unexplained
