"""Sessions: one declaration of what a session is, for slices (Incremental Sessionizer) and streams (Stateful).

Guarantee:
    Whatever can be known without data is checked when the declaration is made: a wrong length of time, a name that is
    given twice, an option that cannot mean anything beside another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, get_args

from lakewright.errors import ConfigurationError
from lakewright.model.times import parse_duration

__all__ = ["NAME", "Aggregate", "Kind", "Sessions", "check_known"]

NAME = "Sessions"
Kind = Literal["collect", "first", "last", "sum", "min", "max"]
Expiry = Literal["event time", "watermark"]

_OWN = ("session_id", "start_time", "end_time", "duration_seconds", "events", "truncated", "is_final", "expires_at")
"""Columns that every table of sessions has, or its private one."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One column of a session: what is kept of which column of its visits."""

    name: str
    kind: Kind
    column: str


@dataclass(frozen=True, slots=True)
class Sessions:
    """What a session is: the visits of one entity (``keys``) with at most ``gap`` between each and the next.

    ``time`` is the column with the event time (in a pipeline that of the input, where it is not named). ``gap_by`` is
    SQL that tells a visit's own gap in seconds; NULL, and what is longer than ``gap``, counts as ``gap``, and what is
    not above zero as a microsecond. ``ends`` is SQL for a visit that closes its session. ``collect``, ``first``,
    ``last``, ``sum``, ``min`` and ``max`` are columns of the session, each made of a column of its visits in the order
    of time: ``collect={"pages": "page"}``.

    A list holds at most ``max_events`` values; ``max_duration`` cuts a session that never ends. ``partial`` gives
    sessions that still go on as well, with ``is_final = false``. On a stream a visit may come ``lateness`` after a
    later one; ``expiry`` says whether a session ends a gap after its last visit (``"event time"``) or after the
    watermark at which that came (``"watermark"``).
    """

    keys: Sequence[str]
    gap: str
    time: str | None = None
    gap_by: str | None = None
    ends: str | None = None
    collect: Mapping[str, str] = field(default_factory=dict)
    first: Mapping[str, str] = field(default_factory=dict)
    last: Mapping[str, str] = field(default_factory=dict)
    sum: Mapping[str, str] = field(default_factory=dict)
    min: Mapping[str, str] = field(default_factory=dict)
    max: Mapping[str, str] = field(default_factory=dict)
    max_events: int = 10_000
    max_duration: str | None = None
    partial: bool = False
    lateness: str = "10 minutes"
    expiry: Expiry = "event time"

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or not self.keys:
            raise ConfigurationError(f"{NAME}: 'keys' is a list of at least one column, such as keys=[\"user_id\"].")
        object.__setattr__(self, "keys", tuple(self.keys))
        for option in get_args(Kind):
            given = getattr(self, option)
            if not isinstance(given, Mapping):
                raise ConfigurationError(
                    f"{NAME}: '{option}' says which column is made of which, such as "
                    f'{option}={{"pages": "page"}}, not {given!r}.'
                )
            object.__setattr__(self, option, dict(given))
        self._check_lengths()
        self._check_names()
        if self.expiry not in get_args(Expiry):
            raise ConfigurationError(f"{NAME}: expiry is 'event time' or 'watermark', not {self.expiry!r}.")
        if self.expiry == "watermark" and (self.gap_by or self.ends or self.max_duration):
            raise ConfigurationError(
                f'{NAME}: with expiry="watermark" the moment at which visits come ends a session, and nothing else '
                "does. Leave gap_by, ends and max_duration out."
            )

    def _check_lengths(self) -> None:
        for option in ("gap", "max_duration", "lateness"):
            text = getattr(self, option)
            if text is None:
                continue
            try:
                length = parse_duration(text)
            except ConfigurationError as error:
                raise ConfigurationError(f"{NAME}: {option}: {error.message}") from None
            if length <= timedelta(0) and option != "lateness":
                raise ConfigurationError(f"{NAME}: {option} is longer than nothing, not '{text}'.")
        if self.max_duration is not None and parse_duration(self.max_duration) < parse_duration(self.gap):
            raise ConfigurationError(f"{NAME}: max_duration is not shorter than the gap of {self.gap}.")
        if not isinstance(self.max_events, int) or self.max_events < 1:
            raise ConfigurationError(f"{NAME}: max_events is a number from 1 on, not {self.max_events!r}.")

    def _check_names(self) -> None:
        seen = dict.fromkeys(_OWN, "a column of every session")
        for key in self.keys:
            if key in seen:
                raise ConfigurationError(f"{NAME}: the key '{key}' is {seen[key]}.", hint="Rename it before.")
            seen[key] = "a key"
        for one in self.aggregates:
            if one.name in seen:
                raise ConfigurationError(
                    f"{NAME}: '{one.name}' cannot be made by '{one.kind}': it is {seen[one.name]}.",
                    hint="Give it another name.",
                )
            seen[one.name] = f"made by '{one.kind}'"

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """The columns that are made of visits, in the order in which they stand."""
        return tuple(
            Aggregate(name, kind, column) for kind in get_args(Kind) for name, column in getattr(self, kind).items()
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of visits that something is made of; by these, in this order, visits of one moment are told."""
        return tuple(dict.fromkeys(one.column for one in self.aggregates))

    @property
    def gap_micros(self) -> int:
        return parse_duration(self.gap) // timedelta(microseconds=1)

    @property
    def max_micros(self) -> int | None:
        """The longest session, or None."""
        return None if self.max_duration is None else parse_duration(self.max_duration) // timedelta(microseconds=1)

    def at(self) -> str:
        """The column with the event time; refused where nobody named it."""
        if self.time is None:
            raise ConfigurationError(f"{NAME}: nothing tells when a visit was.", hint='Name the column: time="...".')
        return self.time


def check_known(sessions: object, where: str) -> Sessions:
    """The same declaration, refused where it is none."""
    if not isinstance(sessions, Sessions):
        raise ConfigurationError(
            f'{where}: sessions is a declaration such as Sessions(keys=["user_id"], gap="30 minutes"), not '
            f"{sessions!r}."
        )
    return sessions
