"""`lakewright dead-letters`: the records that were set aside, what became of them, and closing some for good."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table
from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.model.times import parse_time

if TYPE_CHECKING:
    from lakewright.pipelines.dead_letter_life import State
    from lakewright.pipelines.dead_letters import LetterCount, Selection

__all__ = ["End", "Reasons", "Records", "Slices", "Start", "chosen", "list_letters", "retire", "show"]

Records = Annotated[
    list[str] | None,
    typer.Option("--record", metavar="ID", help="This record, as `list` names it. May be repeated."),
]
Reasons = Annotated[
    list[str] | None,
    typer.Option("--reason", metavar="RULE", help="Those that broke this rule. May be repeated."),
]
Slices = Annotated[
    list[str] | None,
    typer.Option("--slice", metavar="SLICE", help="Those of this slice: 2026-01-05, arrival-7. May be repeated."),
]
Start = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Those set aside by runs from this time on, in UTC.")
]
End = Annotated[str | None, typer.Option("--to", metavar="TIME", help="And before this time.")]
_SHOWN = 60


def chosen(
    dataset: str | None,
    records: list[str] | None,
    reasons: list[str] | None,
    slices: list[str] | None,
    start: str | None,
    end: str | None,
    states: tuple[State, ...] = ("open",),
) -> Selection:
    """The letters that options mean."""
    from lakewright.pipelines.dead_letters import Selection

    return Selection(
        dataset=dataset,
        records=tuple(records or ()),
        reasons=tuple(reasons or ()),
        slices=tuple(slices or ()),
        start=None if start is None else parse_time(start),
        end=None if end is None else parse_time(end),
        states=states,
    )


def list_letters(
    screen: Screen,
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="The dataset that set them aside (default: all).")
    ] = None,
    records: Records = None,
    reasons: Reasons = None,
    slices: Slices = None,
    start: Start = None,
    end: End = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", metavar="STATE", help="open (default), corrected, retired, evidence, or all. May be repeated."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Count open ones from this time on as new.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="So many at most, the newest first.")] = 50,
    fail_above: Annotated[
        int | None,
        typer.Option(
            "--fail-above", metavar="N", min=0, help="End with code 3 where more are open (with --since: new)."
        ),
    ] = None,
) -> None:
    """List dead letters, and how many of each dataset and rule are open, corrected and retired.

    Exit code 3 with --fail-above: for alarms.
    """
    states = _states(state or ["open"])
    with open_project(screen) as project:
        found = project.dead_letters(chosen(dataset, records, reasons, slices, start, end, states))
        newest = (
            [] if found is None else found.orderBy("run_time", "id", ascending=[False, True]).limit(limit).collect()
        )
        letters = [row.asDict(recursive=True) for row in newest]
        counts = [one for one in project.count_dead_letters(since=since) if dataset in (None, one.dataset)]
    alarm = fail_above is not None and sum(one.open if since is None else one.new for one in counts) > fail_above
    if screen.as_json:
        told = {"dead_letters": [_as_json(one) for one in letters], "counts": [_count_as_json(one) for one in counts]}
        screen.show_json({**told, "alarm": alarm, "error": None})
    else:
        _show_list(screen, letters, counts, states)
    if alarm:
        screen.warn(f"More than {fail_above:,} dead letters are {'open' if since is None else 'new'}.")
        raise typer.Exit(3)


def _show_list(
    screen: Screen, letters: list[dict[str, Any]], counts: list[LetterCount], states: tuple[State, ...]
) -> None:
    if not letters:
        screen.say(f"No dead letter is {' or '.join(states)}.")
    else:
        columns = ["record", "dataset", "slice", "state", "rules", "replays", "set aside", "from", "text"]
        screen.show(plain_table(columns, [_cells(one) for one in letters], right=["replays"]))
    for one in counts:
        new = f", {one.new:,} of them new" if one.new else ""
        screen.say(
            f"{one.dataset}, {one.rule}: {one.open:,} open{new}, {one.corrected:,} corrected, {one.retired:,} retired"
            f"{f', {one.evidence:,} as evidence' if one.evidence else ''}"
            f"{', never replayed' if one.replay == 'never' else ''}"
        )


def _cells(one: dict[str, Any]) -> list[str]:
    text = one["error"] or one["raw"] or one["record"] or ""
    return [
        one["id"],
        one["dataset"],
        one["slice"],
        one["state"],
        ", ".join(one["rules"] or ()),
        str(one["attempts"]),
        _moment(one["run_time"]),
        one["file"] or "",
        text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…",
    ]


def show(
    screen: Screen,
    record: Annotated[str, typer.Argument(metavar="ID", help="The record, as `list` names it.")],
) -> None:
    """Show one record that was set aside: its text, where it came from, the rules it broke and what was done since."""
    with open_project(screen) as project:
        every = chosen(None, [record], None, None, None, None, _states(["all"]))
        found = project.dead_letters(every)
        letters = [] if found is None else [row.asDict(recursive=True) for row in found.limit(20).collect()]
        if not letters:
            known = project.dead_letters(chosen(None, None, None, None, None, None, _states(["all"])))
            ids = [] if known is None else [row["id"] for row in known.select("id").limit(1000).collect()]
            raise UnknownNameError("dead letter", record, ids)
    if screen.as_json:
        screen.show_json({"dead_letters": [_as_json(one) for one in letters], "error": None})
        return
    for one in letters:
        told = [[name, _in_words(value)] for name, value in one.items() if value not in (None, [], "")]
        screen.show(plain_table(["what", "value"], [row for row in told if row[0] != "history"]))
        for done in one["history"]:
            note = f" ({done['note']})" if done["note"] else ""
            before = ", ".join(done["rules"] or ())
            screen.say(f"{_moment(done['at'])} {done['action']} by run {done['by_run']}{note}; broken before: {before}")


def retire(
    screen: Screen,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The dataset that set them aside.")],
    because: Annotated[str, typer.Option("--because", metavar="TEXT", help="Why nobody will correct them.")] = "",
    records: Records = None,
    reasons: Reasons = None,
    slices: Slices = None,
    start: Start = None,
    end: End = None,
) -> None:
    """Close open dead letters that nobody will correct, with the reason: kept, and no longer listed as open."""
    with open_project(screen) as project:
        count = project.retire_dead_letters(chosen(dataset, records, reasons, slices, start, end), because=because)
    if screen.as_json:
        screen.show_json({"retired": count, "error": None})
        return
    screen.say(f"Retired {count:,} dead letter{'' if count == 1 else 's'} of {dataset}.")


def _states(words: list[str]) -> tuple[State, ...]:
    from lakewright.pipelines.dead_letter_life import State

    known = get_args(State)
    if "all" in words:
        return known
    for word in words:
        if word not in known:
            raise ConfigurationError(f"'{word}' is no state of a dead letter.", hint=f"Known: {', '.join(known)}, all.")
    return tuple(cast("list[State]", words))


def _moment(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _in_words(value: object) -> str:
    if isinstance(value, datetime):
        return _moment(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _as_json(one: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in one.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def _count_as_json(one: LetterCount) -> dict[str, Any]:
    return {**asdict(one), "oldest": _plain(one.oldest)}
