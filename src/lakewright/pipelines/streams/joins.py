"""Joins of two streams: what they have matched, where each side is, and which one keeps the other waiting.

Guarantee:
    The pairs of a micro-batch are counted by the job that takes it through the join's state, which runs in any case.
    The figures travel in its commit, and from there into its receipt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from lakewright.model.identity import Identity
from lakewright.model.receipts import Counters
from lakewright.model.slices import Slice
from lakewright.model.streams import Progress, batch_of
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.workshop import Attempt, Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["count_pairs", "joined_lately", "progress_of_join", "silent_side", "with_pairs"]

_JOINED = "joined"
_RECENT = 100
"""Commits over which the share of pairs is told: what was long ago says nothing of now."""
_WAITS = "so nothing is released or let go: the join waits for the slower side."


def count_pairs(attempt: Attempt, rows: DataFrame) -> bool:
    """Runs the job that takes a micro-batch through the state of a join, and counts; False where there is no join."""
    from pyspark.sql import functions as F

    given = attempt.shop.graph.streamed_input(attempt.dataset)
    if given is None or given.join is None:
        return False
    pairs = F.count_if(F.expr(given.join.matched)).alias("pairs")
    found = rows.agg(pairs, F.count(F.lit(1)).alias("all")).first()
    assert found is not None
    attempt.told[_JOINED] = {"pairs": int(found["pairs"]), "unmatched": int(found["all"] - found["pairs"])}
    return True


def with_pairs(counters: Counters, identity: Identity) -> Counters:
    """The counters of a micro-batch with what its commit tells of a join."""
    found = cast("dict[str, int] | None", identity.details.get(_JOINED))
    return counters if found is None else replace(counters, joined=dict(found))


def joined_lately(shop: Workshop, dataset: Dataset, generation: int | None) -> dict[str, int]:
    """What the join of a stream has matched in its last micro-batches; empty where it joins nothing."""
    given = shop.graph.streamed_input(dataset)
    if given is None or given.join is None:
        return {}
    found = {"pairs": 0, "unmatched": 0}
    for receipt in shop.store.receipts.history(dataset.name, limit=_RECENT):
        place = batch_of(Slice.parse(receipt.slice_id).number) if receipt.slice_id.startswith("arrival-") else None
        if receipt.kind == "data" and place is not None and place[0] == generation:
            for name in found:
                found[name] += receipt.counters.joined.get(name, 0)
    return found


def progress_of_join(
    progress: Progress, told: Sequence[Mapping[str, Any]], sides: Mapping[str, str], before: Progress | None
) -> Progress:
    """The progress of a stream of two inputs: the place in each of them, and when each last brought rows.

    ``sides`` tells the name of each side by where its table lies.
    """
    heard = dict((before and before.heard) or {})
    places: dict[str, Any] = {}
    for batch in told:
        for source in batch.get("sources") or []:
            name = _side(str(source.get("description")), sides)
            if name is None:
                continue
            offset = source.get("endOffset")
            places[name] = json.loads(offset) if isinstance(offset, str) else offset
            # By its place, not by its rows: of a micro-batch that is cached Spark may not know how many it read.
            if source.get("startOffset") != offset:
                heard[name] = str(batch["timestamp"])
    return replace(progress, offsets=json.dumps(places, sort_keys=True), heard=heard)


def silent_side(shop: Workshop, dataset: Dataset, progress: Progress) -> str:
    """Which side of a join has brought nothing for longer than the other, in words; empty where both go on."""
    given = shop.graph.streamed_input(dataset)
    if given is None or given.join is None or progress.heard is None:
        return ""
    times = {name: datetime.fromisoformat(at) for name, at in progress.heard.items()}
    if not times:
        return ""
    newest = max(times.values())
    for name in given.datasets:
        if name not in times:
            return f"{name} has brought no rows yet, {_WAITS}"
        if newest - times[name] > given.join.patience:
            return f"{name} has brought no rows since {times[name]:%Y-%m-%d %H:%M:%S} UTC, {_WAITS}"
    return ""


def _side(description: str, sides: Mapping[str, str]) -> str | None:
    """The side that a source of Spark's is: ``DeltaSource[file:/lake/silver/visits]``."""
    place = description.rstrip("]/")
    return next((name for path, name in sides.items() if place.endswith(path.removeprefix("file:").rstrip("/"))), None)
