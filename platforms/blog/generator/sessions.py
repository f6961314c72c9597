"""Visits as people make them: sessions of a few pages, by one user on one device, minutes apart at most."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

from platforms.blog.generator.people import DAY_MS, login_of, meet_people, user_id_of
from platforms.blog.generator.recipe import Recipe
from platforms.blog.generator.reference import BROWSERS, DEVICES, NETWORKS, PAGE_BY_BYTE, REFERRALS

__all__ = ["Visit", "draw_visits"]

HOUR_WEIGHTS = (3, 2, 1, 1, 1, 2, 4, 7, 9, 10, 10, 9, 9, 9, 9, 9, 9, 9, 10, 11, 12, 11, 8, 5)
HOUR_ENDS = list(accumulate(weight / sum(HOUR_WEIGHTS) for weight in HOUR_WEIGHTS))
SESSION_PAGES = (1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 7, 9, 12)
LONGEST_PAUSE_BITS = 18  # in milliseconds: at most 4.4 minutes, far below any session's time-out

MINUTES = [f"{minute // 60:02d}:{minute % 60:02d}" for minute in range(1440)]
SECONDS = [f"{second:02d}" for second in range(60)]
MILLIS = [f"{milli:03d}" for milli in range(1000)]


class Visit(NamedTuple):
    """One visit, as far as all its lines share it; ``rest`` is the JSON text after the page."""

    event_time: str
    user_id: str
    page: int
    rest: str
    country: int


def draw_visits(
    recipe: Recipe, rng: random.Random, *, day: int, begin: float, end: float, expected: int
) -> Iterator[Visit]:
    """Draw visits of one event day without end, in the order of their sessions.

    Sessions start between the shares ``begin`` and ``end`` of the day's traffic, spread so that about
    ``expected`` visits fill the span. A session that reaches midnight ends there.
    """
    people = meet_people(recipe)
    date = recipe.dates[day]
    draw, bits = rng.random, rng.getrandbits
    made = 0
    while True:
        progress = min((made + draw()) / expected, 1.0)
        time_ms = _time_of_day(begin + (end - begin) * progress) + bits(9)
        user = int(people.known[day] * draw() * draw())  # some come often
        user_id = user_id_of(user)
        moves = user in people.moves
        country = people.country_at(user, day * DAY_MS)
        first, later = _rest_of_lines(user, people.device[user], bits)
        rest = first
        for _ in range(SESSION_PAGES[bits(4)]):
            if time_ms >= DAY_MS:
                break
            if moves:
                country = people.country_at(user, day * DAY_MS + time_ms)
            seconds, millis = divmod(time_ms, 1000)
            text = f"{date}T{MINUTES[seconds // 60]}:{SECONDS[seconds % 60]}.{MILLIS[millis]}Z"
            yield Visit(text, user_id, PAGE_BY_BYTE[bits(8)], rest, country)
            made += 1
            rest = later
            time_ms += 2000 + bits(LONGEST_PAUSE_BITS)


def _rest_of_lines(user: int, own_device: int, bits: Callable[[int], int]) -> tuple[str, str]:
    """The text after the page: of a session's first visit, which alone has a referral, and of the others."""
    seed = bits(32)
    device = DEVICES[own_device if seed & 3 else (seed >> 2) % len(DEVICES)]
    browser, browser_version = BROWSERS[seed >> 8 & 3]
    before = f'"device_id":"{device.device_id}","context":{{"referral":'
    after = (
        f',"user":{{"login":"{login_of(user)}",'
        f'"ip":"10.{seed >> 10 & 255}.{seed >> 18 & 255}.{seed >> 24}"}},'
        f'"technical":{{"browser":"{browser}","browser_version":"{browser_version}",'
        f'"network_type":"{NETWORKS[seed >> 6 & 3]}","device_type":"{device.type}",'
        f'"device_version":"{device.version}"}}}}}}'
    )
    referral = REFERRALS[bits(8) % len(REFERRALS)]
    return f"{before}{referral}{after}", f"{before}null{after}"


def _time_of_day(share: float) -> int:
    """The millisecond of the day by which this share of its traffic has happened."""
    hour = min(bisect_right(HOUR_ENDS, share), 23)
    hour_begin = HOUR_ENDS[hour - 1] if hour else 0.0
    within = (share - hour_begin) / (HOUR_ENDS[hour] - hour_begin)
    return min(int((hour + min(within, 1.0)) * 3_600_000), DAY_MS - 1000)
