"""Which function makes a slice of a dataset, and of which tables, wherever it is made."""

from __future__ import annotations

from collections.abc import Callable

from lakewright.lake.lake import Lake
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.make import make_slice
from lakewright.pipelines.streams.now import read_now
from lakewright.pipelines.take import take_arrival
from lakewright.pipelines.workshop import Made

__all__ = ["Make", "maker_of", "places_of"]

Make = Callable[..., Made]
"""``make(shop, dataset, state, attempt=1)``"""


def maker_of(dataset: Dataset) -> Make:
    """A stream reads what is there, a source takes an arrival, any other dataset makes a slice of its inputs."""
    return read_now if dataset.is_stream else take_arrival if dataset.is_source else make_slice


def places_of(lake: Lake, dataset: Dataset) -> dict[str, str]:
    """Where the tables lie that a step reads and writes, by name."""
    read = (name for given in dataset.inputs for name in given.datasets)
    names = (dataset.name, *dataset.outputs, *read)
    return {name: lake.resolve(name) for name in names if lake.knows(name) or name in lake.borrowed}
