"""How far a copy is behind its table while that changes all the time: PostgreSQL, Debezium, Kafka, stream, Delta.

A change counts from its commit in PostgreSQL (Debezium tells it, to the microsecond) to the moment when the commit that
holds it is in the log of the Delta table, where any reader sees it: the modification time of the log's file. Both are
this machine's clock. The log's statistics tell up to which change a version is.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.harness import keep

KNOWN_ROWS = 100_000
BEAT_SECONDS = 0.1
WARM_SECONDS = 30
"""At full rate, and not counted: the JVM compiles what it runs often."""
MINUTE = 60.0
GROWTH = 1.2
"""The median of the last minute may be so many times that of the first: less is noise."""
PIPELINE = """
from lakewright import ChangeDataCapture, LatestValue, Pipeline

legacy = Pipeline("legacy", start="2026-01-01")
legacy.source("changes", ChangeDataCapture("db", ["public.visits"]).of("public.visits"),
              schema="id BIGINT, page STRING, pages INT, note STRING", mode="stream")


@legacy.dataset(mode="stream", writer=LatestValue(keys=["id"]))
def visits_now(changes):
    return changes
"""
SETTINGS = """
name = "bench"
[connections.db]
service = "postgres"
[connections.broker]
service = "kafka"
[connections.cdc]
service = "debezium"
"""


@dataclass(frozen=True)
class Lag:
    """Seconds from a change's commit to its row."""

    changes: int
    p50: float
    p95: float
    longest: float
    first_minute_p50: float
    first_minute_p95: float
    last_minute_p50: float
    last_minute_p95: float
    commits: int

    @property
    def grows(self) -> bool:
        return self.last_minute_p50 > GROWTH * self.first_minute_p50

    def __str__(self) -> str:
        return (
            f"p50 {self.p50:.2f} s, p95 {self.p95:.2f} s, at most {self.longest:.2f} s; first minute p50 "
            f"{self.first_minute_p50:.2f} s, p95 {self.first_minute_p95:.2f} s; last minute p50 "
            f"{self.last_minute_p50:.2f} s, p95 {self.last_minute_p95:.2f} s; {self.commits} commits: "
            f"{'it GROWS' if self.grows else 'it does not grow'}"
        )


def main(*, pairs: int, size: int, rate: int = 1_000, seconds: int = 300) -> None:
    from lakewright.pipelines.project import Project
    from lakewright.runtime.services import down, up
    from lakewright.runtime.services.processes import this_process

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    folder.chmod(0o755)  # PostgreSQL is another user's, where this one is root
    services = folder / ".lakewright" / "services"
    try:
        (folder / "pipelines").mkdir()
        (folder / "pipelines" / "legacy.py").write_text(PIPELINE)
        (folder / "lakewright.toml").write_text(SETTINGS)
        started = up(services, ["postgres", "debezium"], only_while=this_process())
        found = {one.name: one for one in started}
        address = found["postgres"].address
        assert address is not None
        with psycopg.connect(address.url, autocommit=True) as session:
            writer = Writer(session, rate)
            with Project(folder) as project:
                places = {name: Path(_path(project, name)) for name in ("changes", "visits_now")}
            began, sent = follow(folder, places, writer, seconds)
            source = sorted(tuple(row) for row in session.execute("SELECT id, page, pages, note FROM visits"))
        with Project(folder) as project:
            project.graph  # noqa: B018  (declares the names, as any command does)
            assert _rows(project, "visits_now") == source, "the copy differs from its table"
            told = changes_since(project, began)
            assert len(told) == sent, f"{sent} changes were sent, {len(told)} are in the history"
        lags = {name: lag_of(told, read_log(path)) for name, path in places.items()}
        print(f"  {sent:,} changes in {seconds} s; the copy of {len(source):,} rows equals its table", flush=True)
        for name, lag in lags.items():
            print(f"  {name}: {lag}", flush=True)
        keep("cdc_lag", {"rate": rate, "seconds": seconds, **lags})
    finally:
        down(services, ["debezium", "kafka", "postgres"], delete=True)
        shutil.rmtree(folder, ignore_errors=True)


def follow(folder: Path, places: dict[str, Path], writer: Writer, seconds: int) -> tuple[float, int]:
    """Let the streams run under the writer until they have seen all; when the counting began, and what was sent."""
    with (folder / "said.txt").open("wb") as said:
        command = subprocess.Popen(
            [sys.executable, "-m", "lakewright", "run", "--continuous"], cwd=folder, stdout=said, stderr=said
        )
    try:
        until_seen(command, folder, places, KNOWN_ROWS)
        print(f"  the streams run, {KNOWN_ROWS:,} rows are copied; writing for {WARM_SECONDS} s to warm up", flush=True)
        writer.write(min(WARM_SECONDS, seconds))
        before, began = writer.changes, time.time()
        writer.write(seconds)
        until_seen(command, folder, places, KNOWN_ROWS + writer.changes, patience=600)
        command.send_signal(signal.SIGTERM)
        assert command.wait(120) == 0, (folder / "said.txt").read_text()
        return began, writer.changes - before
    finally:
        if command.poll() is None:
            command.kill()
            command.wait()


