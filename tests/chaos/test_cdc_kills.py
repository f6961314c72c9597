"""`make chaos`: kill Spark, the Kafka Connect worker, PostgreSQL and the broker in turn; the copy equals its table."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lakewright import ChangeDataCapture
from lakewright.pipelines.project import Project
from lakewright.runtime.services import guard, processes, up
from lakewright.runtime.services.processes import this_process
from lakewright.runtime.services.state import Place
from lakewright.testing.plugin import write_files
from tests.chaos.test_stream_kills import Command, rows_taken, until

pytestmark = pytest.mark.chaos

VICTIMS = ("python", "jvm", "debezium", "postgres", "kafka")
COLUMNS = ("id", "page", "pages", "note", "body")
LAST = 1_000_000_000
"""The key of the row that is written after all others."""
PIPELINE = """
    from lakewright import ChangeDataCapture, LatestValue, Pipeline

    legacy = Pipeline("legacy", start="2026-01-01")
    legacy.source("changes", ChangeDataCapture("db", ["visits"]).of("visits"),
                  schema="id BIGINT, page STRING, pages INT, note STRING, body STRING", mode="stream")

    @legacy.dataset(mode="stream", writer=LatestValue(keys=["id"]))
    def visits_now(changes):
        '''Visits as they stand.'''
        return changes
"""
# A broker that is gone is noticed after 4 s, not after a minute: this is about what happens then.
TOML = """
    name = "legacy"
    [targets.dev]
    fast_start = true
    [connections.db]
    service = "postgres"
    [connections.cdc]
    service = "debezium"
    [connections.broker]
    url = "kafka://{broker}"
    [connections.broker.options]
    "spark.default.api.timeout.ms" = "4000"
    "spark.request.timeout.ms" = "3000"
"""
TABLE = """
    CREATE TABLE visits (id bigint PRIMARY KEY, page text NOT NULL, pages int NOT NULL, note text, body text);
    ALTER TABLE visits ALTER body SET STORAGE EXTERNAL
"""
Rows = dict[int, tuple[Any, ...]]


def statements(number: int) -> list[tuple[str, tuple[Any, ...]]]:
    """The transaction of this number; to repeat it changes nothing, where nobody knows whether it was committed."""
    body = "x" * 3000 + str(number) if number % 5 == 0 else None  # so large that an update does not send it again
    new = (number, f"new {number}", number % 7, None if number % 3 else f"note {number}", body)
    found: list[tuple[str, tuple[Any, ...]]] = [
        ("INSERT INTO visits VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING", new),
        ("UPDATE visits SET page = %s, pages = %s WHERE id = %s", (f"changed {number}", number, number // 2)),
    ]
    if number % 10 == 0:  # two changes of a key in one transaction
        found.append(("UPDATE visits SET page = %s, pages = %s WHERE id = %s", ("once more", number, number)))
    if number % 4 == 0:
        found.append(("DELETE FROM visits WHERE id = %s", (number - 50,)))
    if number % 7 == 0 and number % 5:  # another key, of a row without a large value
        found.append(("UPDATE visits SET id = %s WHERE id = %s", (30 - number, number - 30)))
    return found


def truth(transactions: int) -> Rows:
    """The table after so many transactions, reckoned without a database."""
    rows: Rows = {}
    for number in range(transactions):
        for sql, values in statements(number):
            if sql.startswith("INSERT"):
                rows[values[0]] = values
            elif sql.startswith("DELETE"):
                rows.pop(values[0], None)
            elif "SET id" in sql:
                if (moved := rows.pop(values[1], None)) is not None:
                    rows[values[0]] = (values[0], *moved[1:])
            elif values[2] in rows:
                rows[values[2]] = (values[2], *values[:2], *rows[values[2]][3:])
    return rows


def write(url: str) -> None:
    """One transaction after another until the input ends; then how many. Each is there, whatever is killed."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    number, session = 0, None
    while not ended.wait(0.02):
        while True:
            try:
                session = session or psycopg.connect(url, autocommit=True, connect_timeout=3)
                with session.transaction():
                    for sql, values in statements(number):
                        session.execute(sql.encode(), values)
                break
            except (psycopg.OperationalError, psycopg.InterfaceError):
                session = None
                time.sleep(0.2)
        number += 1
    sys.stdout.write(str(number))


