"""`lakewright services`: PostgreSQL, Kafka and Debezium for development and tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakewright.cli.commands import Yes, flag
from lakewright.cli.opening import settings_of
from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table
from lakewright.errors import ConfigurationError, InterruptedRun

if TYPE_CHECKING:
    from lakewright.runtime.services import ServiceStatus

__all__ = ["down", "status", "up"]

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SERVICE",
        help="postgres or kafka; both where none is named. By name only: debezium (change data capture; starts kafka "
        "too), connect (a Spark Connect server), spark-master, spark-worker-1, spark-worker-2.",
    ),
]
ShowSecrets = Annotated[bool, flag("--show-secrets", help="Show the password instead of ***.")]


def up(
    screen: Screen,
    names: Names = None,
    postgres_port: Annotated[
        int | None,
        typer.Option("--postgres-port", metavar="PORT", min=0, max=65535, help="Fix its port; 0: any that is free."),
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option("--kafka-port", metavar="PORT", min=0, max=65535, help="Fix its port; 0: any that is free."),
    ] = None,
    debezium_port: Annotated[
        int | None,
        typer.Option("--debezium-port", metavar="PORT", min=0, max=65535, help="Fix its port; 0: any that is free."),
    ] = None,
) -> None:
    """Start PostgreSQL and Kafka unless they run, and wait until they answer.

    They live on when the command ends, and keep their data, port and password. Exit codes: 0 they answer,
    1 one could not be started (the end of its log is shown), 2 something is missing or does not fit.
    """
    from lakewright.runtime.services import NAMES
    from lakewright.runtime.services import up as start

    began = time.monotonic()
    asked = {"postgres": postgres_port, "kafka": kafka_port, "debezium": debezium_port}
    ports = {name: port for name, port in asked.items() if port is not None}
    found = start(_folder(screen), names or NAMES, ports=ports, say=screen.say)
    if screen.as_json:
        screen.show_json(_as_json(found, show_secrets=False))
        return
    titles = " and ".join(one.title for one in found)
    seconds = time.monotonic() - began
    screen.say(f"{titles} {'answer' if len(found) > 1 else 'answers'}. Done in {seconds:.1f} s.", "bold")


def status(screen: Screen, show_secrets: ShowSecrets = False) -> None:
    """Show how the services stand, by asking them: state, version, address, data.

    States: running, not ready (a process that does not answer), died (killed; `up` starts it again on its data),
    stopped, absent (never started here). The exit code is 0 in all of them.
    """
    from lakewright.runtime.services import status as look

    found = look(_folder(screen))
    if screen.as_json:
        screen.show_json(_as_json(found, show_secrets=show_secrets))
        return
    columns = ["service", "state", "version", "address", "data", "note"]
    screen.show(plain_table(columns, [_cells(one, show_secrets) for one in found]))
    if all(one.state == "absent" for one in found):
        screen.say("Nothing was started here yet: lakewright services up")


def down(
    screen: Screen,
    names: Names = None,
    delete: Annotated[bool, flag("--delete", help="Delete their data, logs and passwords too.")] = False,
    yes: Yes = False,
) -> None:
    """Stop the services cleanly. Their data stays unless --delete is given."""
    from lakewright.runtime.services import down as stop
    from lakewright.runtime.services import names_here

    chosen = names or names_here(_folder(screen))
    if delete and not yes:
        if not screen.can_ask:
            raise ConfigurationError(
                "--delete takes the data of the services away, and nobody is here to ask. Nothing was stopped.",
                hint="--yes does it without asking.",
            )
        if not screen.confirm(f"Stop {' and '.join(chosen)}, and delete all their data?"):
            screen.say("Nothing was changed.")
            raise typer.Exit(InterruptedRun.exit_code)
    told: list[str] = []
    found = stop(_folder(screen), chosen, delete=delete, say=told.append)
    if screen.as_json:
        screen.show_json(_as_json(found, show_secrets=False))
        return
    for line in told or ["Nothing was running."]:
        screen.say(line)


def _folder(screen: Screen) -> Path:
    return settings_of(screen).target.state / "services"


def _cells(one: ServiceStatus, show_secrets: bool) -> list[str]:
    address = "-" if one.address is None else one.address.shown
    if show_secrets and (password := _password(one)) is not None:
        address = address.replace(":***@", f":{password}@")
    return [one.name, one.state, one.version or "-", address, str(one.data), one.note or ""]


def _password(one: ServiceStatus) -> str | None:
    file = None if one.address is None else one.address.password_file
    return file.read_text(encoding="utf-8") if file is not None and file.exists() else None


def _as_json(found: list[ServiceStatus], *, show_secrets: bool) -> dict[str, Any]:
    return {"services": [_one_as_json(one, show_secrets) for one in found], "error": None}


def _one_as_json(one: ServiceStatus, show_secrets: bool) -> dict[str, Any]:
    """The URL names the password's file, never the password; ``password`` is null unless it was asked for."""
    address = one.address
    return {
        "name": one.name,
        "state": one.state,
        "version": one.version,
        "port": one.port,
        "pid": one.pid,
        "url": None if address is None else address.url,
        "jdbc_url": None if address is None else address.jdbc_url,
        "user": None if address is None else address.user,
        "password_file": None if address is None else address.password_file,
        "password": _password(one) if show_secrets else None,
        "data": one.data,
        "log": one.log,
        "note": one.note,
    }
