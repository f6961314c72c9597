"""Sessions as frames: what the engines are given of visits, and the columns that a table of sessions has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.sql import quoted, text_literal
from lakewright.patterns.data_value.session_arrow import Rules
from lakewright.patterns.data_value.session_ids import session_id
from lakewright.patterns.data_value.sessions import NAME, Aggregate, Sessions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["AT", "END", "EVENTS", "EXPIRY", "OPEN", "OVER", "START", "SessionLayout", "layout_of", "unusable_visit"]

AT, GAP, ENDS, OPEN = "_lw_at", "_lw_gap", "_lw_ends", "_lw_open"
START, END, EXPIRY, EVENTS, OVER = "_lw_start", "_lw_end", "_lw_expiry", "_lw_events", "_lw_over"
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_BROKEN = ("float", "double")


@dataclass(frozen=True, slots=True)
class SessionLayout:
    """A declaration beside the columns of the visits that it is for."""

    sessions: Sessions
    key_types: tuple[str, ...]
    column_types: tuple[str, ...]
    """Of ``sessions.columns``."""
    carried: tuple[tuple[str, str], ...]
    """The columns that engines carry, each with the type that it has there."""
    places: tuple[int, ...]
    """Per aggregate the place of its column among the carried ones."""

    @property
    def rules(self) -> Rules:
        one = self.sessions
        return Rules(
            keys=len(one.keys),
            gap=one.gap_micros,
            aggregates=tuple(zip((each.kind for each in one.aggregates), self.places, strict=True)),
            carried=len(self.carried),
            own_gaps=one.gap_by is not None,
            ends=one.ends is not None,
            max_duration=one.max_micros,
            max_events=one.max_events,
        )

    def held_type(self, place: int) -> str:
        """The type of an aggregate within an engine."""
        kind = self.carried[self.places[place]][1]
        return f"array<{kind}>" if self.sessions.aggregates[place].kind == "collect" else kind

    def shown_type(self, place: int) -> str:
        """The type of an aggregate in a table of sessions: a least or greatest value is of its column's own."""
        one = self.sessions.aggregates[place]
        own = self.column_types[self.sessions.columns.index(one.column)]
        return own if one.kind in ("min", "max") else self.held_type(place)

    def visit_columns(self, *, at: str | None = None) -> list[str]:
        """What engines are given of a visit, as SQL: keys, time, its gap, whether it ends a session, carried ones."""
        one = self.sessions
        shown = [quoted(key) for key in one.keys]
        shown.append(f"{at or _checked_time(one)} AS {AT}")
        if one.gap_by is not None:
            shown.append(f"{own_gap(one)} AS {GAP}")
        if one.ends is not None:
            shown.append(f"coalesce(({one.ends}), false) AS {ENDS}")
        return shown + [
            f"CAST({quoted(name)} AS {kind}) AS _lw_c{place}" for place, (name, kind) in enumerate(self.carried)
        ]

    @property
    def order(self) -> list[str]:
        """By what visits are sorted: no two have the same place, unless nothing that is kept of them differs.

        Of those of one moment the ones that end a session come last.
        """
        ends = [ENDS] if self.sessions.ends is not None else []
        carried = [f"_lw_c{place}" for place in range(len(self.carried))]
        return [*[quoted(key) for key in self.sessions.keys], AT, *ends, *carried]

    def open_columns(self) -> list[str]:
        """The same columns of a session that is still open."""
        one = self.sessions
        shown = [*[quoted(key) for key in one.keys], f"unix_micros(start_time) AS {AT}"]
        if one.gap_by is not None:
            shown.append(f"CAST(NULL AS BIGINT) AS {GAP}")
        if one.ends is not None:
            shown.append(f"CAST(NULL AS BOOLEAN) AS {ENDS}")
        shown += [f"CAST(NULL AS {kind}) AS _lw_c{place}" for place, (_, kind) in enumerate(self.carried)]
        held = [
            "'o0', unix_micros(start_time)",
            "'o1', unix_micros(end_time)",
            "'o2', unix_micros(expires_at)",
            "'o3', events",
        ]
        held += [
            f"'o{place + 4}', CAST({quoted(each.name)} AS {self.held_type(place)})"
            for place, each in enumerate(one.aggregates)
        ]
        return [*shown, f"named_struct({', '.join(held)}) AS {OPEN}"]

    def open_type(self) -> str:
        """The type of the column that only a session that is still open has."""
        held = ["bigint"] * 4 + [self.held_type(place) for place in range(len(self.places))]
        return f"struct<{', '.join(f'o{place}: {kind}' for place, kind in enumerate(held))}>"

    def made_schema(self) -> str:
        """What an engine gives back, as DDL."""
        one = self.sessions
        named = [f"{quoted(key)} {kind}" for key, kind in zip(one.keys, self.key_types, strict=True)]
        named += [f"{name} bigint" for name in (START, END, EXPIRY, EVENTS)]
        named += [f"{quoted(each.name)} {self.held_type(place)}" for place, each in enumerate(one.aggregates)]
        return ", ".join([*named, f"{OVER} boolean"])

    def shown(self, made: DataFrame, *, final: Column, more: Sequence[Column] = ()) -> DataFrame:
        """Sessions as they are stored."""
        from pyspark.sql import functions as F

        one = self.sessions
        start, end = F.timestamp_micros(F.col(START)), F.timestamp_micros(F.col(END))
        columns = [session_id(one.keys, F.col(START)).alias("session_id"), *[F.col(quoted(key)) for key in one.keys]]
        columns += [start.alias("start_time"), end.alias("end_time")]
        columns += [((F.col(END) - F.col(START)) / F.lit(1e6)).alias("duration_seconds"), F.col(EVENTS).alias("events")]
        for place, each in enumerate(one.aggregates):
            columns.append(F.col(quoted(each.name)).cast(self.shown_type(place)).alias(each.name))
        if one.collect:
            columns.append((F.col(EVENTS) > one.max_events).alias("truncated"))
        return made.select(*columns, final.alias("is_final"), *more)


