"""`lakewright triggers`: the events that came, the dead letters among them, and starting those after all."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from lakewright.cli.opening import open_existing_store, open_project
from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table
from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.model.times import utc_now
from lakewright.model.triggers import EventState

if TYPE_CHECKING:
    from lakewright.model.triggers import EventRecord

__all__ = ["list_events", "replay", "retire", "show"]

Trigger = Annotated[
    str | None, typer.Option("--trigger", metavar="NAME", help="The trigger, where several know the event.")
]
EventIds = Annotated[list[str], typer.Argument(metavar="EVENT", help="The ids of dead letters.")]


def list_events(
    screen: Screen,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Events in this state (default: dead), or all. May be repeated."),
    ] = None,
    trigger: Annotated[str | None, typer.Option("--trigger", metavar="NAME", help="Of this trigger alone.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="So many at most, the newest first.")] = 50,
) -> None:
    """List dead letters, or events in other states, and how many events each trigger got and what became of them.

    Reads the store alone.
    """
    wanted = _states(state or ["dead"])
    with open_existing_store(screen) as store:
        found = [] if store is None else store.events.latest(states=wanted, trigger=trigger, limit=limit)
        counts = {} if store is None else store.events.counts()
    if screen.as_json:
        screen.show_json({"events": [_as_json(one) for one in found], "counts": counts, "error": None})
        return
    if not found:
        screen.say(f"No event is {' or '.join(wanted)}." if wanted else "No event has come yet.")
    columns = ["event", "trigger", "state", "received", "attempts", "error"]
    rows = [
        [
            one.event_id,
            one.trigger,
            one.state,
            f"{one.received_at:%Y-%m-%d %H:%M:%S}",
            str(one.attempts),
            one.error or "",
        ]
        for one in found
    ]
    if rows:
        screen.show(plain_table(columns, rows, right=["attempts"]))
    for name, numbers in sorted(counts.items()):
        screen.say(f"{name}: {', '.join(f'{number} {word}' for word, number in numbers.items())}")


def show(
    screen: Screen,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The id of the event.")],
    trigger: Trigger = None,
) -> None:
    """Show one event: its envelope, its runs, and what went wrong. Reads the store alone."""
    with open_existing_store(screen) as store:
        if store is None:
            raise UnknownNameError("event", event, ())
        found = store.events.find(event, trigger=trigger)
    if screen.as_json:
        screen.show_json({**_as_json(found), "error": None, "problem": found.error})
        return
    rows = [["state", found.state], ["trigger", found.trigger], ["attempts", str(found.attempts)]]
    rows += [["error", found.error]] if found.error else []
    rows += [[f"run of {name}", run] for name, run in found.runs.items()]
    rows += [[key, _in_words(value)] for key, value in found.envelope.items() if key != "trigger"]
    screen.show(plain_table(["what", "value"], rows))


def _in_words(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def replay(screen: Screen, events: EventIds, trigger: Trigger = None) -> None:
    """Start the runs of dead letters after all; each run is marked as a replay and loads the files of its event.

    Only the pipelines whose run has not succeeded are started.
    """
    from lakewright.cli.run_progress import follow

    started: dict[str, dict[str, str]] = {}
    with open_project(screen) as project, follow(screen) as listener:
        for event in events:
            started[event] = project.replay(event, trigger=trigger, listener=listener)
    if screen.as_json:
        screen.show_json({"replayed": started, "error": None})
        return
    for event, runs in started.items():
        screen.say(f"Replayed {event}: {', '.join(f'{name} by run {run}' for name, run in runs.items()) or 'no run'}")


def retire(screen: Screen, events: EventIds, trigger: Trigger = None) -> None:
    """Give dead letters up for good: they stay in the store, and are no longer listed as dead."""
    with open_existing_store(screen) as store:
        if store is None:
            raise UnknownNameError("event", events[0], ())
        records = [store.events.find(event, trigger=trigger) for event in events]
        for record in records:
            store.events.retire(record, now=utc_now())
    if screen.as_json:
        screen.show_json({"retired": events, "error": None})
        return
    screen.say(f"Retired {', '.join(events)}.")


def _states(words: list[str]) -> tuple[EventState, ...]:
    known = get_args(EventState)
    if "all" in words:
        return ()
    for word in words:
        if word not in known:
            raise ConfigurationError(f"'{word}' is no state of an event.", hint=f"Known: {', '.join(known)}, all.")
    return tuple(cast("list[EventState]", words))


def _as_json(one: EventRecord) -> dict[str, Any]:
    told = asdict(one)
    return {
        **{key: told[key] for key in ("event_id", "trigger", "state", "attempts", "runs", "envelope")},
        "problem": one.error,
        "received_at": one.received_at.isoformat(),
        "updated_at": one.updated_at.isoformat(),
    }
