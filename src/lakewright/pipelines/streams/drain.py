"""Delivering what waits in a skew buffer while nothing new comes: batches of buffered rows alone.

Guarantee:
    Such a batch is like a micro-batch, with a place of its own in the generation. It runs only while no query of the
    stream does, and after Spark has done its last micro-batch, so that places follow the order of delivery: what is
    delivered of a Kafka partition is always its beginning, and a rewind can rely on it. One that was cut short is
    repeated before anything else.
"""

from __future__ import annotations

from lakewright.failpoints import failpoint
from lakewright.pipelines.streams.batches import BatchAttempt, deliver
from lakewright.pipelines.streams.skew import is_delivered, last_delivered, last_kept, within_quota
from lakewright.pipelines.workshop import Attempt

__all__ = ["drain", "go_on_with_drain"]


def drain(current: Attempt, generation: int) -> bool:
    """Runs the jobs of one batch of the rows that wait; whether there were any.

    To be called when Spark has ended its last micro-batch; where the log tells that it has not, nothing is done.
    """
    lake, name = current.shop.lake, current.dataset.name
    kept = last_kept(lake, name, generation)
    reached = None if kept is None else last_delivered(lake, name, generation)
    if kept is None or not kept.rows or reached is None or reached < kept.place:
        return False
    _deliver(current, generation, place=reached + 1, drains=kept.drains + 1)
    return True


def go_on_with_drain(current: Attempt, generation: int) -> bool:
    """Runs the jobs of a batch that was cut short after its surplus was kept, if there is one; whether there was."""
    lake, name = current.shop.lake, current.dataset.name
    kept = last_kept(lake, name, generation)
    if kept is None or not kept.drain or is_delivered(lake, name, generation, kept.place):
        return False
    _deliver(current, generation, place=kept.place, drains=kept.drains)
    return True


def _deliver(current: Attempt, generation: int, *, place: int, drains: int) -> None:
    attempt = BatchAttempt.of(current, generation, place, drains=drains, drain=True)
    with within_quota(attempt, None) as rows:
        deliver(attempt, rows)
    failpoint("drained")
