"""`lakewright patterns`: the state of every pattern of the catalogue."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table

__all__ = ["patterns"]


def patterns(
    screen: Screen,
    state: Annotated[
        Literal["finished", "started", "planned"] | None, typer.Option("--state", help="Only those in this state.")
    ] = None,
    chapter: Annotated[
        str | None, typer.Option("--chapter", metavar="TEXT", help="Only chapters with this text, or this number.")
    ] = None,
) -> None:
    """List all patterns: number, name, chapter, state, and where to import them from."""
    from lakewright.catalogue import PATTERNS

    found = [
        one
        for one in PATTERNS
        if state in (None, one.state)
        and (chapter is None or chapter == str(one.chapter) or chapter.lower() in one.chapter_title.lower())
    ]
    if screen.as_json:
        screen.show_json({"patterns": [asdict(one) for one in found], "error": None})
        return
    rows = [
        [
            str(one.number),
            one.name,
            one.chapter_title,
            one.state,
            one.module if one.state != "planned" else "",
        ]
        for one in found
    ]
    screen.show(plain_table(["no", "pattern", "chapter", "state", "module"], rows, right=["no"]))
    counts = Counter(one.state for one in found)
    told = ", ".join(f"{counts[word]} {word}" for word in ("finished", "started", "planned"))
    screen.say(f"{len(found)} patterns: {told}.")
