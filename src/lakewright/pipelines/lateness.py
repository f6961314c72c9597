"""Watermarks of batches: what an arrival or a micro-batch is judged by, kept in the commits that moved it.

Guarantee:
    A batch is judged by the watermark that the batch before it left, which its commit tells, and its receipt, also when
    Delta has deleted the commit's file. A repeat of the batch, whenever and by whomever, finds the same one: its own
    commit does not count, nor those of batches that were taken back by a rewind or a rollback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast

from lakewright.errors import LimitExceeded
from lakewright.lake.log import own_commits
from lakewright.model.findings import Finding
from lakewright.model.identity import Identity
from lakewright.model.protocols import GuardContext, LatenessGuard
from lakewright.model.receipts import Counters, Receipt
from lakewright.model.slices import Slice
from lakewright.model.streams import batch_of
from lakewright.model.watermarks import Judgement, Watermark
from lakewright.patterns.error_management.dead_letter import DeadLetter
from lakewright.patterns.error_management.filter_interceptor import FilterInterceptor
from lakewright.patterns.error_management.windowed_deduplicator import NO_KEY, WindowedDeduplicator
from lakewright.pipelines.definitions import Dataset, Input
from lakewright.pipelines.workshop import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["judged_by_watermark", "late_warnings", "refuse_too_late", "with_lateness"]

_LATENESS = "lateness"


def judged_by_watermark(
    attempt: Attempt, given: Input, guard: LatenessGuard, frame: DataFrame, context: GuardContext
) -> GuardContext:
    """Runs the job that measures a batch; what it found travels in the attempt's commits, with the next watermark."""
    before = _before(attempt)
    judged_at = None if context.streamed else _arrived_at(attempt, given)
    context = replace(context, lateness=Judgement(before, judged_at))
    measured = guard.measure(frame, context)
    at = measured.judged_at
    after = before if at is None else guard.tracking.advance(before, measured.seen, at)
    attempt.told[_LATENESS] = {
        "before": None if before.at is None else before.at.isoformat(),
        "after": after.to_json(),
        "read": measured.rows,
        "late": dict(measured.late),
        "of": dict(measured.of),
        "unusable": measured.unusable,
        **_taken_before(given),
    }
    counted = Judgement(before, judged_at, late=measured.late_rows, unusable=measured.unusable)
    return replace(context, lateness=counted)


def _taken_before(given: Input) -> dict[str, Any]:
    """What guards before the detector may take of a batch, so that it measures what they leave."""
    earlier = list(takewhile(lambda one: not isinstance(one, LatenessGuard), given.guards))
    rules = [rule for one in earlier if isinstance(one, DeadLetter) for rule in one.rules]
    rules += [NO_KEY for one in earlier if isinstance(one, WindowedDeduplicator)]
    filters = [name for one in earlier if isinstance(one, FilterInterceptor) for name in one.filters]
    return {"rules_before": rules, "filters_before": filters}


def refuse_too_late(attempt: Attempt) -> None:
    """Stop a batch of which more rows are late than its detector allows; what it captured stays as evidence."""
    found = cast("dict[str, Any] | None", attempt.told.get(_LATENESS))
    if found is None or not found["read"]:
        return
    late, read = sum(found["late"].values()), found["read"]
    for given in attempt.dataset.inputs:
        for guard in given.guards:
            limit = getattr(guard, "stop_above", None) if isinstance(guard, LatenessGuard) else None
            if limit is None or late / read <= limit:
                continue
            by_source = ", ".join(f"{name or 'rows'} {rows:,}" for name, rows in sorted(found["late"].items()))
            raise LimitExceeded(
                f"{attempt.dataset.name}, {attempt.slice.id}: {late:,} of {read:,} rows ({late / read:.1%}) are late, "
                f"more than the limit of {limit:.1%} ({by_source}). Nothing was published.",
                dataset=attempt.dataset.name,
                slice_id=attempt.slice.id,
                share=late / read,
                rows=late,
            )


def with_lateness(counters: Counters, identity: Identity) -> Counters:
    """The counters of a batch with what its commit tells of late rows."""
    found = cast("dict[str, Any] | None", identity.details.get(_LATENESS))
    if found is None:
        return counters
    read = counters.read
    if read is None:
        rules = found.get("rules_before", ())
        read = found["read"] + sum(rows for rule, rows in counters.rejected.items() if rule in rules)
        read += _filtered_before(counters, found.get("filters_before"))
    late = {source: rows for source, rows in found["late"].items() if rows}
    held = sum(late.values())
    repeats = None if counters.duplicates is None else counters.duplicates - held  # what was left over until now
    return replace(
        counters, read=read, duplicates=repeats, held=held, held_by_source=late, read_by_source=dict(found["of"])
    )


