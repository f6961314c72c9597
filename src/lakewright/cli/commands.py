"""All commands, and how one is built: with the options that all share, and an example at the end of its help."""

from __future__ import annotations

import inspect
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from lakewright.cli.screen import Screen

__all__ = [
    "COMMANDS",
    "At",
    "Debug",
    "DryRun",
    "Entry",
    "Folder",
    "NoColor",
    "Parallel",
    "Param",
    "Quiet",
    "Select",
    "Wait",
    "Yes",
    "build",
    "flag",
]

_PANEL = "Common options"


def flag(*names: str, help: str, rich_help_panel: str | None = None, **more: Any) -> Any:
    """An option without a value; Typer would show ``<bool>`` beside it."""
    return typer.Option(*names, help=help, metavar="", rich_help_panel=rich_help_panel, **more)


AsJson = Annotated[bool, flag("--json", help="Print one JSON object, for errors too.", rich_help_panel=_PANEL)]
Quiet = Annotated[bool, flag("--quiet", "-q", help="Only data, warnings and errors.", rich_help_panel=_PANEL)]
NoColor = Annotated[bool, flag("--no-color", help="No colour (NO_COLOR=1 does the same).", rich_help_panel=_PANEL)]
Debug = Annotated[bool, flag("--debug", help="Show the stack trace of an error.", rich_help_panel=_PANEL)]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--project", help="The project's folder, or one inside it (default: this one).", rich_help_panel=_PANEL
    ),
]
Target = Annotated[
    str | None,
    typer.Option("--target", "-t", help="The target of lakewright.toml to work on.", rich_help_panel=_PANEL),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        "-s",
        metavar="PATTERN",
        help="Datasets: name, +name (and what it reads), name+ (and what reads it), tag:x, layer:silver. "
        "May be repeated.",
    ),
]
"""For commands that work on some of the datasets."""
At = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="The run's clock, in UTC: 2026-01-05T07:00 (default: now).")
]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long for another run to end.")]
Parallel = Annotated[int | None, typer.Option("--parallel", metavar="N", min=1, help="Slices made side by side.")]
DryRun = Annotated[bool, flag("--dry-run", help="Show what would be made, and change nothing.")]
Param = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="A parameter that the pipeline declares: output_type=delta. May be repeated.",
    ),
]
Yes = Annotated[bool, flag("--yes", "-y", help="Do not ask.")]

_COMMON: dict[str, Any] = {"as_json": AsJson, "quiet": Quiet, "no_color": NoColor, "debug": Debug}
_PROJECT: dict[str, Any] = {"folder": Folder, "target": Target}


class Entry(NamedTuple):
    """Where a command's function is, and how its help ends."""

    module: str
    function: str
    example: str
    in_project: bool = True


