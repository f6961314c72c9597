"""Compare every target of the project with what was delivered: which rows are lost, which are there twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

from lakewright.patterns.idempotency.proxy import read_latest_load, read_manifest
from lakewright.pipelines.accounts import accounts_of
from lakewright.pipelines.project import Project
from tests.chaos.writers_project import DAYS, Places
from tests.chaos.writers_truth import Held, Truth
from tests.chaos.writers_victim import LOADS
from tests.pipelines.topics import committed

__all__ = ["check_everything", "check_postgres", "check_store"]


def compare(what: str, found: Iterable[Hashable], expected: Held) -> int:
    """Fail with what is lost and what is there too often; how many rows were compared."""
    held = Counter(found)
    lost, twice = expected - held, held - expected
    assert not lost, f"{what}: {sum(lost.values())} lost, {sum(twice.values())} too many; lost {list(lost)[:5]}"
    assert not twice, f"{what}: {sum(twice.values())} too many: {list(twice)[:5]}"
    return sum(expected.values())


def check_postgres(places: Places, truth: Truth) -> int:
    """Every table of the database, in milliseconds."""
    day = "to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
    days, events = truth.days(), truth.events_held()
    asked: dict[str, tuple[str, Held]] = {
        "pg_days": (f"id, seq, gone, {day}", days),
        "pg_parts": (f"id, seq, gone, {day}", days),
        "pg_current": ("id, seq", truth.present()),
        "pg_exact": ("id, seq", truth.exact()),
        "pg_events": (f"id, {day}, page", events),
        "pg_versions": ("day::text, n, ids", truth.totals(events)),
    }
    with places.database.connect() as session, places.vault.connect() as vault:
        rows = compare("pg_proxy", vault.execute("SELECT day::text, n, ids FROM pg_proxy"), truth.totals(days))
        return rows + sum(
            compare(name, session.execute(f"SELECT {columns} FROM {name}".encode()), expected)
            for name, (columns, expected) in asked.items()
        )


def check_store(project: Project) -> None:
    """Nothing is open, and nobody holds anything."""
    assert project.store.leases.held(project._now()) == []
    assert project.store.steps.open_steps() == []
    assert project.store.runs.unfinished() == []


def check_everything(project: Project, places: Places, truth: Truth, *, published: int) -> int:
    """All targets, the dead letters, the accounts, and what no kill may leave behind; how many rows were compared."""
    check_store(project)
    rows = check_postgres(places, truth) + _check_lake(project, truth) + _check_topics(places, truth)
    rows += _check_loads(project, published) + _check_exports(project, truth)
    for name in ("changes", "days", "event_days"):
        accounts = accounts_of(project.store, name, is_source=name == "changes")
        assert [one for one in accounts if one.balanced is False] == []
    for database in (places.database, places.vault):
        with database.connect() as session:
            left = session.execute("SELECT tablename FROM pg_tables WHERE tablename ~ '^_lw_(stage|new)'").fetchall()
            assert left == []
    return rows


def _check_lake(project: Project, truth: Truth) -> int:
    lake, days, events = project.lake, truth.days(), truth.events_held()

    def read(name: str, *columns: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in lake.read(name).selectExpr(*columns).collect()]

    day = "date_format(at, 'yyyy-MM-dd')"
    # Times come back from Spark in the zone of this process, without saying so.
    moments = ("id", "seq", "unix_seconds(at)", "unix_seconds(valid_to)", "is_current")
    chains: Held = Counter()
    for one in truth.versions().elements():
        key, seq, begin, end, newest = one  # type: ignore[misc]
        chains[key, seq, int(begin.timestamp()), None if end is None else int(end.timestamp()), newest] += 1
    rows = compare("changes", read("changes", "seq"), Counter((c.seq,) for c in truth.changes))
    rows += compare("days", read("days", "id", "seq", "gone", day), days)
    rows += compare("current", read("current", "id", "seq", "gone"), truth.current())
    rows += compare("followed", read("followed", "id", "seq", "gone"), truth.current())
    rows += compare("versions", read("versions", *moments), chains)
    rows += compare("exact", read("exact", "id", "seq"), truth.exact())
    rows += compare("events", read("events", "id", day, "page"), events)
    rows += compare("event_days", read("event_days", "id", day, "page"), events)
    rows += compare("paged", read("paged", "id", day, "page"), truth.paged())
    letters = project.sql("SELECT * FROM dead_letters").collect()
    return rows + compare("dead letters", (truth.record_of(one.asDict()) for one in letters), truth.letters())


def _check_topics(places: Places, truth: Truth) -> int:
    """Of each slice the sending with the highest number counts; of a compacted topic the last value of each key."""
    sent = committed(places.kafka, places.told)
    newest = {day: max((one.number for one in sent if one.slice_id == day), default=0) for day in DAYS}
    counted = [json.loads(one.value or "") for one in sent if one.number == newest[one.slice_id]]
    told = ((one["id"], one["at"][:10], one["page"]) for one in counted)
    rows = compare("told", told, truth.events_held())
    last = {one.key: one.value for one in committed(places.kafka, places.keyed)}
    values = [json.loads(value) for value in last.values() if value is not None]
    return rows + compare("keyed", ((v["id"], v["seq"], v["gone"], v["at"][:10]) for v in values), truth.days())


def _check_loads(project: Project, published: int) -> int:
    """Every manifest shows one load, whole and unchanged; the newest is not older than what was told as published."""
    place, spark = str(project.folder / LOADS), project.spark()
    newest, before = read_manifest(place).number, 0
    for number in range(max(1, newest - 20), newest + 1):
        rows = [row["n"] for row in read_latest_load(spark, place, schema="n long", number=number).collect()]
        assert rows == list(range(len(rows))), f"manifest {number} shows {len(rows)} rows, not the numbers from 0 on"
        assert len(rows) >= before
        before = len(rows)
    assert before >= published, f"{published} was published, and the newest manifest shows {before}"
    return before


def _check_exports(project: Project, truth: Truth) -> int:
    """The newest manifest of the pipeline's own files shows the version that belongs to what was delivered."""
    frame = read_latest_load(project.spark(), str(project.folder / "exports"), schema="day date, n long, ids long")
    return compare("exported", ((str(r["day"]), r["n"], r["ids"]) for r in frame.collect()), truth.totals(truth.days()))
