"""The users of the blog: who is known on which day, who moved when, and the daily files that say so."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from platforms.blog.generator.recipe import Recipe
from platforms.blog.generator.reference import COUNTRIES, COUNTRY_BY_BYTE, DEVICES

__all__ = ["DAY_MS", "People", "login_of", "meet_people", "user_id_of", "write_users"]

DAY_MS = 86_400_000
NEW_SHARE, MOVED_SHARE = 0.005, 0.03  # of the known users, on each later day
FIRST_NAMES = (
    "ada",
    "bruno",
    "chloe",
    "deniz",
    "emil",
    "fatima",
    "goran",
    "hana",
    "ines",
    "jun",
    "kofi",
    "zoë",
)


@dataclass(frozen=True)
class People:
    """All users by number. Times are milliseconds since the start of the first day.

    ``known[day]`` is how many users exist when the day begins, and only those visit on it; it has one more
    entry, for the end of the last day. ``moves[user]``
    are the times and new countries of a user who moved, in order, at most one per day.
    """

    known: list[int]
    first_country: bytes
    device: bytes
    moves: dict[int, list[tuple[int, int]]]
    moved_on: list[list[int]]

    def country_at(self, user: int, time_ms: int) -> int:
        """The country as of a time: a version holds from its ``updated_at`` on."""
        country = self.first_country[user]
        for moved_at, new_country in self.moves.get(user, ()):
            if moved_at <= time_ms:
                country = new_country
        return country


@lru_cache(maxsize=1)
def meet_people(recipe: Recipe) -> People:
    """Draw all users of a recipe; each process does it once and gets the same ones."""
    rng = random.Random(f"{recipe.seed}/people")
    known = [recipe.users, recipe.users]  # nobody is new on the first day: its file has all the first users
    for _ in range(1, recipe.days):
        known.append(known[-1] + max(1, int(known[-1] * NEW_SHARE)))
    total = known[-1]
    first_country = rng.randbytes(total).translate(COUNTRY_BY_BYTE)
    device = rng.randbytes(total).translate(bytes(byte % len(DEVICES) for byte in range(256)))
    moves: dict[int, list[tuple[int, int]]] = {}
    moved_on: list[list[int]] = [[]]
    for day in range(1, recipe.days):
        wanted = max(1, int(known[day] * MOVED_SHARE))
        moved_on.append(sorted({int(rng.random() * known[day]) for _ in range(wanted)}))
        for user in moved_on[day]:
            history = moves.setdefault(user, [])
            country = history[-1][1] if history else first_country[user]
            elsewhere = (country + 1 + int(rng.random() * (len(COUNTRIES) - 1))) % len(COUNTRIES)
            history.append((day * DAY_MS + int(rng.random() * 86_400) * 1000, elsewhere))
    return People(known, first_country, device, moves, moved_on)


def user_id_of(user: int) -> str:
    return f"u-{user:07d}"


def login_of(user: int) -> str:
    return f"{FIRST_NAMES[user % len(FIRST_NAMES)]}{user}"


def write_users(recipe: Recipe, day: int, path: Path) -> tuple[int, int]:
    """Write the users file of a day; returns how many users in it are new and how many moved."""
    people = meet_people(recipe)
    new = range(people.known[0]) if day == 0 else range(people.known[day], people.known[day + 1])
    moved = people.moved_on[day]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for user in moved:
            moved_at, country = next(move for move in people.moves[user] if move[0] // DAY_MS == day)
            file.write(_line(recipe, user, country, updated_at=moved_at))
        for user in new:
            file.write(_line(recipe, user, people.first_country[user], updated_at=_registered_at(recipe, user)))
    return len(new), len(moved)


def _registered_at(recipe: Recipe, user: int) -> int:
    """When a user came: the first ones some time in the two years before the start, a new one on its day."""
    people = meet_people(recipe)
    # A fixed scramble of the number, not a draw: each version of a user must tell the same time.
    scrambled = (user * 2_654_435_761 + recipe.seed * 40_503) % 2**32
    if user < recipe.users:
        return -1000 * (1 + scrambled % (730 * 86_400))
    return (bisect_right(people.known, user) - 1) * DAY_MS + scrambled % 86_400 * 1000


def _line(recipe: Recipe, user: int, country: int, *, updated_at: int) -> str:
    device = DEVICES[meet_people(recipe).device[user]].device_id
    return (
        f'{{"user_id":"{user_id_of(user)}","login":"{login_of(user)}","country":"{COUNTRIES[country]}",'
        f'"device_id":"{device}","registered_at":"{_iso(recipe, _registered_at(recipe, user))}",'
        f'"updated_at":"{_iso(recipe, updated_at)}"}}\n'
    )


def _iso(recipe: Recipe, time_ms: int) -> str:
    midnight = datetime(recipe.start.year, recipe.start.month, recipe.start.day, tzinfo=UTC)
    return (midnight + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
