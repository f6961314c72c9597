"""A visit as a line of JSON, sound or spoiled in one of the ways that a line can be."""

from __future__ import annotations

import random
from datetime import date, timedelta

from platforms.blog.generator.reference import PAGES, UNKNOWN_COUNTRY
from platforms.blog.generator.sessions import Visit

__all__ = ["FAULTS", "as_unknown_user", "sound_line", "spoiled_line"]

FAULTS = ("malformed", "bad_time", "future_time", "missing_id", "bad_page")
PATHS = [page.page for page in PAGES]

# None of them is empty, a bare number or two records in one line: a reader may take those for something else.
GARBAGE = (
    "<html>502 Bad Gateway</html>",
    "### log rotated ###",
    '{"visit_id":',
    "{visit_id",
    "\ufffd\ufffd\ufffd\ufffd",
)
GARBAGE_SHARE = 0.3
BAD_TIMES = ("not-a-time", "", "2026-13-45T99:99:99Z", "32 Jan, noon", "0000-00-00 00:00:00")
FUTURE_DAYS = 4000  # beyond the longest set, so that such a line never falls on a real day


def sound_line(visit: Visit, visit_id: str) -> str:
    """The line of a visit with nothing wrong. A template, because json.dumps would take most of the time."""
    event_time, user_id, page, rest, _ = visit
    return (
        f'{{"visit_id":"{visit_id}","event_time":"{event_time}","user_id":"{user_id}","page":"{PATHS[page]}",{rest}\n'
    )


def as_unknown_user(visit: Visit, rng: random.Random) -> Visit:
    """The same visit by somebody whom no users file knows."""
    guest = rng.getrandbits(20)
    before, login, after = visit.rest.partition('"login":"')
    rest = f"{before}{login}guest{guest}{after[after.index(chr(34)) :]}"
    return visit._replace(user_id=f"x-{guest:07d}", rest=rest, country=UNKNOWN_COUNTRY)


def spoiled_line(fault: str, visit: Visit, visit_id: str, rng: random.Random) -> str:
    """The line of a visit with exactly one fault."""
    id_part = f'"visit_id":"{visit_id}",'
    path = PATHS[visit.page]
    page_part = f'"{path}"'
    event_time = visit.event_time
    if fault == "bad_time":
        event_time = _pick(BAD_TIMES, rng)
    elif fault == "future_time":
        event_time = f"{date.fromisoformat(event_time[:10]) + timedelta(days=FUTURE_DAYS)}{event_time[10:]}"
    elif fault == "missing_id":
        id_part = _pick(("", '"visit_id":null,'), rng)
    elif fault == "bad_page":
        page_part = _pick((f'"https://blog.example{path}"', f'"{path[1:]}"', "null"), rng)
    line = f'{{{id_part}"event_time":"{event_time}","user_id":"{visit.user_id}","page":{page_part},{visit.rest}\n'
    return _broken(line, rng) if fault == "malformed" else line


def _broken(line: str, rng: random.Random) -> str:
    """A line cut somewhere before its end, or garbage in its place."""
    if rng.random() < GARBAGE_SHARE:
        return f"{_pick(GARBAGE, rng)}\n"
    # At least the closing brace and the newline go, and at least the opening brace stays.
    return f"{line[: 1 + int(rng.random() * (len(line) - 3))]}\n"


def _pick(choices: tuple[str, ...], rng: random.Random) -> str:
    return choices[int(rng.random() * len(choices))]
