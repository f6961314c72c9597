"""A large table of PostgreSQL into bronze: in how many parts it is read, in how much memory, and what the parts bring.

The first is a load of the whole table as it is. The second compares parallel parts with one connection, from a database
that takes its time for each fetch (see ``far_database``), on a part of the table.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.far_database import far_away
from benchmarks.harness import compare, heap_after_collection_mb, jvm_of, keep, measure, resident_mb

ROWS = 5_000_000
FAR_ROWS = 1_000_000
PARTS = 4
DELAY_MS = 100
"""For each request; a fetch of 10,000 rows (the default) is one."""
MEMORY_LIMIT_MB = 1_500
WARMUPS = 1
PROJECT = """
from lakewright import Jdbc, Pipeline

load = Pipeline("load", start="2026-01-01")
load.source("whole", Jdbc("near", table="visits", cursor="id", key="id", partitions={parts}))
for i in range({rounds}):
    load.source(f"parts{{i}}", Jdbc("far", table="fewer_visits", cursor="id", key="id", partitions={parts}))
    load.source(f"one{{i}}", Jdbc("far", table="fewer_visits", cursor="id"))
"""
SETTINGS = """
name = "bench"
[targets.dev]
driver_memory = "1g"
[targets.waiting]
master = "local[{parts}]"
driver_memory = "1g"
[connections.near]
service = "postgres"
[connections.far]
url = "postgresql://{user}@127.0.0.1:{port}/postgres"
password = "secret://file/{password_file}"
"""
TABLE = """
CREATE TABLE {name} AS SELECT i AS id, 'visit-' || i AS visit_id, '/articles/' || i % 500 AS page,
    (i % 100000)::int AS user_id, timestamptz '2026-01-01Z' + i * interval '1 s' AS visited_at, md5(i::text) AS note
    FROM generate_series(1, {rows}) i;
ALTER TABLE {name} ADD PRIMARY KEY (id);
ANALYZE {name}
"""
PART = re.compile(r"FROM \(SELECT \* FROM \(.*\) AS r.*\) AS arrival\s+WHERE (?P<range>.+)$", re.DOTALL)


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project
    from lakewright.runtime.services import down, up
    from lakewright.runtime.services.processes import this_process

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    folder.chmod(0o755)  # PostgreSQL is another user's, where this one is root
    services = folder / ".lakewright" / "services"
    rows, rounds = min(size, ROWS), pairs + WARMUPS
    far_rows = min(rows, FAR_ROWS)
    try:
        (server,) = up(services, ["postgres"], only_while=this_process())
        assert server.address is not None
        assert server.port is not None
        (folder / "pipelines").mkdir()
        (folder / "pipelines" / "load.py").write_text(PROJECT.format(parts=PARTS, rounds=rounds))
        with far_away(server.port, DELAY_MS) as port, psycopg.connect(server.address.url, autocommit=True) as session:
            session.execute(TABLE.format(name="visits", rows=rows).encode())
            session.execute(TABLE.format(name="fewer_visits", rows=far_rows).encode())
            address = {"user": server.address.user, "password_file": server.address.password_file}
            (folder / "lakewright.toml").write_text(SETTINGS.format(port=port, parts=PARTS, **address))
            with Project(folder) as project:
                whole = load_whole(project, session, rows)
            # A task that waits for a far database needs no core: as many at once as there are parts.
            with Project(folder, target="waiting") as project:
                numbers = {"parts": iter(range(rounds)), "one": iter(range(rounds))}
                found = compare(
                    f"{far_rows:,} rows in {PARTS} parts against one connection, {DELAY_MS} ms for each fetch",
                    lambda: load(project, f"parts{next(numbers['parts'])}", far_rows),
                    lambda: load(project, f"one{next(numbers['one'])}", far_rows),
                    jvm=jvm_of(project.spark()),
                    pairs=pairs,
                    warmups=WARMUPS,
                    limit=1 / 1.7,
                )
                print(f"  {1 / found.wall_ratio.median:.2f} times as fast (at least 1.7)", flush=True)
                keep("jdbc_load", {"whole": whole, "far": found})
    finally:
        down(services, ["postgres"], delete=True)
        shutil.rmtree(folder, ignore_errors=True)


def load(project: Any, name: str, rows: int) -> None:
    """A first load: each name is a source of its own."""
    summary = project.run([name], at="2026-01-02")
    for error in summary.errors:
        raise error
    taken = sum(one.rows or 0 for one in project.store.receipts.history(name) if one.kind == "data")
    assert taken == rows, f"{taken} of {rows} rows were taken"


def load_whole(project: Any, session: Any, rows: int) -> dict[str, Any]:
    """One load of everything, watched from the database and from the system."""
    spark = project.spark()
    jvm = jvm_of(spark)
    Path(f"/proc/{jvm}/clear_refs").write_text("5")  # the highest value begins anew
    with Watch(session) as watch:
        took = measure(lambda: load(project, "whole", rows), jvm)
    peak, heap = resident_mb(jvm, "VmHWM"), heap_after_collection_mb(spark)
    told = f"{rows:,} rows in {took.wall:.1f} s ({rows / took.wall:,.0f} a second), {watch.most} connections at once"
    print(f"  {told}", flush=True)
    verdict = "kept" if peak < MEMORY_LIMIT_MB else "MISSED"
    print(
        f"  JVM at most {peak:.0f} MB (limit {MEMORY_LIMIT_MB}: {verdict}), heap afterwards {heap:.0f} MB", flush=True
    )
    check_ranges(session, sorted(watch.ranges), rows)
    ids = spark.read.format("delta").load(project.lake.resolve("whole")).selectExpr("count(*)", "count(DISTINCT id)")
    assert tuple(ids.first()) == (rows, rows)
    return {"seconds": took.wall, "cpu_seconds": took.cpu, "connections": watch.most, "peak_mb": peak, "heap_mb": heap}


def check_ranges(session: Any, ranges: list[str], rows: int) -> None:
    """The database itself says that no row is in two ranges, and each in one."""
    assert len(ranges) == PARTS, f"{len(ranges)} of {PARTS} ranges were seen: {ranges}"
    for one, other in combinations(ranges, 2):
        assert _count(session, f"({one}) AND ({other})") == 0, f"{one} and {other} have rows in common"
    assert sum(_count(session, one) for one in ranges) == rows
    print(f"  disjoint ranges: {'; '.join(ranges)}", flush=True)


def _count(session: Any, where: str) -> int:
    return int(session.execute(f"SELECT count(*) FROM visits WHERE {where}".encode()).fetchone()[0])


@dataclass
class Watch:
    """What the database sees of a load: the ranges that are asked for, and how many connections work at once."""

    session: Any
    most: int = 0
    ranges: set[str] = field(default_factory=set)

    def __enter__(self) -> Watch:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        asked = (
            "SELECT query FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' "
            "AND query LIKE '%AS arrival%' AND state IN ('active', 'idle in transaction')"
        )
        while not self._over.wait(0.05):
            told = [PART.search(query) for (query,) in self.session.execute(asked)]
            # Spark asks for the columns first, by a condition that no row fulfils.
            found = [one["range"].strip() for one in told if one is not None and "1=0" not in one["range"]]
            self.most = max(self.most, len(found))
            self.ranges.update(found)
