"""Sessions by a state of our own: for rules that a gap alone does not make, and for sessions that still go on.

Guarantee:
    Visits wait until the watermark has passed them, and only then, in the order of their times, go through the same
    rules as in batch. So the order in which they came does not matter, and what is told of a session that goes on has
    the start, and the id, that it will keep.
Consequences:
    - The state of an entity is one open session, with lists of bounded length, and its visits of the last ``lateness``.
    - Python is called for every entity of a micro-batch; where a gap is all that is asked for, session windows are
      cheaper.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.session_arrow import Rules
from lakewright.patterns.data_value.session_fold import OpenSession, Visit, fold
from lakewright.patterns.data_value.session_frames import AT, END, ENDS, EVENTS, EXPIRY, GAP, START, SessionLayout
from lakewright.patterns.data_value.session_windows import TIME, seconds_of
from lakewright.patterns.data_value.sessions import NAME

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

__all__ = ["FINAL", "EntityState", "StateRules", "sessions_by_state"]

FINAL = "_lw_final"
_VISIT = "_lw_visit"
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_BROKEN = ("float", "double")
_NESTED = ("struct", "array", "binary")


@dataclass(frozen=True, slots=True)
class StateRules:
    """What the state needs to know, as plain values: it travels to the executors."""

    rules: Rules
    kinds: tuple[str, ...]
    """The types of the carried columns."""
    by_watermark: bool
    partial: bool


@dataclass(slots=True)
class EntityState:
    """What is remembered of one entity."""

    going_on: OpenSession | None = None
    waiting: list[Visit] = field(default_factory=list)
    """Visits that the watermark has not passed: an earlier one may still come."""
    deadline: int | None = None
    """When the session ends, where the moment at which visits came decides."""

    @classmethod
    def parse(cls, text: str) -> EntityState:
        going_on, waiting, deadline = json.loads(text)
        opened = None if going_on is None else OpenSession.from_json(going_on)
        return cls(opened, [Visit(*one) for one in waiting], deadline)

    def text(self) -> str:
        going_on = None if self.going_on is None else self.going_on.to_json()
        return json.dumps([going_on, self.waiting, self.deadline])

    def advance(self, new: list[Visit], watermark: int, told: StateRules) -> list[tuple[OpenSession, bool]]:
        """Take visits in and go on to the watermark; the sessions to tell of, each with whether it is final."""
        self.waiting = sorted([*self.waiting, *new], key=lambda visit: _order(visit, told.kinds))
        passed = [visit for visit in self.waiting if visit.at <= watermark]
        self.waiting = self.waiting[len(passed) :]
        if told.by_watermark:
            over = self._by_watermark(passed, new, watermark, told.rules)
        else:
            over, self.going_on = fold(self.going_on, passed, told.rules)
            if self.going_on is not None and self.going_on.expiry <= watermark:
                over, self.going_on = [*over, self.going_on], None
        found = [(one, True) for one in over]
        if told.partial and passed and self.going_on is not None:
            found.append((self.going_on, False))
        return found

    def _by_watermark(self, passed: list[Visit], new: list[Visit], watermark: int, rules: Rules) -> list[OpenSession]:
        if new:
            # In the first micro-batch there is no watermark yet.
            self.deadline = (watermark or max(visit.at for visit in new)) + rules.gap
        ends = not new and self.deadline is not None and self.deadline < watermark
        for visit in [*passed, *self.waiting] if ends else passed:
            if self.going_on is None:
                self.going_on = OpenSession.begin(visit, rules)
            else:
                self.going_on.add(visit, rules)
        if not ends or self.going_on is None:
            return []
        over, self.going_on, self.waiting, self.deadline = self.going_on, None, [], None
        return [over]

    def next_look(self, told: StateRules) -> int | None:
        """The time that the watermark has to pass before anything changes; None where nothing is remembered."""
        times = [visit.at for visit in self.waiting[:1]]
        if told.by_watermark:
            times = [] if self.deadline is None else [self.deadline, *(times if told.partial else [])]
        elif self.going_on is not None:
            times.append(self.going_on.expiry)
        return min(times, default=None)


def sessions_by_state(visits: DataFrame, layout: SessionLayout) -> DataFrame:
    """The sessions of a stream of visits, their columns as text, each with whether it is final; lazy."""
    from pyspark.sql import functions as F

    sessions = layout.sessions
    if nested := [(name, kind) for name, kind in layout.carried if kind.startswith(_NESTED)]:
        raise ConfigurationError(
            f"{NAME}: a stream with these rules keeps visits as text, and '{nested[0][0]}' is {nested[0][1]}.",
            hint=f'Make it text before: F.to_json("{nested[0][0]}").',
        )
    keys = [quoted(key) for key in sessions.keys]
    values = ", ".join(f"CAST(_lw_c{place} AS STRING)" for place in range(len(layout.carried)))
    rows = visits.selectExpr(*layout.visit_columns()).selectExpr(
        *keys,
        f"timestamp_micros({AT}) AS {TIME}",
        f"to_json(named_struct('at', {AT}, 'gap', {GAP if sessions.gap_by else sessions.gap_micros}, "
        f"'ends', {ENDS if sessions.ends else 'false'}, 'values', CAST(array({values}) AS ARRAY<STRING>)), "
        f"map('ignoreNullFields', 'false')) AS {_VISIT}",
    )
    told = StateRules(
        layout.rules, tuple(kind for _, kind in layout.carried), sessions.expiry == "watermark", sessions.partial
    )
    held = [
        f"{quoted(one.name)} {'array<string>' if one.kind == 'collect' else 'string'}" for one in sessions.aggregates
    ]
    named = [f"{key} {kind}" for key, kind in zip(keys, layout.key_types, strict=True)]
    numbers = [f"{name} bigint" for name in (START, END, EXPIRY, EVENTS)]
    names = [*sessions.keys, START, END, EXPIRY, EVENTS, *[one.name for one in sessions.aggregates], FINAL]
    made = (
        rows.withWatermark(TIME, seconds_of(sessions.lateness))
        .groupBy(*keys)
        .applyInPandasWithState(
            _on_entity(told, names),
            ", ".join([*named, *numbers, *held, f"{FINAL} boolean"]),
            "state string",
            "append",
            "EventTimeTimeout",
        )
    )
    cast = [
        F.col(quoted(one.name)).cast(layout.held_type(place)).alias(one.name)
        for place, one in enumerate(sessions.aggregates)
    ]
    return made.select(*keys, START, END, EXPIRY, EVENTS, *cast, FINAL)


def _on_entity(told: StateRules, names: list[str]) -> Callable[..., Iterator[pd.DataFrame]]:
    def on_entity(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        import pandas as pd

        held = EntityState.parse(state.get[0]) if state.exists else EntityState()
        new = [_visit(text, told) for frame in frames for text in frame[_VISIT]]
        watermark = state.getCurrentWatermarkMs()
        found = held.advance(new, watermark * 1000, told)
        at = held.next_look(told)
        if at is not None:
            state.update((held.text(),))
            state.setTimeoutTimestamp(max(at // 1000, watermark + 1))
        elif state.exists:
            state.remove()
        rows = [
            (*key, one.start, one.end, one.expiry, one.events, *map(_text, one.aggregates), final)
            for one, final in found
        ]
        if rows:
            yield pd.DataFrame(rows, columns=names)

    return on_entity


def _visit(text: str, told: StateRules) -> Visit:
    found = json.loads(text)
    values = [_typed(value, kind) for value, kind in zip(found["values"], told.kinds, strict=True)]
    return Visit(found["at"], found["gap"], found["ends"], values)


def _typed(value: str | None, kind: str) -> str | int | float | None:
    if value is None:
        return None
    if kind in _WHOLE:
        return int(value)
    return float(value) if kind in _BROKEN else value


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(one) for one in value]
    return value if value is None or isinstance(value, str) else str(value)


def _order(visit: Visit, kinds: tuple[str, ...]) -> tuple[Any, ...]:
    """The place of a visit as Spark sorts it: by time, then by what is kept of it, false and unknown values first."""
    ranks = []
    for value, kind in zip(visit.values, kinds, strict=True):
        known = Decimal(value) if kind.startswith("decimal") and value is not None else value
        is_nan = known != known  # the greatest, and equal to any other
        ranks.append((value is not None, is_nan, 0 if known is None or is_nan else known))
    return (visit.at, visit.ends, ranks)
