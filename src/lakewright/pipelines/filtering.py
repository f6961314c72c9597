"""Counting what the filters of a step remove: before the write, so that the figures travel in its commit.

A receipt has them from the commit, whoever reads it: the run itself, recovery, the harvest of a stream, a rebuilt
store. The history of a dataset's filters is therefore its receipts, one by one or gathered by windows of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, cast

from lakewright.errors import LimitExceeded, StepFailed
from lakewright.failpoints import failpoint
from lakewright.model.arrivals import JsonValue
from lakewright.model.findings import Finding
from lakewright.model.protocols import EACH, FIRST, READ, FilterTally
from lakewright.model.receipts import Counters, Filtered, Receipt
from lakewright.patterns.error_management.filter_blame import find_failing_row
from lakewright.patterns.error_management.filter_interceptor import FilterInterceptor
from lakewright.pipelines.definitions import Dataset, Input
from lakewright.pipelines.private_columns import private_columns, words_of
from lakewright.pipelines.workshop import Attempt
from lakewright.store import Store

if TYPE_CHECKING:
    from lakewright.pipelines.inputs import InputFrame

__all__ = ["FilterWindow", "count_filters", "filter_history", "filter_warnings"]


def count_filters(current: Attempt, inputs: Sequence[InputFrame]) -> None:
    """Runs a narrow job per guard that filters; then its limits decide. What was found travels in each commit."""
    accounted = next((one for one in inputs if one.given.guards), None)
    others: dict[str, Filtered] = {}
    for one in inputs:
        filtered = _count_input(current, one)
        if filtered is None:
            continue
        if one is accounted:
            current.told["filtered"] = cast("JsonValue", asdict(filtered))
        else:
            others[one.given.dataset] = filtered
    if others:
        told = {name: asdict(filtered) for name, filtered in others.items()}
        current.told["filtered_by_input"] = cast("JsonValue", told)


def _count_input(current: Attempt, one: InputFrame) -> Filtered | None:
    """What all filters of an input have removed; None where nobody counts."""
    found: Filtered | None = None
    for tally in one.tallies:
        if tally.totals is None:
            continue
        filtered = _count(current, tally)
        _stop_above(current, tally, filtered)
        found = filtered if found is None else found.then(filtered)
        failpoint("filters_counted")
    return found


def _count(current: Attempt, tally: FilterTally) -> Filtered:
    assert tally.totals is not None
    try:
        row = tally.totals.first()
    except Exception as error:
        raise _explained(current, tally, error) from error
    assert row is not None
    found = {name: int(value) for name, value in row.asDict().items()}
    return Filtered(
        judged=found.pop(READ),
        removed={name.removeprefix(FIRST): rows for name, rows in found.items() if name.startswith(FIRST)},
        breaks={name.removeprefix(EACH): rows for name, rows in found.items() if name.startswith(EACH)},
        sample=tally.sample,
    )


def _explained(current: Attempt, tally: FilterTally, error: Exception) -> Exception:
    private = private_columns(current.shop, current.dataset, tally.judged.columns)
    blame = find_failing_row(tally.judged, tally.conditions, private=private)
    if blame is None:
        return error
    return StepFailed(
        f"{current.dataset.place}: {current.dataset.name}, slice {current.slice.id}: the filter '{blame.filter}' "
        f"cannot be computed for the row {blame.row}: {words_of(error, private)} Nothing was written.",
        hint="Use a function that gives NULL instead (try_cast, try_divide), or a Dead-Letter rule before the filter.",
    )


def _stop_above(current: Attempt, tally: FilterTally, filtered: Filtered) -> None:
    for name, share in filtered.above(tally.stop_above).items():
        rows = filtered.removed[name]
        raise LimitExceeded(
            f"{current.dataset.name}, slice {current.slice.id}: the filter '{name}' removed {rows:,} of "
            f"{filtered.judged:,} rows ({share:.1%}), more than the limit of {tally.stop_above[name]:.1%}. "
            "Nothing was published.",
            dataset=current.dataset.name,
            slice_id=current.slice.id,
            share=share,
            rows=rows,
        )


def filter_warnings(store: Store, dataset: Dataset, receipt: Receipt) -> tuple[Finding, ...]:
    """What is said of filters that remove more than ``warn_above``, and what they removed before."""
    accounted = next((given for given in dataset.inputs if given.guards), None)
    told: list[Finding] = []
    for given in dataset.inputs:
        of = None if given is accounted else given.dataset
        filtered, limits = _of_input(receipt.counters, of), _limits(given)
        above = {} if filtered is None else filtered.above(limits)
        if filtered is None or not above:
            continue
        before = _before(store, receipt, of)
        told += [
            Finding(
                dataset=dataset.name,
                subject="filter",
                message=f"The filter '{name}' removed {share:.1%} of {filtered.judged:,} rows"
                f"{'' if of is None else f' of {of}'} in slice {receipt.slice_id}"
                f"{_compared(before, name)}, more than {limits[name]:.1%}.",
                slice_id=receipt.slice_id,
                cure=f"`lakewright filters {dataset.name}` shows when it began: was it the data, or the release?",
            )
            for name, share in above.items()
        ]
    return tuple(told)


def _limits(given: Input) -> dict[str, float]:
    limits: dict[str, float] = {}
    for guard in given.guards:
        limits |= guard.limits("warn_above") if isinstance(guard, FilterInterceptor) else {}
    return limits


def _of_input(counters: Counters, name: str | None) -> Filtered | None:
    """What was removed of an input; None stands for the one that the account is about."""
    return counters.filtered if name is None else counters.filtered_by_input.get(name)


def _before(store: Store, receipt: Receipt, name: str | None) -> Filtered | None:
    for earlier in store.receipts.history(receipt.dataset, limit=20):
        if earlier.version < receipt.version and (found := _of_input(earlier.counters, name)) is not None:
            return found
    return None


def _compared(before: Filtered | None, name: str) -> str:
    share = None if before is None else before.shares().get(name)
    return "" if share is None else f" ({share:.1%} before)"


@dataclass(frozen=True, slots=True)
class FilterWindow:
    """What the filters removed in one slice, or in one window of time ``[start, end)`` of a stream."""

    slice_id: str | None
    start: datetime | None
    end: datetime | None
    job_version: str | None
    run_id: str | None
    filtered: Filtered = field(default_factory=lambda: Filtered(0))
    by_input: Mapping[str, Filtered] = field(default_factory=dict)
    """The same of the inputs that the account is not about."""


def filter_history(
    store: Store, dataset: str, *, window: timedelta | None = None, limit: int = 50
) -> list[FilterWindow]:
    """The live receipts with figures, newest first; gathered by the time of their commits where a window is given.

    As many as are asked for, each window whole: a stream may have more receipts in one than are read at a time.
    """
    live = (
        one
        for one in store.receipts.counting(dataset)
        if one.counters.filtered is not None or one.counters.filtered_by_input
    )
    if window is None:
        newest = islice(live, limit)
        return [FilterWindow(one.slice_id, None, None, one.code, one.run_id, *_of(one.counters)) for one in newest]
    gathered: dict[datetime, FilterWindow] = {}
    for one in live:
        start = _start_of(one.committed_at, window)
        if start not in gathered and len(gathered) == limit:
            break
        known = gathered.get(start, FilterWindow(None, start, start + window, one.code, one.run_id))
        more, by_input = _of(one.counters)
        others = {name: known.by_input.get(name, Filtered(0)).plus(found) for name, found in by_input.items()}
        gathered[start] = replace(known, filtered=known.filtered.plus(more), by_input={**known.by_input, **others})
    return sorted(gathered.values(), key=lambda found: found.start or _EPOCH, reverse=True)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _start_of(moment: datetime, window: timedelta) -> datetime:
    return _EPOCH + (moment - _EPOCH) // window * window


def _of(counters: Counters) -> tuple[Filtered, Mapping[str, Filtered]]:
    return counters.filtered or Filtered(0), counters.filtered_by_input
