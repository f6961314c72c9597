"""What a run did: a table in which every row is accounted for, the errors, and a closing line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from lakewright.cli.failures import describe
from lakewright.cli.screen import Screen
from lakewright.model.receipts import Counters
from lakewright.patterns.error_management.filter_interceptor import FilterInterceptor
from lakewright.patterns.error_management.windowed_deduplicator import WindowedDeduplicator
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.progress import Outcome, RunSummary

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["closing_line", "report", "summary_as_json"]

_UNKNOWN, _NOT_APPLICABLE = "?", "-"


def report(
    screen: Screen, summary: RunSummary, graph: Graph, *, made: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Show the summary and end with its exit code; ``made`` is what all attempts of an orchestrator's run have made."""
    if screen.as_json:
        screen.show_json(summary_as_json(summary) | ({} if made is None else {"made": made}))
        raise typer.Exit(summary.exit_code)
    if summary.made and not screen.quiet:
        table = made_table(summary.made, graph)
        screen.show(table if screen.fits(table) else made_table(summary.made, graph, why=False))
    told = set()
    for error in summary.errors:
        if str(error) not in told:
            screen.fail(error)
        told.add(str(error))
    screen.say(closing_line(summary), "" if summary.exit_code else "bold")
    raise typer.Exit(summary.exit_code)


def closing_line(summary: RunSummary) -> str:
    """The last word of a run."""
    if summary.state == "ok" and not summary.outcomes:
        count = len(summary.fresh)
        return f"Everything is fresh: {count} dataset{'' if count == 1 else 's'}, nothing to do."
    return summary.closing_line()


def made_table(outcomes: list[Outcome], graph: Graph, *, why: bool = True) -> Table:
    """One line per slice: ``?`` is unknown, ``-`` does not apply; on a narrow terminal without the reasons."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("dataset", "slice", *(["why"] if why else [])):
        table.add_column(name, overflow="fold")
    filters = any(graph[outcome.dataset].has_guard(FilterInterceptor) for outcome in outcomes)
    removed = ["filtered"] if filters else []
    for name in ("read", "kept", "rejected", *removed, "duplicates", "late", "seconds"):
        table.add_column(name, justify="right", no_wrap=name not in ("rejected", "filtered"))
    for outcome in outcomes:
        reason = [outcome.reason] if why else []
        counts = _counts(outcome, graph, filters=filters)
        table.add_row(outcome.dataset, outcome.slice_id, *reason, *counts, f"{outcome.seconds:.1f}")
    return table


def _counts(outcome: Outcome, graph: Graph, *, filters: bool) -> list[str]:
    if outcome.receipt is None:
        return [_NOT_APPLICABLE] * (6 if filters else 5)
    dataset, counters = graph[outcome.dataset], outcome.receipt.counters
    guards = [guard for given in dataset.inputs for guard in given.guards]
    known = counters.read is not None
    rejected = _rejected(counters.rejected) if known else _UNKNOWN
    kept = outcome.receipt.rows if counters.written is None else counters.written
    if dataset.is_source and kept is not None:
        # In bronze every row stays; those set aside are told in the dead letters, and no reader sees them.
        kept -= counters.rejected_rows + (counters.corrected or 0)
    judged = bool(guards) or dataset.is_source
    repeats = dataset.has_guard(WindowedDeduplicator)
    removed = [_filtered(dataset, counters)] if filters else []
    by_event = graph.slicing[outcome.dataset].kind == "event"
    holds = dataset.judged_in_order  # what came behind its watermark
    return [
        _number(counters.read),
        _number(kept),
        rejected if judged else _NOT_APPLICABLE,
        *removed,
        _number(counters.duplicates) if repeats else _NOT_APPLICABLE,
        _number(counters.late if by_event else counters.held) if by_event or holds else _NOT_APPLICABLE,
    ]


def _filtered(dataset: Dataset, counters: Counters) -> str:
    if not dataset.has_guard(FilterInterceptor):
        return _NOT_APPLICABLE
    if counters.filtered is None or counters.filtered.rows is None:
        return _UNKNOWN
    return _rejected(counters.filtered.removed)


def _number(count: int | None) -> str:
    return _UNKNOWN if count is None else f"{count:,}"


def _rejected(rules: Any) -> str:
    """All rejected rows, then how many each rule took.

    >>> _rejected({"has_id": 2, "known_page": 1})
    '3 (has_id 2, known_page 1)'
    """
    by_rule = ", ".join(f"{rule} {count:,}" for rule, count in sorted(rules.items(), key=lambda r: -r[1]) if count)
    total = f"{sum(rules.values()):,}"
    return f"{total} ({by_rule})" if by_rule else total


def summary_as_json(summary: RunSummary) -> dict[str, Any]:
    """The summary with stable keys; ``error`` is the first one, as in every other command."""
    errors = [describe(error).as_json() for error in summary.errors]
    return {
        "run_id": summary.run_id,
        "state": summary.state,
        "exit_code": summary.exit_code,
        "seconds": round(summary.seconds, 3),
        "slices": [_slice_as_json(outcome) for outcome in summary.outcomes],
        "fresh": summary.fresh,
        "skipped": summary.skipped,
        "failed": summary.failed,
        "notes": [asdict(note) for note in summary.notes],
        "message": closing_line(summary),
        "error": errors[0] if errors else None,
        "errors": errors,
    }


def _slice_as_json(outcome: Outcome) -> dict[str, Any]:
    receipt = outcome.receipt
    return {
        "dataset": outcome.dataset,
        "slice": outcome.slice_id,
        "state": outcome.state,
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 3),
        "attempts": outcome.attempts,
        "version": None if receipt is None else receipt.version,
        "rows": None if receipt is None else receipt.rows,
        "counters": None if receipt is None else asdict(receipt.counters),
        "error": None if outcome.error is None else describe(outcome.error).as_json(),
    }
