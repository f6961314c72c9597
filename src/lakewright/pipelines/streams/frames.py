"""The streaming frame that a dataset is made of: a source's records, or the rows and changes of another dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

from lakewright.errors import ConfigurationError
from lakewright.model.columns import ALIVE, BATCH_TIME_COLUMN, DELETED_COLUMN, system_columns
from lakewright.model.protocols import Guarded, LatenessGuard, StreamGuard
from lakewright.model.slices import EVENT_COLUMN
from lakewright.model.sql import quoted
from lakewright.model.streams import Generation
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.inputs import stream_context
from lakewright.pipelines.streams.sessions import session_stream
from lakewright.pipelines.take import as_schema, source_context
from lakewright.pipelines.workshop import Workshop

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["stream_frame"]


def stream_frame(shop: Workshop, dataset: Dataset, generation: Generation) -> DataFrame:
    """What a stream reads; lazy."""
    if dataset.is_source:
        return _records(shop, dataset, generation)
    if dataset.sessions is not None:
        return session_stream(shop, dataset, _rows_of_input(shop, dataset))
    return _guarded(shop, dataset, _rows_of_input(shop, dataset))


def _guarded(shop: Workshop, dataset: Dataset, frame: DataFrame) -> DataFrame:
    """The stream after those of its guards that remember across micro-batches, or need to know when one began."""
    from pyspark.sql import functions as F

    given = shop.graph.streamed_input(dataset)
    assert given is not None
    if any(isinstance(guard, LatenessGuard) for guard in given.guards):
        # Spark puts the time of the micro-batch here, which it notes before it begins: a repeat has the same.
        frame = frame.withColumn(BATCH_TIME_COLUMN, F.current_timestamp())
    if not any(isinstance(guard, StreamGuard) for guard in given.guards):
        return frame
    columns = frame.columns
    context = stream_context(shop, dataset, given, columns)
    for guard in given.guards:
        if isinstance(guard, StreamGuard):
            frame = guard.on_stream(frame, context)
            continue
        # What it takes out of a micro-batch afterwards must not be remembered here: a good row would be its repeat.
        judged = guard.on_batch(frame, context)
        for removed in _removed(judged):
            context = replace(context, apart=removed if context.apart is None else context.apart | removed)
        frame = frame.withColumns(dict(judged.added)) if judged.added else frame
    return frame.select(*map(quoted, columns))


def _removed(judged: Guarded) -> Iterator[Column]:
    """Whether a row is taken out by a guard; never NULL."""
    from pyspark.sql import functions as F

    if judged.side is not None:
        yield judged.side.broken
    if judged.tally is not None:
        fulfilled = reduce(lambda one, other: one & other, judged.tally.conditions.values())
        yield ~F.coalesce(fulfilled, F.lit(False))


def _records(shop: Workshop, dataset: Dataset, generation: Generation) -> DataFrame:
    source: Any = dataset.source
    frame = source.stream(
        spark=shop.lake.session(),
        schema=as_schema(shop, dataset),
        ctx=source_context(shop, dataset),
        start=generation.start,
        reached=None if generation.progress is None else generation.progress.offsets,
        max_records=dataset.max_records,
    )
    return cast("DataFrame", frame)


def _rows_of_input(shop: Workshop, dataset: Dataset) -> DataFrame:
    given = shop.graph.streamed_input(dataset)
    assert given is not None
    if given.join is not None:
        sides = (_rows_of(shop, dataset, name) for name in given.datasets)
        left, right = (side.drop(*system_columns(side.columns)) for side in sides)
        return given.join.join(left, right)
    return _rows_of(shop, dataset, given.dataset)


def _rows_of(shop: Workshop, dataset: Dataset, name: str) -> DataFrame:
    log = shop.lake.log(name)
    if not log.exists():
        raise ConfigurationError(
            f"{dataset.name} reads {name}, which has no table yet.",
            hint=f"Nothing has arrived for it so far; `lakewright plan --select +{dataset.name}` shows why.",
        )
    reader = shop.lake.session().readStream.format("delta").option("maxFilesPerTrigger", 1000)
    if shop.graph.reads_changes(dataset):
        if shop.lake.properties(name).get("delta.enableChangeDataFeed") != "true":
            raise ConfigurationError(
                f"{dataset.place}: {dataset.name} follows the changes of {name}, whose change feed is off. "
                "Nothing was read.",
                hint="Turn it on in Python, then run again: "
                f'Project(".").spark().sql("ALTER TABLE delta.`{log.path}` SET TBLPROPERTIES '
                '(delta.enableChangeDataFeed = true)")',
            )
        reader = reader.option("readChangeFeed", "true")
    frame = reader.load(log.path)
    columns = frame.columns
    if DELETED_COLUMN in columns:  # a row that becomes a mark has an old image, and no new one
        frame = frame.where(ALIVE)
    return frame.where(f"{EVENT_COLUMN} IS NOT NULL") if EVENT_COLUMN in columns else frame
