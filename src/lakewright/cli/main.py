"""The command line: `lakewright COMMAND`. Commands parse, call and show; they decide nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup

from lakewright import __version__
from lakewright.cli.commands import COMMANDS, Debug, Folder, NoColor, Quiet, build, flag
from lakewright.cli.failures import describe
from lakewright.cli.screen import Screen
from lakewright.errors import InterruptedRun, StepFailed, UnknownNameError
from lakewright.masking import MaskedStream

__all__ = ["app", "main"]


class Commands(TyperGroup):
    """A group of commands whose every error ends as `error:`, `hint:` and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run the command that was typed, and end the process with its exit code."""
        typed = list(sys.argv[1:] if args is None else args)
        # Whatever is said goes through here: our own words, a project's prints and logs, warnings, traces.
        with redirect_stderr(cast(TextIO, MaskedStream(sys.stderr))):
            try:
                code = super().main(typed, *rest, **{**options, "standalone_mode": False})
            # The last stop: whatever it is, a user gets a message and a script its exit code.
            except Exception as error:
                code = _failed(error, typed)
            except SystemExit as error:  # ours come back as a code: this one is the project's, and 0 would be a lie
                if isinstance(error.__context__, BrokenPipeError):  # or Click's: who read our words (`| head`) has gone
                    sys.exit(error.code)
                told = f"Something in the project ended the process (sys.exit({error.code!r}))."
                code = _failed(StepFailed(told, hint="Let it raise an error instead."), typed)
        sys.exit(code or 0)

    def invoke(self, ctx: Any) -> Any:
        """Call the command; Ctrl-C is an error like any other."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort):
            raise InterruptedRun("Interrupted.") from None

    def list_commands(self, ctx: Any) -> list[str]:
        """Its own commands, then its groups, in the order of the list."""
        mine = [path.removeprefix(self._prefix) for path in COMMANDS if path.startswith(self._prefix)]
        return [*(name for name in mine if " " not in name), *self.commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load the module of this one command: the others would only cost time."""
        entry = COMMANDS.get(f"{self._prefix}{cmd_name}")
        return super().get_command(ctx, cmd_name) if entry is None else build(cmd_name, entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, or offer the nearest one."""
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            raise UnknownNameError("command", args[0], known)
        return super().resolve_command(ctx, args)

    @property
    def _prefix(self) -> str:
        return "" if self.name in (None, "lakewright") else f"{self.name} "


app = typer.Typer(
    name="lakewright",
    cls=Commands,
    epilog="Example: lakewright init shop && cd shop && lakewright run",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
services = typer.Typer(cls=Commands)
store = typer.Typer(cls=Commands)
spark = typer.Typer(cls=Commands)
stream = typer.Typer(cls=Commands)
triggers = typer.Typer(cls=Commands)
letters = typer.Typer(cls=Commands)
export = typer.Typer(cls=Commands)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"lakewright {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    quiet: Quiet = False,
    no_color: NoColor = False,
    debug: Debug = False,
    folder: Folder = None,
    version: Annotated[
        bool, flag("--version", help="Print the version and end.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Data engineering patterns for PySpark and Delta Lake, and pipelines made of them."""
    context.obj = {"quiet": quiet, "no_color": no_color, "debug": debug, "folder": folder}
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@services.callback()
def look_after_services() -> None:
    """Start and stop PostgreSQL and Kafka for development and tests."""


@store.callback()
def look_after_the_store() -> None:
    """Look after the control store."""


@spark.callback()
def tell_about_spark() -> None:
    """Tell what a Spark cluster needs."""


@stream.callback()
def look_after_streams() -> None:
    """Show how far streams are, let them read again, and move their checkpoints."""


@triggers.callback()
def look_after_events() -> None:
    """Show the events that came and the dead letters among them, and replay those."""


@letters.callback()
def look_after_letters() -> None:
    """Show the records that were set aside, correct or replay them, and close those that nobody will."""


@export.callback()
def hand_over() -> None:
    """Write the project's pipelines for another orchestrator."""


app.add_typer(export, name="export", epilog="Example: lakewright export airflow --to ~/airflow/dags")
app.add_typer(stream, name="stream", epilog="Example: lakewright stream show")
app.add_typer(triggers, name="triggers", epilog="Example: lakewright triggers list")
app.add_typer(letters, name="dead-letters", epilog="Example: lakewright dead-letters list")
app.add_typer(services, name="services", epilog="Example: lakewright services up")
app.add_typer(store, name="store", epilog="Example: lakewright store rebuild")
app.add_typer(spark, name="spark", epilog="Example: lakewright spark packages")


def main() -> None:
    """The console script."""
    # Most commands live for a moment. Looking for garbage while modules load, and once more through all of
    # them when Python ends, would be a quarter of the time of `status`.
    gc.set_threshold(100_000, 50, 50)
    try:
        app()
    finally:
        gc.freeze()


def _failed(error: Exception, typed: Sequence[str]) -> int:
    """Tell about an error. The command may not have been parsed, so the words typed say how."""
    screen = Screen(as_json="--json" in typed, no_color="--no-color" in typed, debug="--debug" in typed)
    if not screen.as_json:
        return screen.fail(error)
    failure = describe(error)
    screen.show_json({"error": failure.as_json()})
    return failure.exit_code
