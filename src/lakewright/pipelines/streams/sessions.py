"""A stream of sessions: the step and the state stand in the stream itself, the micro-batches only bring what comes out.

Guarantee:
    A visit that a guard sets aside never reaches the state. It comes out beside the sessions of its micro-batch, as it
    was, and is committed to the dead letters before them; a repeated micro-batch adds neither twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.errors import LakewrightError, StepFailed
from lakewright.failpoints import failpoint
from lakewright.model.columns import system_columns
from lakewright.model.references import SameSlice
from lakewright.patterns.data_value.stateful_sessionizer import build_sessions_on_stream
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.inputs import judged_input, stream_context
from lakewright.pipelines.make import publish_once, set_aside
from lakewright.pipelines.properties import properties_of
from lakewright.pipelines.session_options import sessions_of_dataset
from lakewright.pipelines.streams.skew import refuse_skipped
from lakewright.pipelines.workshop import Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.streams.batches import BatchAttempt

__all__ = ["deliver_sessions", "session_stream"]

_VISIT = "_lw_visit"


def session_stream(shop: Workshop, dataset: Dataset, rows: DataFrame) -> DataFrame:
    """What comes out of the state, and, in a column of their own, the visits that guards keep from it; lazy."""
    from pyspark.sql import functions as F

    given = shop.graph.streamed_input(dataset)
    assert given is not None
    columns = rows.columns
    context = stream_context(shop, dataset, given, columns)
    apart, kept = F.lit(False), rows
    for guard in given.guards:
        guarded = guard.on_batch(kept, context)
        kept = guarded.kept
        if guarded.side is not None:
            apart = apart | guarded.side.broken
    visits = _call_step(dataset, given.parameter, kept.drop(*system_columns(columns)))
    sessions = build_sessions_on_stream(visits, sessions=sessions_of_dataset(shop.graph, dataset))
    beside = rows.where(apart).select(F.struct("*").alias(_VISIT))
    return sessions.unionByName(beside, allowMissingColumns=True)


def _call_step(dataset: Dataset, parameter: str, visits: DataFrame) -> DataFrame:
    from pyspark.sql import DataFrame  # the one class of both engines

    assert dataset.function is not None
    try:
        result = dataset.function(**{parameter: visits})
    except LakewrightError:
        raise
    except Exception as error:
        raise StepFailed(f"{dataset.place}: {dataset.name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(result, DataFrame) or not result.isStreaming:
        raise StepFailed(
            f"{dataset.place}: {dataset.name} returned {type(result).__name__}, not the visits of its stream."
        )
    return result


def deliver_sessions(attempt: BatchAttempt, rows: DataFrame) -> None:
    """Runs the jobs that bring a micro-batch's sessions into the dataset, after what was set aside of it."""
    dataset, shop = attempt.dataset, attempt.shop
    given = shop.graph.streamed_input(dataset)
    assert given is not None
    assert dataset.writer is not None
    apart = rows.where(f"{_VISIT} IS NOT NULL").select(f"{_VISIT}.*")
    set_aside(attempt, [judged_input(attempt, given, SameSlice(), apart, apart.columns, None, None, streamed=True)])
    failpoint("set_aside")
    table = shop.lake.open(
        dataset.name,
        attempt.identity(),
        properties=properties_of(shop.graph, dataset),
        still_mine=attempt.still_mine,
    )
    sessions = rows.where(f"{_VISIT} IS NULL").drop(_VISIT)
    refuse_skipped(attempt, publish_once(attempt, table, sessions, dataset.writer, dataset.layout, dataset.name))