def until_seen(command: Any, folder: Path, places: dict[str, Path], changes: int, patience: float = 180) -> None:
    """Wait until the history holds so many changes, and the copy the last of them. Asks the logs alone."""
    deadline = time.monotonic() + patience
    while True:
        history, copy = (read_log(places[name]) for name in ("changes", "visits_now"))
        if sum(one.rows for one in history) >= changes and copy and copy[-1].upto >= history[-1].upto:
            return
        assert command.poll() is None, (folder / "said.txt").read_text()
        assert time.monotonic() < deadline, f"after {patience} s: {(folder / 'said.txt').read_text()}"
        time.sleep(0.5)


class Writer:
    """Changes at a steady rate, some in each transaction: of ten, five updates, three inserts, two deletes."""

    def __init__(self, session: Any, rate: int) -> None:
        self._session = session
        self._share = max(1, round(rate * BEAT_SECONDS / 10))
        self._oldest, self._next, self._cursor = 1, KNOWN_ROWS + 1, 0
        self.changes = 0
        session.execute("CREATE TABLE visits (id bigint PRIMARY KEY, page text, pages int, note text)")
        session.execute(
            "INSERT INTO visits SELECT i, '/articles/' || i %% 500, 1, md5(i::text) FROM generate_series(1, %s) i",
            (KNOWN_ROWS,),
        )

    def write(self, seconds: float) -> None:
        began, beats = time.monotonic(), round(seconds / BEAT_SECONDS)
        for beat in range(beats):
            self._transaction()
            time.sleep(max(0.0, began + (beat + 1) * BEAT_SECONDS - time.monotonic()))
        late = time.monotonic() - began - seconds
        assert late < 2, f"the writer itself is {late:.1f} s late"

    def _transaction(self) -> None:
        """New rows come at the end, the oldest go, and what is between is changed all over."""
        share, session = self._share, self._session
        last = self._next
        self._next += 3 * share
        width = last - self._oldest - 2 * share
        changed = [self._oldest + 2 * share + (self._cursor + i) * 7_919 % width for i in range(5 * share)]
        self._cursor += 5 * share
        with session.transaction():
            session.execute(
                "INSERT INTO visits SELECT i, '/new', 1, md5(i::text) FROM generate_series(%s::bigint, %s::bigint) i",
                (last, self._next - 1),
            )
            done = session.execute("UPDATE visits SET pages = pages + 1 WHERE id = ANY(%s)", (changed,)).rowcount
            gone = session.execute("DELETE FROM visits WHERE id < %s", (self._oldest + 2 * share,)).rowcount
        self._oldest += 2 * share
        self.changes += 3 * share + done + gone


@dataclass(frozen=True)
class Version:
    """A commit of a table: when it was there for all to see, and up to which change the table is by it."""

    at: float
    upto: int
    rows: int


def read_log(table: Path) -> list[Version]:
    """The commits of a table that brought changes, by its log."""
    found: list[Version] = []
    for file in sorted((table / "_delta_log").glob("*.json")):
        added = [action["add"] for line in file.read_text().splitlines() if "add" in (action := json.loads(line))]
        stats = [json.loads(one["stats"]) for one in added if one.get("stats")]
        known = [one.get("maxValues") or {} for one in stats]
        most = [one.get("_lsn", one.get("_lw_position")) for one in known]
        upto = max([place for place in most if place is not None], default=0)
        if upto:
            rows = sum(one["numRecords"] for one in stats)
            found.append(Version(file.stat().st_mtime, max(upto, found[-1].upto if found else 0), rows))
    return found


def changes_since(project: Any, began: float) -> list[tuple[int, float]]:
    """Place and commit time of each change that is counted."""
    rows = project.lake.read("changes").selectExpr("_lsn", "unix_micros(_committed_at) AS micros")
    return sorted((row[0], row[1] / 1e6) for row in rows.where(f"micros >= {int(began * 1e6)}L").collect())


def lag_of(changes: Sequence[tuple[int, float]], versions: Sequence[Version]) -> Lag:
    uptos = [one.upto for one in versions]
    behind = [(at, versions[bisect_left(uptos, place)].at - at) for place, at in changes]
    first, last = behind[0][0], behind[-1][0]
    all_of = [lag for _, lag in behind]
    opening = [lag for at, lag in behind if at < first + MINUTE]
    closing = [lag for at, lag in behind if at >= last - MINUTE]
    used = sum(1 for one in versions if one.at >= first)
    (p50, p95), (a50, a95), (z50, z95) = (_percentiles(values) for values in (all_of, opening, closing))
    return Lag(len(behind), p50, p95, max(all_of), a50, a95, z50, z95, used)


def _percentiles(values: list[float]) -> tuple[float, float]:
    return statistics.median(values), statistics.quantiles(values, n=20, method="inclusive")[18]


def _path(project: Any, name: str) -> str:
    project.graph  # noqa: B018  (declares the names, as any command does)
    return str(project.lake.resolve(name))


def _rows(project: Any, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in project.lake.read(name).select("id", "page", "pages", "note").collect())
