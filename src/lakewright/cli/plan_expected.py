"""How long a plan would take, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lakewright.cli.tables import plain_table
from lakewright.pipelines.durations import LAST, Expected, Forecast

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["expected_as_json", "expected_lines", "expected_of_dataset", "expected_table", "in_words", "slow_lines"]

_MOST_NAMES = 6


def expected_lines(forecast: Forecast) -> Iterator[str]:
    """The forecast in a line or two; none where there is nothing to do."""
    if not any(one.slices for one in forecast.datasets.values()):
        return
    if forecast.seconds is None:
        yield "Expected duration: unknown, no past run yet."
        return
    chain = f"the longest chain takes {in_words(forecast.chain_seconds)}: {_joined(forecast.chain, ' → ')}"
    yield f"Expected duration: about {in_words(forecast.seconds)}, {forecast.parallel} side by side; {chain}."
    notes = []
    if forecast.unknown:
        notes.append(f"No past run yet, and not counted: {_joined(forecast.unknown, ', ')}.")
    if forecast.uncertain:
        many = len(forecast.uncertain) > _MOST_NAMES
        later = f"{len(forecast.uncertain)} datasets" if many else ", ".join(forecast.uncertain)
        notes.append(f"More may follow when what is new was read, counted as one slice where none is known: {later}.")
    if notes:
        yield " ".join(notes)


def slow_lines(forecast: Forecast) -> Iterator[str]:
    """Which branch each fan-in waits for."""
    for one in forecast.slow_branches:
        if one.next is None:
            rest = f"({in_words(one.seconds)}); the median of the last parts is {in_words(one.next_seconds)}."
        else:
            rest = f"(done after {in_words(one.seconds)}); {one.next} is after {in_words(one.next_seconds)}."
        yield f"{one.dataset} waits longest for {one.slowest} {rest}"


def expected_table(forecast: Forecast) -> Table | None:
    """One row for each dataset that has something to do."""
    rows = [
        [
            f"{name} ★" if name in forecast.chain else name,
            str(one.slices) if one.certain else f"{one.slices}?",
            "" if one.past is None else in_words(one.past.seconds),
            "no past run yet" if one.seconds is None else in_words(one.seconds),
            "" if one.past is None else f"{in_words(one.past.slowest_seconds)} ({one.past.slowest_slice})",
        ]
        for name, one in forecast.datasets.items()
        if one.slices
    ]
    columns = ["dataset", "slices", "one slice", "expected", f"slowest of the last {LAST}"]
    return plain_table(columns, rows, right=["slices", "one slice", "expected"]) if rows else None


def expected_as_json(forecast: Forecast) -> dict[str, Any]:
    """The keys of a plan that tell how long it takes."""
    return {
        "expected_seconds": _rounded(forecast.seconds),
        "critical_path": {
            "datasets": list(forecast.chain),
            "seconds": _rounded(forecast.chain_seconds) if forecast.chain else None,
        },
        "slowest_branches": [
            {key: _rounded(value) if isinstance(value, float) else value for key, value in asdict(one).items()}
            for one in forecast.slow_branches
        ],
        "parallel": forecast.parallel,
        "without_past": list(forecast.unknown),
    }


def expected_of_dataset(one: Expected) -> dict[str, Any]:
    """The keys of a dataset that tell how long it takes."""
    past = one.past
    return {
        "expected_seconds": _rounded(one.seconds),
        "expected_slices": one.slices,
        "expected_certain": one.certain,
        "past": None
        if past is None
        else {
            "steps": past.steps,
            "median_seconds": _rounded(past.seconds),
            "slowest_seconds": _rounded(past.slowest_seconds),
            "slowest_slice": past.slowest_slice,
        },
    }


def in_words(seconds: float) -> str:
    """A duration for people.

    >>> in_words(0.44), in_words(12.3), in_words(80), in_words(7500)
    ('0.4 s', '12 s', '1 min 20 s', '2 h 5 min')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def _joined(names: Sequence[str], between: str) -> str:
    if len(names) <= _MOST_NAMES:
        return between.join(names)
    half = _MOST_NAMES // 2
    return between.join((*names[:half], f"({len(names) - 2 * half} more)", *names[-half:]))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
