"""Every step and slice of a plan with the reason why it runs or not, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from lakewright.pipelines.edges import cut_in_words, marks_of
from lakewright.pipelines.explain import Why
from lakewright.pipelines.planning import Plan

__all__ = ["explained", "explained_as_json"]


def explained(plan: Plan, reasons: Mapping[str, Sequence[Why]]) -> Text:
    """A heading for each dataset, and its lines below it."""
    return Text("\n").join(_lines(plan, reasons))


def _lines(plan: Plan, reasons: Mapping[str, Sequence[Why]]) -> Iterator[Text]:
    yield Text(f"as of {plan.run_time:%Y-%m-%d %H:%M} UTC", style="dim")
    for one in plan.datasets:
        dataset, told = one.dataset, reasons[one.dataset.name]
        heading = Text(dataset.name, style="bold")
        about = ", ".join((dataset.layer, cut_in_words(one.slicing), f"pipeline {dataset.pipeline}"))
        heading.append(f"  {about}", style="not bold")
        heading.append("".join(f"  [{mark}]" for mark in marks_of(dataset)), style="not bold yellow")
        yield heading
        width = max((len(line.what) for line in told), default=0)
        for line in told:
            yield _line(line, width)


def _line(line: Why, width: int) -> Text:
    quiet = line.status in ("fresh", "nothing yet", "elsewhere")
    style = "green" if line.runs else "cyan" if line.runs is None else "dim" if quiet else "yellow"
    shown = Text("  ").append({True: "runs", False: "not ", None: "?   "}[line.runs], style=style)
    shown.append(f"  {line.what:<{width}}  {line.status}: {line.reason}")
    if line.policy:
        shown.append(f"; by {line.policy}")
    if line.inputs:
        shown.append(f"  (versions: {line.inputs})", style="dim")
    return shown


def explained_as_json(lines: Sequence[Why]) -> list[dict[str, Any]]:
    """The lines of one dataset with stable keys."""
    return [{key: None if value == "" else value for key, value in asdict(one).items()} for one in lines]
