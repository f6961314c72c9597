"""What Dead-Letter guards declare beyond judging rows: when people are told, and how long letters are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lakewright.model.findings import Finding
from lakewright.model.receipts import Receipt
from lakewright.model.times import parse_duration
from lakewright.patterns.error_management.dead_letter import DeadLetter
from lakewright.pipelines.dead_letters import drop_old_history
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.maintain import TableOutcome

if TYPE_CHECKING:
    from lakewright.pipelines.workshop import Workshop

__all__ = ["keep_letters_short", "keeps_letters_short", "letter_warnings"]


def letter_warnings(dataset: Dataset, receipt: Receipt) -> tuple[Finding, ...]:
    """What is said where more rows were set aside than ``warn_above`` and ``warn_above_rows`` allow.

    Of a micro-batch the log does not tell how many rows were read: those set aside and those written count.
    """
    rejected = receipt.counters.rejected_rows
    read = receipt.counters.read
    read = rejected + (receipt.counters.written or 0) if read is None else read
    rules = ", ".join(f"{rule} {count:,}" for rule, count in receipt.counters.rejected.items() if count)
    found = []
    for guard in _guards(dataset):
        share = rejected / read if read else 0.0
        above_share = guard.warn_above is not None and share > guard.warn_above
        if above_share or (guard.warn_above_rows is not None and rejected > guard.warn_above_rows):
            limit = f"{guard.warn_above:.1%}" if above_share else f"{guard.warn_above_rows:,} rows"
            found.append(
                Finding(
                    dataset=dataset.name,
                    subject="dead letters",
                    message=f"{rejected:,} of {read:,} rows ({share:.1%}) of slice {receipt.slice_id} are dead letters "
                    f"({rules}), more than {limit}.",
                    slice_id=receipt.slice_id,
                    cure=f"`lakewright dead-letters list {dataset.name}` shows them.",
                )
            )
    return tuple(found)


def keeps_letters_short(graph: Graph, names: Sequence[str]) -> bool:
    """Whether one of the datasets says how long its dead letters are kept."""
    return any(guard.keep is not None for name in names for guard in _guards(graph[name]))


def keep_letters_short(shop: Workshop, names: Sequence[str], *, dry_run: bool) -> list[TableOutcome]:
    """Runs jobs that retire and forget letters that are older than their dataset keeps them."""
    found = []
    for dataset in (shop.graph[name] for name in names):
        kept = [parse_duration(guard.keep) for guard in _guards(dataset) if guard.keep is not None]
        if not kept:
            continue
        retired, forgotten = drop_old_history(shop, dataset.name, max(kept), dry_run=dry_run)
        done = f"{retired:,} open for longer than kept: retired; {forgotten:,} corrected ones forgotten"
        state = "done" if retired or forgotten else "nothing"
        found.append(TableOutcome(f"dead letters of {dataset.name}", state, done))  # type: ignore[arg-type]
    return found


def _guards(dataset: Dataset) -> Iterator[DeadLetter]:
    for given in dataset.inputs:
        yield from (guard for guard in given.guards if isinstance(guard, DeadLetter))
