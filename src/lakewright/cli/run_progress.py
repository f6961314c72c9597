"""A run while it goes: lines that change in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from threading import Lock
from typing import TYPE_CHECKING, TextIO, cast

from lakewright.cli.screen import Screen
from lakewright.errors import first_words
from lakewright.masking import MaskedStream
from lakewright.pipelines.progress import DatasetDone, Event, Listener, Note, Outcome, SliceDone, SliceStarted

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["follow", "slice_line"]

_COLOURS = {"ok": "green", "recovered": "green", "failed": "bold red", "refused": "bold red"}


@contextmanager
def follow(screen: Screen) -> Iterator[Listener]:
    """A listener that tells on standard error how a run goes."""
    if screen.quiet:
        yield lambda event: _tell(screen, event) if _is_warning(event) else None
    elif screen.is_live:
        with _live(screen) as listener:
            yield listener
    else:
        yield lambda event: _tell(screen, event)


def slice_line(outcome: Outcome) -> str:
    """How one slice ended, in a line."""
    line = f"{outcome.dataset} {outcome.slice_id} {outcome.state} {outcome.seconds:.1f} s".replace("  ", " ")
    if outcome.receipt is not None and outcome.receipt.rows is not None:
        line += f", {outcome.receipt.rows:,} rows"
    if outcome.attempts > 1:
        line += f", {outcome.attempts} attempts"
    return line if outcome.error is None else f"{line}: {first_words(outcome.error, most=None)}"


def _tell(screen: Screen, event: Event) -> None:
    if isinstance(event, SliceDone):
        screen.say(slice_line(event.outcome), _COLOURS.get(event.outcome.state, ""))
    elif isinstance(event, DatasetDone) and event.state == "skipped":
        screen.say(f"{event.dataset} skipped: {event.detail}", "yellow")
    elif isinstance(event, Note):
        screen.warn(event.message) if _is_warning(event) else screen.say(f"note: {event.message}")


def _is_warning(event: Event) -> bool:
    return isinstance(event, Note) and event.severity == "warning"


@contextmanager
def _live(screen: Screen) -> Iterator[Listener]:
    """Finished slices scroll up; those under way stay below, each with its time."""
    from rich.live import Live

    running = _Running()
    with (
        Live(console=screen.err, get_renderable=running.lines, refresh_per_second=5, transient=True),
        # It stands in for both streams and breaks what is printed there into lines: too late to find a long secret.
        redirect_stdout(cast(TextIO, MaskedStream(sys.stdout))),
        redirect_stderr(cast(TextIO, MaskedStream(sys.stderr))),
    ):

        def listen(event: Event) -> None:
            running.note(event)
            _tell(screen, event)

        yield listen


class _Running:
    """The slices under way; workers tell from several threads while the display reads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._slices: dict[tuple[str, str], float] = {}
        self._lock = Lock()

    def note(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, SliceStarted):
                self._slices[event.dataset, event.slice_id] = self._clock()
            elif isinstance(event, SliceDone):
                self._slices.pop((event.outcome.dataset, event.outcome.slice_id), None)

    def lines(self) -> RenderableType:
        from rich.text import Text

        now = self._clock()
        with self._lock:
            shown = [f"  {name} {slice_id} ... {now - at:.0f} s" for (name, slice_id), at in self._slices.items()]
        return Text("\n".join(shown or [f"  looking for work ... {now - self._began:.0f} s"]), style="dim")
