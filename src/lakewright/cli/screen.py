"""Screen: where a command's words go. Data to standard output, everything else to standard error.

Guarantee:
    Nothing that is shown holds the value of a secret that this process has used. The rows of a table alone are shown
    as they are (``exact``): they are the user's data, and a masked value would be a wrong one.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lakewright.cli.failures import describe
from lakewright.masking import mask, masked_copy

if TYPE_CHECKING:  # Rich's consoles and tables are loaded by the command that shows something
    from rich.console import Console, RenderableType

__all__ = ["Screen"]

_UNBOUNDED = 10_000
"""The width where nobody looks: a file or another program gets each row on one line."""


class Screen:
    """The two streams of one command, with what its common options say about them."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        quiet: bool = False,
        no_color: bool = False,
        debug: bool = False,
        folder: Path = Path(),
        target: str | None = None,
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.debug = debug
        self.folder = folder
        self.target = target
        self._plain = no_color or bool(os.environ.get("NO_COLOR"))
        # Kept from the start: a project's own prints are sent to standard error later.
        self._stdout, self._stderr = sys.stdout, sys.stderr

    @cached_property
    def out(self) -> Console:
        return self._console(self._stdout)

    @cached_property
    def err(self) -> Console:
        return self._console(self._stderr)

    @property
    def is_live(self) -> bool:
        """Whether somebody watches, so that lines may change in place."""
        return not self.quiet and self._stderr.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def out_is_terminal(self) -> bool:
        return self._stdout.isatty()

    @property
    def can_ask(self) -> bool:
        return sys.stdin.isatty() and self._stderr.isatty() and not self.as_json

    def show(self, *what: RenderableType, exact: bool = False) -> None:
        """Data, for people. In a file no line ends with the blanks that fill a table's last column."""
        with self.out.capture() as captured:
            for one in what:
                self.out.print(one, soft_wrap=isinstance(one, str))
        text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
        self.write(text if exact else mask(text))

    def fits(self, table: RenderableType) -> bool:
        """Whether a table has room on standard output without breaking its cells."""
        unbounded = self.out.options.update(width=_UNBOUNDED)
        return self.out.measure(table, options=unbounded).maximum <= self.out.width

    def write(self, text: str) -> None:
        """Data, exactly as it is."""
        self._stdout.write(text)
        self._stdout.flush()

    def show_json(self, what: dict[str, Any], *, exact: bool = False) -> None:
        """The one object of ``--json``."""
        shown = what if exact else masked_copy(what)
        self.write(json.dumps(shown, indent=2, default=lambda one: mask(str(one)), ensure_ascii=False) + "\n")

    def say(self, text: str, style: str = "") -> None:
        """Talk: what is going on, what to type next. Silent with ``--quiet``."""
        if not self.quiet:
            self.err.print(text, style=style, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.err.print(f"warning: {text}", style="yellow", soft_wrap=True)

    def fail(self, error: BaseException) -> int:
        """Show an error on standard error; returns its exit code."""
        failure = describe(error)
        for line, style in zip(failure.lines(), ("bold red", ""), strict=False):
            self.err.print(line, style=style, soft_wrap=True)
        if self.debug:
            import traceback

            self._stderr.write("".join(traceback.format_exception(error)))
        return failure.exit_code

    def confirm(self, question: str) -> bool:
        """Ask on standard error; only yes is yes."""
        self.err.print(f"{question} [y/N] ", end="", soft_wrap=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def marked_up(self) -> Console:
        """Standard output for a text with Rich's own markup."""
        return self._console(self._stdout, markup=True)

    def _console(self, stream: TextIO, *, markup: bool = False) -> Console:
        from rich.console import Console

        return Console(
            file=stream,
            no_color=self._plain,
            color_system=None if self._plain or not stream.isatty() else "auto",
            markup=markup,
            highlight=False,
            emoji=False,
            width=None if stream.isatty() else _UNBOUNDED,
        )
