"""A slice of sessions: the step's visits and what the slice before left pending become two tables, made once.

Guarantee:
    The pending sessions are committed before the completed ones, and a slice reads those of an earlier slice only: so
    whatever the moment of a kill, making the slice again leaves both tables as one undisturbed attempt would.
    Pending sessions that come out as they were are not written again, by which later slices know that they stay as
    they are (see ``session_chain``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakewright.errors import InputError
from lakewright.model.columns import system_columns
from lakewright.model.identity import Identity
from lakewright.model.slices import Slice
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.incremental_sessionizer import build_sessions
from lakewright.patterns.data_value.sessions import Sessions
from lakewright.pipelines.harvest import harvest, unaccounted
from lakewright.pipelines.session_options import pending_of, sessions_of_dataset
from lakewright.pipelines.workshop import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["sessionized"]


@contextmanager
def sessionized(current: Attempt, frames: dict[str, DataFrame]) -> Iterator[dict[str, DataFrame]]:
    """The frames to write: those of the step, or the sessions of its visits."""
    dataset = current.dataset
    if dataset.sessions is None:
        yield frames
        return
    sessions = sessions_of_dataset(current.shop.graph, dataset)
    built = build_sessions(
        frames[dataset.name],
        sessions=sessions,
        until=current.slice.interval.end,
        pending=_pending_before(current, sessions),
    )
    built.every.persist()  # both tables are made of it
    try:
        made = {dataset.name: built.completed}
        if not _stay_pending(current, built.pending):
            made[pending_of(dataset)] = built.pending
        yield made
    except BaseException:
        _account_pending(current)  # the next plan has to know that they were replaced
        raise
    finally:
        built.every.unpersist()


def _pending_before(current: Attempt, sessions: Sessions) -> DataFrame | None:
    """The sessions that the nearest earlier slice left open, pinned; None where there is no earlier slice."""
    shop, name, private = current.shop, current.dataset.name, pending_of(current.dataset)
    if shop.sample == 0:
        return None
    live = shop.store.receipts.live_slices(name)
    earlier = [found for one in live if (found := Slice.parse(one)) < current.slice]
    # As it stands: slices are made in order, and what a failed attempt left of an earlier one was replaced before.
    version = shop.lake.log(private).latest()
    if not earlier or version is None:
        return None
    # By these it is told whether an earlier slice was made again since.
    current.inputs[name] = max(live[one.id].version for one in earlier)
    current.inputs[private] = version
    rows = _pending_of_slice(current, max(earlier), version)
    present = rows.columns
    asked = (*sessions.keys, *(one.name for one in sessions.aggregates))
    if missing := [one for one in asked if one not in present]:
        _refuse_other_declaration(current, max(earlier), missing)
        return None
    return rows


def _pending_of_slice(current: Attempt, slice_: Slice, version: int) -> DataFrame:
    rows = current.shop.lake.read(pending_of(current.dataset), version=version, system_columns=True)
    return rows.where(slice_.predicate()).drop(*system_columns(rows.columns))


def _refuse_other_declaration(current: Attempt, earlier: Slice, missing: list[str]) -> None:
    """Refuse pending sessions that lack what the declaration asks for by now, unless there are none."""
    dataset = current.dataset
    left = current.shop.store.receipts.live(pending_of(dataset), earlier.id)
    if left is None or left.rows != 0:
        raise InputError(
            f"{dataset.place}: {dataset.name}, slice {current.slice.id} goes on with the sessions that {earlier.id} "
            f"left pending, and they have no {', '.join(missing)}: the declaration was changed since. Nothing was "
            "written.",
            hint=f"Build them by the new one: `lakewright backfill --outdated --select {dataset.name}`.",
        )


def _stay_pending(current: Attempt, pending: DataFrame) -> bool:
    """Runs a job, where the slice was made before, that tells whether its pending sessions are what they were.

    They then stay as they are, and are ready.
    """
    shop, private = current.shop, pending_of(current.dataset)
    version = shop.lake.log(private).latest()
    if version is None or shop.store.receipts.live(private, current.slice.id) is None:
        return False
    if not _same_rows(pending, _pending_of_slice(current, current.slice, version)):
        return False
    _account_pending(current)
    shop.store.markers.set(private, current.slice.id, run_id=shop.run.run_id, now=shop.now())
    return True


def _same_rows(one: DataFrame, other: DataFrame) -> bool:
    """Runs a job that compares two frames row by row, in whatever order; NULL is the same as NULL."""
    from pyspark.sql import functions as F

    kinds, others = ({field.name: field.dataType.simpleString() for field in frame.schema} for frame in (one, other))
    if kinds != others:
        return False
    names = [quoted(name) for name in kinds]
    both = one.select(*names, F.lit(1).alias("_lw_side")).union(other.select(*names, F.lit(-1).alias("_lw_side")))
    apart = both.groupBy(*names).agg(F.sum("_lw_side").alias("_lw_side")).where("_lw_side <> 0")
    return not apart.limit(1).collect()


def _account_pending(current: Attempt) -> None:
    """Index what attempts at the slice have committed to the pending sessions, where nobody has yet.

    Of an attempt that failed no receipt tells: its pending sessions would count as those of before.
    """
    shop, private = current.shop, pending_of(current.dataset)
    log = shop.lake.log(private)
    unknown = unaccounted(shop.lake, shop.store, private)
    found = {version: Identity.from_json(log.commit(version).metadata) for version in unknown}
    if mine := [version for version, one in found.items() if one is not None and one.slice_id == current.slice.id]:
        harvest(shop.lake, shop.store, private, mine)