COMMANDS = {
    "init": Entry("init", "init", "lakewright init shop", in_project=False),
    "demo": Entry("demo", "demo", "lakewright demo --visits 100000", in_project=False),
    "doctor": Entry("doctor", "doctor", "lakewright doctor --deep"),
    "plan": Entry("plan", "plan", "lakewright plan --select +daily_revenue --graph"),
    "run": Entry("run", "run", "lakewright run --select clean_orders+ --at 2026-01-08"),
    "retry": Entry("run", "retry", "lakewright retry"),
    "backfill": Entry("backfill", "backfill", "lakewright backfill --from 2026-01-05 --to 2026-01-12 --dry-run"),
    "listen": Entry("listen", "listen", "lakewright listen devices --once"),
    "up": Entry("up", "up", "lakewright up --workers 2"),
    "schedules": Entry("schedules", "schedules", "lakewright schedules --json"),
    "consumers": Entry("consumers", "consumers", "lakewright consumers clean_orders --json"),
    "pause": Entry("pause", "pause", 'lakewright pause orders --because "the shop moves house"'),
    "resume": Entry("pause", "resume", "lakewright resume orders"),
    "work": Entry("work", "work", "lakewright work orders --time 2026-01-06T00:00"),
    "export airflow": Entry("export", "airflow", "lakewright export airflow --to ~/airflow/dags --target prod"),
    "stream show": Entry("stream", "show", "lakewright stream show raw_visits --json"),
    "stream rewind": Entry("stream", "rewind", 'lakewright stream rewind raw_visits --by "1 hour" --dry-run'),
    "stream move": Entry("stream", "move", "lakewright stream move raw_visits --to /mnt/shared/checkpoints"),
    "status": Entry("status", "status", "lakewright status --json"),
    "ready": Entry("ready", "ready", "lakewright ready clean_orders --slice 2026-01-05 --wait 2h"),
    "filters": Entry("filters", "filters", "lakewright filters clean_orders --limit 5"),
    "show": Entry("reading", "show", "lakewright show clean_orders --limit 5"),
    "sql": Entry("reading", "sql", 'lakewright sql "SELECT day, revenue FROM daily_revenue ORDER BY day"'),
    "rollback": Entry("rollback", "rollback", "lakewright rollback clean_orders --to 3 --dry-run"),
    "repartition": Entry("repartition", "repartition", "lakewright repartition clean_orders --dry-run"),
    "maintain": Entry("maintain", "maintain", "lakewright maintain raw_visits --dry-run"),
    "cancel": Entry("leases", "cancel", "lakewright cancel"),
    "unlock": Entry("leases", "unlock", "lakewright unlock pipeline:orders"),
    "adopt": Entry("adopt", "adopt", "lakewright adopt /data/lake/customers --name customers"),
    "patterns": Entry("patterns", "patterns", "lakewright patterns --state finished", in_project=False),
    "triggers list": Entry("triggers", "list_events", "lakewright triggers list --state all"),
    "triggers show": Entry("triggers", "show", "lakewright triggers show release-17"),
    "triggers replay": Entry("triggers", "replay", "lakewright triggers replay release-17"),
    "triggers retire": Entry("triggers", "retire", "lakewright triggers retire release-17"),
    "dead-letters list": Entry("dead_letters", "list_letters", "lakewright dead-letters list clean_orders --json"),
    "dead-letters show": Entry("dead_letters", "show", "lakewright dead-letters show 9f86d081884c7d65"),
    "dead-letters replay": Entry(
        "dead_letter_replay", "replay", "lakewright dead-letters replay orders --reason has_id --dry-run"
    ),
    "dead-letters retire": Entry(
        "dead_letters", "retire", "lakewright dead-letters retire orders --reason has_id --because spam"
    ),
    "services up": Entry("services", "up", "lakewright services up postgres --postgres-port 5433"),
    "services status": Entry("services", "status", "lakewright services status --show-secrets"),
    "services down": Entry("services", "down", "lakewright services down --delete"),
    "store rebuild": Entry("store_commands", "rebuild", "lakewright store rebuild"),
    "store upgrade": Entry("store_commands", "upgrade", "lakewright store upgrade"),
    "spark packages": Entry("spark_commands", "packages", "lakewright spark packages --target prod"),
    "spark archive": Entry("spark_commands", "archive", "lakewright spark archive"),
}
"""All commands, in the order in which `--help` lists them: begin, work, look, repair, look after."""


def build(name: str, entry: Entry) -> Any:
    """The command for Typer: the function's first parameter gets the ``Screen``, the others are its options."""
    function = getattr(import_module(f"lakewright.cli.{entry.module}"), entry.function)
    common = {**_COMMON, **(_PROJECT if entry.in_project else {})}
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    @wraps(function)
    def command(context: typer.Context, **values: Any) -> None:
        given = {key: values.pop(key) for key in common}
        function(_screen(context, given), **values)

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter("context", typer.Context), *map(_keyword, own), *_shared(common)]
    )
    alone = typer.Typer(add_completion=False)
    alone.command(name, epilog=f"Example: {entry.example}")(command)
    return typer.main.get_command(alone)


def _screen(context: typer.Context, given: dict[str, Any]) -> Screen:
    """The common options, whether they were typed before the command or after it."""
    before: dict[str, Any] = context.obj or {}
    merged = {key: value or before.get(key) or value for key, value in given.items()}
    merged["folder"] = merged.get("folder") or before.get("folder") or Path()
    return Screen(**merged)


def _shared(common: dict[str, Any]) -> list[inspect.Parameter]:
    return [
        _parameter(key, annotation, default=None if key in _PROJECT else False) for key, annotation in common.items()
    ]


def _keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