def _filtered_before(counters: Counters, filters: Any) -> int:
    if counters.filtered is None or not filters:
        return 0
    if filters is True or counters.filtered.rows is None:  # a commit of an earlier release; only a sample is known
        return counters.filtered_rows
    return sum(counters.filtered.removed.get(name, 0) for name in filters)


def late_warnings(dataset: Dataset, receipt: Receipt) -> tuple[Finding, ...]:
    """What is said of each source of which more rows were late than ``warn_above`` allows.

    By source, because one that is late as a whole hides in the share of all: so it is where the watermark follows the
    fastest.
    """
    counters, found = receipt.counters, []
    for guard in (one for given in dataset.inputs for one in given.guards if isinstance(one, LatenessGuard)):
        limit: float | None = getattr(guard, "warn_above", None)
        if limit is None:
            continue
        for source, read in sorted(counters.read_by_source.items()):
            late = counters.held_by_source.get(source, 0)
            if read and late / read > limit:
                found.append(
                    Finding(
                        dataset=dataset.name,
                        subject="late rows",
                        message=f"{late:,} of {read:,} rows ({late / read:.1%}) of {source or 'the input'} in slice "
                        f"{receipt.slice_id} are late, more than {limit:.1%}.",
                        slice_id=receipt.slice_id,
                        cure=_cure(dataset, guard),
                    )
                )
    return tuple(found)


def _cure(dataset: Dataset, guard: LatenessGuard) -> str:
    captured = getattr(guard, "late", "capture") == "capture"
    shown = f"""`lakewright sql "SELECT * FROM late_rows WHERE dataset = '{dataset.name}'"` shows them. """
    return (
        (shown if captured else "")
        + "A source that is slow as a whole needs a longer lateness, or a watermark "
        + ('that waits for it: across="min", over_sources="min" or "each".')
    )


def _arrived_at(attempt: Attempt, given: Input) -> datetime:
    """When an arrival was recorded: the same in each attempt."""
    store = attempt.shop.store
    arrival = store.arrivals.get(given.dataset, attempt.slice.number)
    if arrival is not None:
        return arrival.recorded_at
    receipt = store.receipts.live(given.dataset, attempt.slice.id)
    return attempt.shop.run.time if receipt is None else receipt.committed_at


def _before(attempt: Attempt) -> Watermark:
    """The watermark that the batch before this one left; none where there was no batch, or it told none."""
    found = _left_by_micro_batch(attempt) if attempt.dataset.is_stream else _left_by_arrival(attempt)
    return Watermark.from_json(found) if found else Watermark()


def _left_by_arrival(attempt: Attempt) -> Mapping[str, Any]:
    live = attempt.shop.store.receipts.live_slices(attempt.dataset.name)
    earlier = [found for slice_id in live if (found := Slice.parse(slice_id)) < attempt.slice]
    return _kept(attempt, max(earlier)) if earlier else {}


def _kept(attempt: Attempt, slice_: Slice) -> Mapping[str, Any]:
    """What the receipt of a batch tells, whatever became of its commit's file."""
    receipt = attempt.shop.store.receipts.live(attempt.dataset.name, slice_.id)
    return {} if receipt is None else receipt.counters.watermark


def _left_by_micro_batch(attempt: Attempt) -> Mapping[str, Any]:
    """What the last micro-batch before this one whose rows still count left.

    From the end of the log, since the newest have no receipt yet; where it was cleaned of all, the receipts tell.
    """
    below, upto = attempt.slice.number, None
    for commit, identity in own_commits(attempt.shop.lake.delta_log(attempt.dataset.name)):
        if upto is not None and commit.version > upto:
            continue
        if identity.kind == "restore":
            upto = int(str(identity.details["restored_to"]))
        elif identity.kind == "rewind":
            below = min(below, Slice.parse(identity.slice_id).number)
        elif identity.kind == "data" and "batch" in identity.details and Slice.parse(identity.slice_id).number < below:
            return identity.watermark
    live = attempt.shop.store.receipts.live_slices(attempt.dataset.name)
    counted = [Slice.parse(name) for name, one in live.items() if upto is None or one.version <= upto]
    earlier = [one for one in counted if one.kind == "arrival" and batch_of(one.number) and one.number < below]
    return _kept(attempt, max(earlier)) if earlier else {}
