"""Schedules: when a pipeline is due.

Cron text is read on the clock of a time zone; the times that come out are UTC, in order, each once. A time that the
clock leaves out (daylight saving begins) is due directly after the change, together with whatever is due then; one
that it shows twice (daylight saving ends) is due at the first of the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

from lakewright.errors import ConfigurationError

__all__ = ["CatchUp", "OnDatasets", "Rule", "check_catch_up", "check_cron", "newest_time", "next_time", "times_between"]

CatchUp = Literal["all", "newest", "none"]
"""What becomes of times that nobody was there for: a run for each, one for the newest, or none."""
Rule = Literal["any", "all"]

_A_CHECK = datetime(2000, 1, 1)
_SECOND = timedelta(seconds=1)
_LONGEST_FOLD = timedelta(hours=2)
_RANDOM = re.compile(r"(?<![a-z@])r(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, init=False)
class OnDatasets:
    """A schedule without a clock: the pipeline is due when datasets that others make have something new.

    Without names they are all that its steps read from other pipelines. With ``rule="all"`` each of them must have
    something new since the last such run; with ``"any"`` one is enough.
    """

    names: tuple[str, ...]
    rule: Rule

    def __init__(self, *names: str, rule: Rule = "any") -> None:
        if any(not isinstance(name, str) for name in names):
            raise ConfigurationError('OnDatasets takes names of datasets: OnDatasets("clean_visits", "users").')
        if rule not in get_args(Rule):
            raise ConfigurationError(f"OnDatasets: rule is 'any' or 'all', not '{rule}'.")
        object.__setattr__(self, "names", tuple(dict.fromkeys(names)))
        object.__setattr__(self, "rule", rule)


def check_cron(schedule: str, timezone: str | None) -> None:
    """Refuse what is no schedule, a schedule without any time, and a zone that nobody knows."""
    from croniter import croniter

    if not isinstance(schedule, str) or not croniter.is_valid(schedule):
        raise ConfigurationError(
            f"'{schedule}' is no schedule. Write @hourly, @daily or a cron text such as '0 6 * * *'."
        )
    if _RANDOM.search(schedule):
        raise ConfigurationError(
            f"The schedule '{schedule}' is random: each look at it would give other times.", hint="Write numbers."
        )
    if timezone is not None:
        _zone(timezone)
    if next_time(schedule, after=_A_CHECK.replace(tzinfo=UTC)) is None:
        raise ConfigurationError(
            f"The schedule '{schedule}' never comes: no day of any year matches it, so nothing would ever run.",
            hint="The fields are minute, hour, day of the month, month, day of the week.",
        )


def check_catch_up(catch_up: str) -> None:
    """Refuse a word that is no policy."""
    if catch_up not in get_args(CatchUp):
        raise ConfigurationError(f"catch_up is 'all', 'newest' or 'none', not '{catch_up}'.")


def times_between(
    schedule: str, *, after: datetime, until: datetime, timezone: str | None = None
) -> Iterator[datetime]:
    """The times of a schedule with ``after < time <= until``, in order.

    On 25 October 2026 the clock of Warsaw shows 02:30 twice, and on 29 March never:

    >>> span = {"after": datetime(2026, 10, 24, 12, tzinfo=UTC), "until": datetime(2026, 10, 26, tzinfo=UTC)}
    >>> [f"{time:%d %H:%M}" for time in times_between("30 2 * * *", timezone="Europe/Warsaw", **span)]
    ['25 00:30']
    >>> span = {"after": datetime(2026, 3, 28, 12, tzinfo=UTC), "until": datetime(2026, 3, 30, 12, tzinfo=UTC)}
    >>> [f"{time:%d %H:%M}" for time in times_between("30 2 * * *", timezone="Europe/Warsaw", **span)]
    ['29 01:00', '30 00:30']
    """
    zone, last = _zone(timezone), after
    shown = _croniter(schedule, _on_the_clock(after, zone))
    while (local := _step(shown, "get_next")) is not None:
        time = _moment(local, zone)
        if time > until:
            return
        if time > last:  # one that the clock left out, or shows again, may be the moment of another
            last = time
            yield time


def next_time(schedule: str, *, after: datetime, timezone: str | None = None) -> datetime | None:
    """The first time after a moment; None where none ever comes."""
    far = datetime.max.replace(tzinfo=UTC)
    return next(times_between(schedule, after=after, until=far, timezone=timezone), None)


def newest_time(schedule: str, *, until: datetime, timezone: str | None = None) -> datetime | None:
    """The last time that is not after a moment; None where there was none."""
    zone = _zone(timezone)
    # A later time on the clock may be an earlier moment, where the clock shows it twice. And what is found lies before.
    ahead = timedelta(0) if zone is None else _LONGEST_FOLD
    shown = _croniter(schedule, _on_the_clock(until + ahead, zone) + _SECOND)
    while (local := _step(shown, "get_prev")) is not None:
        time = _moment(local, zone)
        if time <= until:
            return time
    return None


def _zone(name: str | None) -> ZoneInfo | None:
    if name is None or name == "UTC":
        return None
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError, TypeError):
        raise ConfigurationError(
            f"'{name}' is no time zone that this machine knows.",
            hint="Write it as Europe/Warsaw. A machine without a zone database needs `pip install tzdata`.",
        ) from None


def _croniter(schedule: str, start: datetime) -> Any:
    from croniter import croniter

    return croniter(schedule, start.replace(tzinfo=UTC))


def _step(times: Any, way: str) -> datetime | None:
    from croniter import CroniterBadDateError

    try:
        found: datetime = getattr(times, way)(datetime)
    except (CroniterBadDateError, OverflowError):
        return None
    return found.replace(tzinfo=None, fold=0)


def _on_the_clock(moment: datetime, zone: ZoneInfo | None) -> datetime:
    return moment.astimezone(zone or UTC).replace(tzinfo=None)


def _moment(local: datetime, zone: ZoneInfo | None) -> datetime:
    """The moment at which a clock shows a time: the first of two, or, for one that is left out, that of the change."""
    if zone is None:
        return local.replace(tzinfo=UTC)
    moment = local.replace(tzinfo=zone).astimezone(UTC)
    if _on_the_clock(moment, zone) == local:
        return moment
    # It lies in a gap: the offsets of after and before the change put it on both sides of the change.
    before, after = int(local.replace(tzinfo=zone, fold=1).timestamp()), int(moment.timestamp())
    new = moment.astimezone(zone).utcoffset()
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == new:
            after = middle
        else:
            before = middle
    return datetime.fromtimestamp(after, UTC)
