"""A stream whose source has deleted records before they were read, and that was told to go on: after them, and aloud.

Guarantee:
    The stream goes on behind the gap by a new generation, which is recorded together with a finding that names what is
    lost; each record that is held comes once. How far the old generation has read is told by its checkpoint and its
    rows, not by its record, which may be older: so it is fenced first, and one that is fenced never goes on, whoever
    died in between. What was read and is gone since is no gap, noted or not: Delta skips the repeat of a micro-batch
    that is committed, and nothing is read for it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from lakewright.errors import InputError
from lakewright.failpoints import failpoint
from lakewright.model.findings import Finding
from lakewright.model.streams import Generation
from lakewright.pipelines.streams.checkpoints import checkpoint_state
from lakewright.pipelines.streams.drain import drain, go_on_with_drain
from lakewright.pipelines.streams.harvest import harvest_stream
from lakewright.pipelines.streams.moving import checkpoint_in_force
from lakewright.pipelines.streams.rewind import fence, fence_of
from lakewright.pipelines.streams.skew import is_delivered, last_kept, standing_of
from lakewright.pipelines.take import source_context
from lakewright.pipelines.workshop import Attempt

__all__ = ["go_on_past_gap"]


def go_on_past_gap(current: Attempt, generation: Generation) -> Generation:
    """The generation that reads: another one, where records of the source are gone and the stream is to go on.

    Runs a job only where something may be gone.
    """
    shop, dataset = current.shop, current.dataset
    if not dataset.is_source or generation.start is None:
        return generation
    source: Any = dataset.source
    context = source_context(shop, dataset)
    reached = None if generation.progress is None else generation.progress.offsets
    goes_on = getattr(source, "if_lost", "fail") == "go on"
    fenced = fence_of(shop, dataset, generation.number)
    if fenced is None:
        is_known = reached is not None or generation.start.get("partitions")
        if is_known and not source.lost(context, generation.start, reached):
            return generation
        # What is recorded may be older than what was read, or lost with the store: the checkpoint and the rows tell.
        reached = _reached(current, generation, reached)
        begin = source.past_lost(context, _rows(current), generation.start, reached)
        if not begin.get("lost"):
            return replace(generation, start=begin, progress=None)
        if not goes_on:
            source.refuse_lost(context, begin)
        current.origin = source.origin(generation.start)
        _empty_buffer(current, generation.number)
        fence(current, generation.number, reached=reached)
        failpoint("gap_fenced")
        harvest_stream(current)
    else:
        # By then only: what a paused process notes in the checkpoint after the fence was not committed.
        told = fenced.details.get("reached")
        reached = told if isinstance(told, str) else reached
    begin = source.past_lost(context, _rows(current), generation.start, reached)
    if begin.get("lost") and not goes_on:
        source.refuse_lost(context, begin)
    lost = source.lost_words(begin)
    with current.recording() as conn:
        following = shop.store.streams.begin(
            dataset.name, start=begin, run_id=shop.run.run_id, now=shop.now(), conn=conn
        )
        if lost:
            gap = Finding(
                dataset.name,
                "lost records",
                f"{dataset.name}: the source deleted records that were never read ({lost}). The stream goes on after "
                "them.",
                cure="They are lost unless their producer sends them again. Keep them longer at the source than the "
                "stream may stand still.",
            )
            shop.store.findings.add([gap], run_id=shop.run.run_id, now=shop.now(), conn=conn)
    failpoint("gap_recorded")
    return following


def _reached(current: Attempt, generation: Generation, recorded: str | None) -> str | None:
    """How far a stream has read, as its checkpoint tells: with the last micro-batch if that is committed.

    Else with the one before, which was done when that began. What is recorded may be as old as the last run's end.
    """
    lake, name = current.shop.lake, current.dataset.name
    state = checkpoint_state(current.shop, current.dataset, checkpoint_in_force(lake, name, generation.number))
    if state is None:
        return recorded
    place = state.batch + standing_of(lake, current.dataset, generation.number).drains
    is_done = not state.is_pending or is_delivered(lake, name, generation.number, place)
    offsets = state.offsets if is_done else state.before
    return json.dumps(offsets[0]) if offsets and offsets[0] else recorded


def _rows(current: Attempt) -> Any:
    lake, name = current.shop.lake, current.dataset.name
    return lake.read(name, system_columns=True) if lake.log(name).exists() else None


def _empty_buffer(current: Attempt, generation: int) -> None:
    """Runs the batches that deliver what waits in a skew buffer: a new generation begins with an empty one."""
    lake, name = current.shop.lake, current.dataset.name
    go_on_with_drain(current, generation)
    while drain(current, generation):
        pass
    harvest_stream(current)
    kept = last_kept(lake, name, generation)
    if kept is not None and (kept.rows or not is_delivered(lake, name, generation, kept.place)):
        raise InputError(
            f"{name}: the source deleted records that were never read, and a micro-batch was cut short whose surplus "
            "waits in the skew buffer: it cannot be repeated. Nothing was read.",
            hint=f"`lakewright stream rewind {name} --all --lost keep` reads again what is held as a whole.",
        )
