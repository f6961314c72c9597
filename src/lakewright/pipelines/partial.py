"""Making a slice of some of its parts: how complete it is, the flag on its rows, where it goes, and who is told.

Guarantee:
    The completeness travels in each commit of the attempt, so that a recovered commit and a rebuilt store know it too.
    With ``publish="private"`` a partial slice changes the table of partial slices alone; when it is whole, that table
    is emptied of it before the public commit, and a kill in between is mended by the next run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError, InputError, LakewrightError, StepFailed
from lakewright.lake.lake import Lake
from lakewright.model.columns import taken_names
from lakewright.model.completeness import Completeness
from lakewright.model.findings import Finding
from lakewright.model.receipts import Receipt
from lakewright.model.slices import Slice
from lakewright.patterns.data_flow.unaligned_fan_in import FanInReport, is_met, rule_in_words
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.fan_in import completeness_of
from lakewright.pipelines.fan_in_options import partial_of
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.marking import PARTIAL, partial_notices
from lakewright.pipelines.states import SliceState
from lakewright.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.workshop import Attempt, Made, Workshop

__all__ = [
    "COMPLETENESS",
    "completeness_frame",
    "completeness_rows",
    "measured",
    "partial_frames",
    "run_fallback",
    "stays_private",
]

COMPLETENESS = "completeness"
"""The name under which people look at the completeness of slices, as at a table."""
_COLUMNS = (
    "dataset string, slice string, expected int, present int, share double, missing array<string>, "
    "is_complete boolean, is_public boolean, state string, version bigint, committed_at timestamp, run_id string"
)


def stays_private(shop: Workshop, dataset: Dataset, slice_: Slice) -> bool:
    """Whether a slice, made now, would not touch the public table, because parts of it are missing."""
    if partial_of(dataset) is None or shop.sample is not None:
        return False
    found = completeness_of(shop.graph, shop.store, dataset, slice_)
    return found is not None and not found.is_complete


def measured(current: Attempt, *, private: bool) -> Completeness | None:
    """How complete the slice is at the versions that were pinned; each commit of the attempt tells it."""
    dataset, shop = current.dataset, current.shop
    if dataset.fan_in is None or shop.sample is not None:
        return None
    found = completeness_of(shop.graph, shop.store, dataset, current.slice, upto=current.inputs)
    if found is None:
        return None
    hidden = partial_of(dataset) is not None and not found.is_complete and not private
    if hidden or not is_met(dataset.fan_in.rule, found):
        raise InputError(
            f"{dataset.name}, slice {current.slice.id}: parts of it went away while it was begun: {found.in_words()}. "
            "Nothing was written.",
            hint="Run it again.",
        )
    current.told["completeness"] = found.as_told()  # type: ignore[assignment]
    return found


def partial_frames(
    current: Attempt, frames: dict[str, DataFrame], found: Completeness | None, *, private: bool
) -> dict[str, DataFrame]:
    """What a step returned, with the flag on each row, under the name of the table that it goes to. Lazy."""
    from pyspark.sql import functions as F

    dataset = current.dataset
    if dataset.fan_in is None:
        return frames
    frame, flag = frames[dataset.name], dataset.fan_in.flag
    if taken_names([flag], frame.columns):
        raise ConfigurationError(
            f"{dataset.place}: {dataset.name} returns a column '{flag}', which fan_in would overwrite.",
            hint=f'Drop it in the step, or name another: fan_in=UnalignedFanIn(flag="{flag}_input").',
        )
    partial = found is not None and not found.is_complete
    flagged = frame.withColumn(flag, F.lit(partial))
    if (kept := partial_of(dataset)) is None:
        return {**frames, dataset.name: flagged}
    if private:
        return {kept: flagged}
    before = current.shop.store.receipts.live(kept, current.slice.id)
    # Nobody reads both: what was kept back is gone when the whole slice is there.
    emptied = {} if before is None or before.rows == 0 else {kept: flagged.where("false")}
    return {dataset.name: flagged, **emptied}


def run_fallback(shop: Workshop, dataset: Dataset, state: SliceState, *, attempt: int = 1) -> Made:
    """Call what is to be done where too few parts are there, and record it; the public table stays as it is."""
    assert dataset.fan_in is not None
    found = completeness_of(shop.graph, shop.store, dataset, state.slice)
    assert found is not None
    rule = rule_in_words(dataset.fan_in.rule)
    reason = f"{state.status}: {state.reason}"
    with shop.attempt(dataset, state.slice, attempt=attempt, reason=reason, rewrites=False) as current:
        if dataset.fan_in.fallback is not None:
            try:
                dataset.fan_in.fallback(FanInReport(dataset.name, state.slice.id, found, rule))
            except LakewrightError:
                raise
            except Exception as error:
                raise StepFailed(
                    f"{dataset.place}: the fallback of {dataset.name} failed on slice {state.slice.id}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        unmade = Finding(
            dataset=dataset.name,
            subject=PARTIAL,
            message=f"{dataset.name} {state.slice.id} was not made: {state.reason}.",
            slice_id=state.slice.id,
            cure="It is made when enough of its parts are; what was public stays as it is.",
        )
        return current.finish((), state="skipped", notices=(unmade, *partial_notices(shop, dataset, unmade)))


def completeness_frame(lake: Lake, store: Store, graph: Graph) -> DataFrame:
    """The completeness of every publication as a frame, from the receipts: no table is read."""
    return lake.session().createDataFrame(completeness_rows(store, graph.datasets), _COLUMNS)


def completeness_rows(store: Store, datasets: Mapping[str, Dataset]) -> list[tuple[Any, ...]]:
    """Every publication of the datasets with a fan-in, partial or not, as the rows of a table; the newest last."""
    rows = []
    for dataset in datasets.values():
        if dataset.fan_in is None:
            continue
        for name in (dataset.name, partial_of(dataset)):
            known = [] if name is None else store.receipts.since(name, -1, 2**62, kinds=("data",))
            # What is kept back is told while it is partial; that it was emptied is no news.
            told = [one for one in known if one.counters.is_partial or name == dataset.name]
            rows += [_row(one, dataset.name) for one in told if one.counters.completeness is not None]
    return rows


def _row(receipt: Receipt, name: str) -> tuple[Any, ...]:
    found = receipt.counters.completeness
    assert found is not None
    return (
        name,
        receipt.slice_id,
        found.expected,
        found.present,
        found.share,
        list(found.missing),
        found.is_complete,
        receipt.dataset == name,
        receipt.state,
        receipt.version,
        receipt.committed_at,
        receipt.run_id,
    )
