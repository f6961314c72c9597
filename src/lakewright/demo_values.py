"""Lines of the demo's second table: what the patterns of data value made, beside what is true."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lakewright.demo_capture import HISTORY
from lakewright.demo_figures import Way, receipts_of, rows_in
from lakewright.demo_project import load_part
from lakewright.demo_sessions import figures_in, true_figures
from lakewright.model.times import parse_duration
from lakewright.pipelines.accounts import accounts_of
from lakewright.pipelines.project import Project

if TYPE_CHECKING:
    from lakewright.demo_world import World

__all__ = ["value_ways"]

_IN_TIME, _SESSIONS, _PAIRS = "visits_in_time", "live_sessions", "visits_of_both_sites"
_FEED, _TOPIC = "visit_feed", "visit-feed"
_CHANGES, _CHANGES_TOPIC = "user_changes", "user-changes"
_OVER_DEVICES, _OVER_ALL = 1, 3  # the levels of the cube by country and device
_MILLISECOND = timedelta(milliseconds=1)


def value_ways(project: Project, world: World, truth: Any) -> list[Way]:
    """Runs small jobs: sessions, feeds, envelopes, sums and pairs, as they are and as they should be."""
    in_time = project.sql(
        "SELECT user_id, section, unix_millis(event_time) AS at_ms, raw.visit_id, raw.event_time AS sent, raw.page "
        f"FROM {_IN_TIME}"
    ).collect()
    return [
        _sessions(project, in_time),
        *_feed(project, world),
        _changes(world),
        _wrapped(project, in_time),
        _cube(project, truth),
        _small(project, world),
        _pairs(project, in_time),
    ]


def _sessions(project: Project, in_time: Sequence[Any]) -> Way:
    part = load_part("generator.true_sessions")
    known = [row for row in in_time if row["visit_id"] is not None and (row["page"] or "").startswith("/")]
    declared = project.graph[_SESSIONS].sessions
    assert declared is not None
    watermark = max(row["at_ms"] for row in known) - parse_duration(declared.lateness) // _MILLISECOND
    visits = (part.Seen(row["user_id"], row["at_ms"], row["page"]) for row in known)
    ours = figures_in(project, _SESSIONS)
    wanted, going_on = true_figures(project, _SESSIONS, visits, until_ms=watermark + 1)
    told = f"sessions that are over, made of the same visits in Python; {ours[1]:,} visits in them, {going_on} go on"
    return Way("Stateful Sessionizer", _SESSIONS, ours[0], wanted[0], told, ours == wanted)


def _feed(project: Project, world: World) -> list[Way]:
    messages, sent = world.messages(_TOPIC), receipts_of(project, "clean_visits")
    decorator = project.graph[_FEED].metadata
    assert decorator is not None
    release = decorator.version
    by_day = Counter(one.headers.get("batch") for one in messages if one.headers.get("job_version") == release)
    same = by_day == {one.slice_id: one.rows for one in sent}
    after = "messages after all earlier ones of their reader, rows of clean_visits"
    headers = f"messages whose headers tell release {release} and their day, rows of clean_visits"
    return [
        Way("FIFO Orderer", _FEED, _in_order(messages, "event_time"), rows_in(sent), after),
        Way("Metadata Decorator", _FEED, by_day.total(), rows_in(sent), headers, same),
    ]


def _changes(world: World) -> Way:
    in_order = _in_order(world.messages(_CHANGES_TOPIC), "updated_at")
    told = "messages after all earlier ones of their user, users who came or moved"
    return Way("Bin Pack Orderer", _CHANGES, in_order, world.users, told)


def _in_order(messages: Sequence[Any], by: str) -> int:
    """How many messages come after all those of their key that happened before."""
    latest: dict[str, str] = {}
    found = 0
    for message in messages:
        at = json.loads(message.value)[by]  # always as long, so that text is ordered as the times are
        if at >= latest.get(message.key, ""):
            latest[message.key] = at
            found += 1
    return found


def _wrapped(project: Project, in_time: Sequence[Any]) -> Way:
    part = load_part("generator.true_sessions")
    follow = 0
    for row in in_time:
        sections = None if row["page"] is None else [*row["page"].split("/"), ""]
        section = None if sections is None else sections[1]
        follow += row["section"] == section and row["at_ms"] == part.millis(row["sent"])
    kept = sum(one.kept or 0 for one in accounts_of(project.store, _IN_TIME))
    told = "rows whose section and time follow from the visit as it came, rows in time"
    return Way("Wrapper", _IN_TIME, follow, kept, told)


def _cube(project: Project, truth: Any) -> Way:
    part = load_part("generator.true_sessions")
    first = truth.recipe.dates[0]
    wanted: Counter[str] = Counter()
    for day, told in truth.events.items():
        wanted += Counter(told.countries_after_late if day == first else told.countries)
    readers = len({visit.user_id for visit in part.kept_visits(project.folder, late_days=[first])})
    cells = project.sql("SELECT country, grouping_id, visits, visitors FROM weekly_cube").collect()
    ours = {one["country"] or "unknown": one["visits"] for one in cells if one["grouping_id"] == _OVER_DEVICES}
    total = [(one["visits"], one["visitors"]) for one in cells if one["grouping_id"] == _OVER_ALL]
    same = ours == wanted and total == [(wanted.total(), readers)]
    compared = f"visits of the week by {len(ours)} countries, of its days; {readers:,} visitors, each counted once"
    return Way("Distributed Aggregator", "weekly_cube", sum(ours.values()), wanted.total(), compared, same)


def _small(project: Project, world: World) -> Way:
    rows = project.sql("SELECT country, users FROM users_by_country").collect()
    ours, theirs = {row["country"]: row["users"] for row in rows}, Counter(one[2] for one in world.current_users())
    told = f"users of {len(ours)} countries, users in PostgreSQL"
    return Way("Local Aggregator", "users_by_country", sum(ours.values()), theirs.total(), told, ours == theirs)


def _pairs(project: Project, in_time: Sequence[Any]) -> Way:
    """As many as the same rows give at rest, in Python."""
    usable = "user_id IS NOT NULL AND visited_at IS NOT NULL"
    query = f"SELECT user_id, unix_millis(visited_at) AS at_ms FROM {HISTORY} WHERE {usable}"
    there: dict[str, list[int]] = {}
    for row in project.sql(query).collect():
        there.setdefault(row["user_id"], []).append(row["at_ms"])
    hour = timedelta(hours=1) // _MILLISECOND
    pairs = sum(abs(at - row["at_ms"]) <= hour for row in in_time for at in there.get(row["user_id"], ()))
    (found,) = project.sql(f"SELECT count(*) AS pairs FROM {_PAIRS}").collect()
    told = "visits with changes of the old site within an hour, of the rows of both streams"
    return Way("Dynamic Joiner", _PAIRS, found["pairs"], pairs, told, pairs > 0)
