"""What Delta is told of a dataset: all of it when its table is made, how long versions are kept at each write."""

from __future__ import annotations

from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph

__all__ = ["properties_of"]


def properties_of(graph: Graph, dataset: Dataset) -> dict[str, str]:
    """The table's properties: what its writer needs, how long versions are kept, and the change feed where a stream
    follows the changes.
    """
    properties: dict[str, str] = dict(getattr(dataset.writer, "table_properties", {}))
    if dataset.history is not None:
        properties["delta.logRetentionDuration"] = f"interval {dataset.history}"
        properties["delta.deletedFileRetentionDuration"] = f"interval {dataset.history}"
    if graph.needs_change_feed(dataset.name):
        properties["delta.enableChangeDataFeed"] = "true"
    return properties
