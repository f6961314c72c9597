"""The windows of a table that is read by a rising column: ranges of it, recorded before a row is read.

Two kinds: *up to the highest value* (``after``, ``upto``), and *intervals* that were over at the run's own time
(``from``, ``to``). Both ends stand in the window and are pushed down to the database; both kinds are half-open. With an
overlap a window also begins earlier (``low``); what lies below ``settled`` may have been taken before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lakewright.connectors.jdbc_questions import (
    FoundColumn,
    ask_bounds,
    ask_intervals,
    ask_lower,
    ask_range,
    is_endless,
)
from lakewright.connectors.postgres_connection import Session, quoted, words
from lakewright.errors import ConfigurationError, InputError
from lakewright.model.arrivals import JsonValue, Window
from lakewright.model.loads import CursorCut
from lakewright.model.protocols import Found, SourceContext

if TYPE_CHECKING:
    from lakewright.connectors.jdbc import Jdbc

__all__ = ["condition", "cut_windows"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES = ("timestamp with time zone", "timestamp without time zone", "date")


@dataclass(frozen=True, slots=True)
class _Cutting:
    session: Session
    source: Jdbc
    columns: dict[str, FoundColumn]
    cut: CursorCut
    what: str

    @property
    def cursor(self) -> FoundColumn:
        return self.columns[self.cut.cursor]

    @property
    def kind(self) -> str:
        return self.cursor.kind

    def found(self, window: dict[str, JsonValue], summary: str) -> Found:
        """With the real bounds of the key, by which the rows are read in parallel."""
        key = self.source.key
        bounds = None if key is None else ask_bounds(self.session, self.source, self.columns[key], condition(window))
        return Found(window={**window, "key": bounds}, summary=summary)

    def begin(self) -> dict[str, JsonValue]:
        return {"of": self.source.shown, "cursor": self.cut.cursor, "type": self.kind}


def cut_windows(
    session: Session,
    source: Jdbc,
    columns: dict[str, FoundColumn],
    cut: CursorCut,
    ctx: SourceContext,
    *,
    what: str,
) -> Sequence[Found]:
    """What is new, cut as asked; ``source.cursor`` is the column."""
    cutting = _Cutting(session, source, columns, cut, what)
    if (cut.every is not None or cut.overlap is not None) and cutting.kind not in _TIMES:
        raise ConfigurationError(
            f"{what}: '{cut.cursor}' is {cutting.kind}, and every and overlap are lengths of time.",
            hint="Leave them out, or load by a date or time column.",
        )
    last = ctx.last_window if (ctx.last_window or {}).get("cursor") == cut.cursor else None
    if last is not None and ("to" in last) != (cut.every is not None):
        raise ConfigurationError(
            f"{what}: so far it was taken {'in intervals' if 'to' in last else 'up to the highest value'}, and the "
            "loader says otherwise now. Nothing was read.",
            hint="Go on as before, or declare the source under a new name.",
        )
    return _newer(cutting, last) if cut.every is None else _intervals(cutting, last, cut.every, ctx)


def _newer(cutting: _Cutting, last: Window | None) -> Sequence[Found]:
    after = None if last is None else str(last["upto"])
    if after is not None and is_endless(after):
        raise InputError(
            f"{cutting.what}: {cutting.cut.cursor} was taken up to {after}, above which there is nothing: no later row "
            "would ever be read. Nothing was read.",
            hint="Correct the rows that have it, and declare the source under a new name: it begins with all rows.",
        )
    upto = ask_range(cutting.session, cutting.source, after, cutting.cursor, what=cutting.what)
    low = after
    if after is not None and cutting.cut.overlap is not None:
        low = ask_lower(cutting.session, after, cutting.kind, cutting.cut.overlap)
    if upto is None:
        return ()
    window: dict[str, JsonValue] = {**cutting.begin(), "after": low, "upto": upto}
    if low != after:
        window |= {"low": low, "settled": after}
    cursor = cutting.cut.cursor
    summary = f"{cursor} up to {upto}" if after is None else f"{cursor} after {after}, up to {upto}"
    return (cutting.found(window, summary),)


def _intervals(cutting: _Cutting, last: Window | None, every: timedelta, ctx: SourceContext) -> Sequence[Found]:
    if cutting.kind == "date" and every % timedelta(days=1):
        raise ConfigurationError(f"{cutting.what}: '{cutting.cut.cursor}' is a date, so every is a number of days.")
    assert ctx.run_time is not None
    end = ctx.run_time - (ctx.run_time - _EPOCH) % every
    begun = None if last is None else datetime.fromisoformat(str(last["to"]))
    starts = ask_intervals(cutting.session, cutting.source, cutting.cursor, every, begun, end, what=cutting.what)
    found: list[Found] = []
    for start, rows in starts:
        window: dict[str, JsonValue] = {
            **cutting.begin(),
            "from": start.isoformat(),
            "to": (start + every).isoformat(),
        }
        if begun is not None and cutting.cut.overlap is not None and not found:
            # Only behind what an earlier run took can there be rows that it did not see.
            low = begun - cutting.cut.overlap
            window |= {"from": begun.isoformat(), "low": low.isoformat(), "settled": begun.isoformat()}
        summary = f"{cutting.cut.cursor} from {start:%Y-%m-%d %H:%M} to {start + every:%Y-%m-%d %H:%M}, {rows:,} rows"
        found.append(cutting.found(window, summary))
    return found


def condition(window: Window) -> str:
    """The window's range as a condition that the database evaluates."""
    if "cursor" not in window:
        return ""
    cursor, kind = quoted(str(window["cursor"])), str(window["type"])
    if "to" in window:
        low, high = (_moment(str(window[name]), kind) for name in ("low" if "low" in window else "from", "to"))
        return f" WHERE {cursor} >= {low} AND {cursor} < {high}"
    parts = [f"{cursor} <= {words(str(window['upto']))}::{kind}"]
    if window["after"] is not None:
        parts.append(f"{cursor} > {words(str(window['after']))}::{kind}")
    return " WHERE " + " AND ".join(parts)


def _moment(text: str, kind: str) -> str:
    """A moment in UTC as the column has it."""
    moment = f"{words(text)}::timestamptz"
    return moment if kind == _TIMES[0] else f"({moment} AT TIME ZONE 'UTC')::{kind}"
