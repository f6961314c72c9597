"""Running a project on no rows: every step is called once, with the columns that it will see and nothing in them.

Wrong names, types, SQL and contracts come out in seconds, also before anything has arrived.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.arrivals import Arrival
from lakewright.model.columns import FILE_COLUMN, HASH_COLUMN, RAW_COLUMN, VERSION_COLUMN, business_columns
from lakewright.model.protocols import Writer
from lakewright.model.slices import ARRIVAL_COLUMN, EVENT_COLUMN, WHOLE, Slice, event_slice
from lakewright.model.times import cell_interval, cell_of
from lakewright.pipelines.decide import DatasetPlan, Decider, SliceState, Wish
from lakewright.pipelines.definitions import Dataset, Input
from lakewright.pipelines.take import as_schema, look_for_new, source_context
from lakewright.pipelines.workshop import Attempt, Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["OneSliceEach", "allow_empty", "no_rows"]

_SYSTEM = (
    f"{FILE_COLUMN} string, {VERSION_COLUMN} string, {HASH_COLUMN} bigint, {RAW_COLUMN} string, "
    f"{ARRIVAL_COLUMN} bigint, {EVENT_COLUMN} string"
)


class OneSliceEach(Decider):
    """Decides that every dataset makes one slice, whatever the receipts tell."""

    def decide(self, name: str, wish: Wish) -> DatasetPlan:
        dataset, slicing = self._graph[name], self._graph.slicing[name]
        one: Slice = WHOLE
        if slicing.kind == "event":
            now = cell_interval(cell_of(wish.run_time, dataset.grid)).start
            one = event_slice(cell_of(now - timedelta(microseconds=1), dataset.grid))
        elif slicing.kind == "arrival":
            one = Slice.parse("arrival-1")
        return DatasetPlan(dataset, slicing, (SliceState(one, "due", "on no rows"),), 0)


def allow_empty(dataset: Dataset) -> Dataset:
    """The same dataset, whose writers do not refuse an empty frame."""
    outputs = {name: replace(output, writer=_allowing(output.writer)) for name, output in dataset.outputs.items()}
    return replace(dataset, writer=None if dataset.writer is None else _allowing(dataset.writer), outputs=outputs)


def _allowing(writer: Writer) -> Writer:
    if getattr(writer, "empty", "allow") == "allow":
        return writer
    changed: Any = writer
    return replace(changed, empty="allow")  # type: ignore[no-any-return]


def no_rows(attempt: Attempt, given: Input) -> DataFrame:
    """An input's columns, system columns included, without rows.

    A source is what it declares: its table may lack a column that the next file brings. Everything else is its
    table, or, where there is none yet, its contract.
    """
    shop = attempt.shop
    dataset = shop.graph.datasets.get(given.dataset)
    session = shop.lake.session()
    if dataset is not None and dataset.is_source and dataset.schema is not None:
        return _bronze(shop, dataset, as_schema(shop, dataset))
    if shop.lake.log(given.dataset).exists():
        return shop.lake.read(given.dataset, system_columns=True).where("false")
    if dataset is not None and dataset.contract is not None:
        return session.createDataFrame([], dataset.contract.schema())
    if dataset is not None and dataset.is_source:
        return _bronze(shop, dataset, _found_schema(shop, dataset))
    raise ConfigurationError(
        f"{attempt.dataset.name} reads {given.dataset}, which has no table yet, and nothing tells its columns.",
        hint=f"Run it too (`--select +{attempt.dataset.name}`), or give {given.dataset} a contract.",
    )


def _bronze(shop: Workshop, dataset: Dataset, schema: StructType | None) -> DataFrame:
    assert schema is not None
    if dataset.event_time is not None and dataset.event_time not in schema.names:
        raise InputError(
            f"{dataset.place}: {dataset.name} names event_time '{dataset.event_time}', but its schema has "
            f"{', '.join(schema.names)}."
        )
    session = shop.lake.session()
    system = session.createDataFrame([], _SYSTEM).schema
    return session.createDataFrame([], type(schema)([*schema.fields, *system.fields]))


def _found_schema(shop: Workshop, dataset: Dataset) -> StructType:
    """The columns of what lies at a source that declares none."""
    assert dataset.source is not None
    windows = look_for_new(shop, dataset)
    if not windows:
        raise ConfigurationError(
            f"{dataset.place}: {dataset.name} declares no schema, and nothing has arrived that would tell its columns.",
            hint="Give it a schema or a contract.",
        )
    arrival = Arrival(dataset.name, 1, windows[0].window, shop.now(), files=windows[0].files)
    context = source_context(shop, dataset)
    frame = dataset.source.read(arrival, spark=shop.lake.session(), schema=None, ctx=context)
    return frame.select(*[f"`{name}`" for name in business_columns(frame.columns)]).schema