class Services:
    """PostgreSQL, a broker and a Kafka Connect worker of this test's own."""

    def __init__(self, project: Path) -> None:
        self.folder = project / ".lakewright" / "services"
        self.folder.mkdir(parents=True)
        guard.ensure(self.folder, this_process())
        self.broker, self.database = "", ""
        self.start()

    def start(self) -> None:
        """Start what is not running, on its data and its port."""
        found = {one.name: one for one in up(self.folder, ["postgres", "debezium"], only_while=this_process())}
        assert found["kafka"].address is not None
        assert found["postgres"].address is not None
        self.broker, self.database = found["kafka"].address.url, found["postgres"].address.url

    def kill(self, name: str) -> None:
        state = Place(self.folder / name).load()
        assert state is not None
        assert state.process is not None
        processes.send(state.process, signal.SIGKILL)
        assert processes.wait_until_gone([state.process], 30)


@pytest.fixture
def services() -> Iterator[Services]:
    folder = Path(tempfile.mkdtemp(prefix="lakewright-chaos-"))
    folder.chmod(0o755)
    made = folder / "legacy"
    made.mkdir()
    running = Services(made)
    yield running
    guard.throw_away(running.folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_kills_of_everything_in_turn_leave_the_copy_equal_to_its_table(spark, services):
    rounds = int(os.environ.get("LAKEWRIGHT_KILLS", "50"))
    chance = random.Random(int(os.environ.get("LAKEWRIGHT_SEED", "1")))
    folder = services.folder.parent.parent
    write_files(folder, {"lakewright.toml": TOML.replace("{broker}", services.broker), "pipelines/legacy.py": PIPELINE})
    with psycopg.connect(services.database, autocommit=True) as session:
        session.execute(TABLE.encode())
    words = f"from {__name__} import write; write({services.database!r})"
    writer = subprocess.Popen(
        [sys.executable, "-c", words],
        cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    command = Command(folder)
    try:
        with Project(folder, spark=spark) as project:
            project.graph  # noqa: B018  (declares the names, as any command does)
            for number in range(rounds):
                until_both_go_on(project, command)
                time.sleep(chance.uniform(0, 3))
                strike(VICTIMS[number % len(VICTIMS)], services, command, chance)
            until_both_go_on(project, command)
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.close()
            assert writer.wait(150) == 0
            expected = truth(int(writer.stdout.read()))
            check(project, services, command, expected)
    finally:
        writer.kill()
        command.child.kill()
    assert "Traceback" not in command.said()


def strike(victim: str, services: Services, command: Command, chance: random.Random) -> None:
    """kill -9, and what brings it back: the command again, or `services up`."""
    if victim in ("python", "jvm"):
        command.child.kill() if victim == "python" else command.kill_java()
        assert command.child.wait(120) == (-9 if victim == "python" else 1), command.said()
        command.again()
        return
    services.kill(victim)
    time.sleep(chance.uniform(0, 12))
    services.start()


def until_both_go_on(project: Project, command: Command) -> None:
    before = {name: rows_taken(project, name) for name in ("changes", "visits_now")}
    until(lambda: all(rows_taken(project, name) > count for name, count in before.items()), command)


def check(project: Project, services: Services, command: Command, expected: Rows) -> None:
    with psycopg.connect(services.database, autocommit=True) as session:
        session.execute("INSERT INTO visits VALUES (%s, 'the last', 0, NULL, NULL)", (LAST,))
        expected = {**expected, LAST: (LAST, "the last", 0, None, None)}
        source = {row[0]: tuple(row) for row in session.execute("SELECT id, page, pages, note, body FROM visits")}
    assert source == expected, "the writer or PostgreSQL lost something: this is no matter of the copy"
    until(lambda: not project.lake.read("visits_now").where(f"id = {LAST}").isEmpty(), command, seconds=600)
    assert command.stop() == 0, command.said()
    copy = project.lake.read("visits_now").select(*COLUMNS).collect()
    assert len(copy) == len(expected)
    assert {row["id"]: tuple(row) for row in copy} == expected
    # The history has each change once: none came twice through the worker, the broker or the stream.
    twice = project.lake.read("changes").groupBy("_lsn", "id", "_op").count().where("count > 1")
    assert twice.isEmpty()
    feed = ChangeDataCapture("db", ["visits"]).feed(
        project.settings.target.connections, project="legacy", dataset="changes"
    )
    assert feed.status().state == "running"
    assert project.store.leases.held(project._now()) == []
    assert project.store.steps.open_steps() == []