def layout_of(visits: DataFrame, sessions: Sessions) -> SessionLayout:
    """The declaration beside these visits; what they lack, or cannot be used for, is refused before any job."""
    schema = visits.schema
    names = schema.names
    if missing := [name for name in (*sessions.keys, sessions.at(), *sessions.columns) if name not in names]:
        raise MissingColumnsError(pattern=NAME, missing=list(dict.fromkeys(missing)), present=names)
    types = {field.name: field.dataType.simpleString() for field in schema}
    _check_types(sessions, types)
    carried: list[tuple[str, str]] = []
    places = []
    for one in sessions.aggregates:
        kind = types[one.column]
        if one.kind in ("sum", "min", "max"):
            kind = _counted_as(one, kind)
        if (one.column, kind) not in carried:
            carried.append((one.column, kind))
        places.append(carried.index((one.column, kind)))
    return SessionLayout(
        sessions,
        tuple(types[key] for key in sessions.keys),
        tuple(types[name] for name in sessions.columns),
        tuple(carried),
        tuple(places),
    )


def unusable_visit(sessions: Sessions, present: Sequence[str]) -> str | None:
    """SQL, never NULL, for a visit that belongs to nobody or to no time; None where none of the columns is here."""
    asked = [name for name in (*sessions.keys, sessions.time) if name is not None and name in present]
    return " OR ".join(f"{quoted(name)} IS NULL" for name in asked) or None


def own_gap(sessions: Sessions) -> str:
    """A visit's own gap in microseconds, as SQL.

    At least one: Spark leaves rows without a gap out of its session windows.
    """
    longest = f"{sessions.gap_micros}D"
    told = f"coalesce(CAST(({sessions.gap_by}) AS DOUBLE) * 1000000, {longest})"
    return f"CAST(greatest(least({told}, {longest}), 1D) AS BIGINT)"


def _checked_time(sessions: Sessions) -> str:
    broken = unusable_visit(sessions, [*sessions.keys, sessions.at()])
    told = text_literal(
        f"{NAME}: a visit without {' or '.join([*sessions.keys, sessions.at()])} cannot belong to a session. Set such "
        "visits aside before: split_unusable_visits(...)."
    )
    micros = f"unix_micros(CAST({quoted(sessions.at())} AS TIMESTAMP))"
    return f"CASE WHEN {broken} THEN CAST(raise_error({told}) AS BIGINT) ELSE {micros} END"


def _check_types(sessions: Sessions, types: dict[str, str]) -> None:
    at = types[sessions.at()]
    if not at.startswith("timestamp"):
        raise ConfigurationError(
            f"{NAME}: the time '{sessions.at()}' is {at}, and gaps are measured between timestamps.",
            hint=f'Cast it before: F.try_to_timestamp("{sessions.at()}").',
        )
    for name in sessions.keys:
        if types[name].startswith(("struct", "array", "map", "variant")):
            raise ConfigurationError(f"{NAME}: the key '{name}' is {types[name]}: name one of its fields instead.")
    for name in sessions.columns:
        if "map<" in types[name] or "variant" in types[name]:
            raise ConfigurationError(
                f"{NAME}: '{name}' is {types[name]}, which has no order, so that visits of one moment could change "
                "places.",
                hint=f'Make it text before: F.to_json("{name}").',
            )


def _counted_as(one: Aggregate, kind: str) -> str:
    if kind in _WHOLE:
        return "bigint"
    if kind in _BROKEN:
        return "double"
    raise ConfigurationError(
        f"{NAME}: '{one.kind}' is for numbers, and '{one.column}' is {kind}.",
        hint=f'Cast it before: F.col("{one.column}").cast("double"); or keep its first or last value.',
    )
