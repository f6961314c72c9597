"""Kill Python, JVM, broker and store in turn under continuous streams; each record is there once.

The suite kills each of them once, `make chaos` as often as `KILLS` says.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakewright.pipelines.accounts import accounts_of
from lakewright.pipelines.project import Project
from lakewright.runtime.services import guard, processes, up
from lakewright.runtime.services.processes import this_process
from lakewright.runtime.services.state import Place
from lakewright.testing.kafka import Kafka
from lakewright.testing.plugin import write_files
from tests.pipelines.shop import ok

PIPELINE = """
    from lakewright import DeadLetter, KafkaTopic, Pipeline

    visits = Pipeline("visits", schedule="@daily", start="2026-01-01")
    visits.source("raw", KafkaTopic("broker", "{topic}"), schema="id int, at timestamp, page string",
                  event_time="at", mode="stream", max_records=1000, every="2 seconds")

    @visits.dataset(mode="stream", event_time="at", every="2 seconds",
                    guards_in={"raw": [DeadLetter(rules={"has_page": "page IS NOT NULL"})]})
    def paged(raw):
        return raw

    @visits.dataset(event_time="at", rows="preserve")
    def clean(raw):
        return raw
"""
# A broker that is gone is noticed after 4 s, not after a minute: this is about what happens then.
TOML = """
    name = "visits"
    [targets.dev]
    fast_start = true
    store = "{store}"
    [connections.broker]
    url = "kafka://{broker}"
    [connections.broker.options]
    "spark.default.api.timeout.ms" = "4000"
    "spark.request.timeout.ms" = "3000"
"""
# Sends numbers until its input ends, then tells how many the broker has: each of them once, whatever happens to it.
PRODUCER = """
import json, sys, threading, time
from confluent_kafka import Producer

ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
producer = Producer({"bootstrap.servers": sys.argv[1], "enable.idempotence": True, "message.timeout.ms": 0,
                     "linger.ms": 5, "log_level": 0})
number = 0
while not ended.wait(0.05):
    visit = {"id": number, "at": f"2026-01-0{number % 3 + 1}T10:00:00Z", "page": None if number % 11 == 0 else "/"}
    text = f"{{broken {number}" if number % 17 == 0 else json.dumps(visit)
    producer.produce(sys.argv[2], value=text, partition=number % 2)
    producer.poll(0)
    number += 1
assert producer.flush(120) == 0
print(number)
"""


class Services:
    """A broker and a database of this test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kafka = Kafka("")
        self.store = ""
        self.start()

    def start(self) -> None:
        """Start what is not running, on its data and its port."""
        found = {one.name: one for one in up(self.folder, ["kafka", "postgres"], only_while=this_process())}
        assert found["kafka"].address is not None
        assert found["postgres"].address is not None
        self.kafka, self.store = Kafka(found["kafka"].address.url), found["postgres"].address.url

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
    made = folder / "services"
    made.mkdir()
    guard.ensure(made, this_process())
    yield Services(made)
    guard.throw_away(made)
    shutil.rmtree(folder, ignore_errors=True)


class Command:
    """`lakewright run --continuous`, and what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.words = folder / "said.txt"
        self.earlier = ""
        self.child = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # With a JVM of its own, which can be killed, also where the tests work over a Connect server.
        own = {name: value for name, value in os.environ.items() if name != "LAKEWRIGHT_MASTER"}
        with self.words.open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "lakewright", "run", "--continuous"],
                cwd=self.folder, env=own, start_new_session=True, stdout=said, stderr=said,
            )  # fmt: skip

    def again(self) -> None:
        self.earlier = self.said()
        self.child = self._start()

    def said(self) -> str:
        return self.words.read_text(encoding="utf-8")

    def kill_java(self) -> None:
        for pid in subprocess.run(
            ["pgrep", "-P", str(self.child.pid), "java"], capture_output=True, text=True, check=True
        ).stdout.split():
            os.kill(int(pid), signal.SIGKILL)

    def stop(self) -> int:
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(120)


def until(happened: Callable[[], bool], command: Command, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert command.child.poll() is None, f"the command has ended: {command.said()}"
        assert "the stream has ended" not in command.said().removeprefix(command.earlier)
        assert time.monotonic() < deadline, f"it did not happen in time: {command.said()}"
        time.sleep(0.2)


def rows_taken(project: Project, name: str) -> int:
    return sum(r.rows or 0 for r in project.store.receipts.history(name, limit=100_000) if r.kind == "data")


@pytest.mark.chaos
def test_kills_of_everything_in_turn_leave_each_record_once(spark, tmp_path, services):
    kill_in_turn(spark, tmp_path, services, rounds=int(os.environ.get("LAKEWRIGHT_KILLS", "50")), longest_wait=12)


def test_one_kill_of_each_leaves_each_record_once(spark, tmp_path, services):
    kill_in_turn(spark, tmp_path, services, rounds=4, longest_wait=1)


def kill_in_turn(spark: Any, tmp_path: Path, services: Services, *, rounds: int, longest_wait: float) -> None:
    """Python, its JVM, the broker and the store in turn, under a producer that knows what it has sent."""
    chance = random.Random(int(os.environ.get("LAKEWRIGHT_SEED", "1")))
    topic = services.kafka.topic(partitions=2)
    folder = tmp_path / "visits"
    toml = TOML.replace("{store}", services.store).replace("{broker}", services.kafka.bootstrap)
    write_files(folder, {"lakewright.toml": toml, "pipelines/visits.py": PIPELINE.replace("{topic}", topic)})
    producer = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, services.kafka.bootstrap, topic],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    command = Command(folder)
    victims = ["python", "jvm", "broker", "store"]
    try:
        with Project(folder, spark=spark) as project:
            for number in range(rounds):
                before = {name: rows_taken(project, name) for name in ("raw", "paged")}
                until(lambda b=before: all(rows_taken(project, name) > b[name] for name in b), command)
                time.sleep(chance.uniform(0, longest_wait / 4))
                victim = victims[number % 4]
                if victim == "python":
                    command.child.kill()
                elif victim == "jvm":
                    command.kill_java()
                else:
                    services.kill({"broker": "kafka", "store": "postgres"}[victim])
                    time.sleep(chance.uniform(0, longest_wait))
                    services.start()
                    continue
                code = command.child.wait(120)
                assert code == (-9 if victim == "python" else 1), command.said()
                command.again()
            assert producer.stdin is not None
            producer.stdin.close()
            assert producer.wait(150) == 0
            assert producer.stdout is not None
            sent = int(producer.stdout.read())
            until(lambda: rows_taken(project, "raw") == sent, command, seconds=600)
            assert command.stop() == 0, command.said()
            ok(project.run(at="2026-01-05"))
            check(project, sent)
    finally:
        producer.kill()
        command.child.kill()
    assert "Traceback" not in command.said()


def check(project: Project, sent: int) -> None:
    broken = [n for n in range(sent) if n % 17 == 0]
    pageless = [n for n in range(sent) if n % 11 == 0 and n % 17]
    good = [n for n in range(sent) if n % 17]
    bronze = Counter(row["id"] for row in project.lake.read("raw").collect())
    assert bronze == Counter(good)
    assert Counter(row["id"] for row in project.lake.read("clean").collect()) == Counter(good)
    assert Counter(row["id"] for row in project.lake.read("paged").collect()) == Counter(set(good) - set(pageless))
    letters = project.lake.read("_lakewright/dead_letters", system_columns=True).collect()
    told = Counter((row["dataset"], row["raw"] if row["dataset"] == "raw" else row["offset"] * 2 + row["partition"])
                   for row in letters)  # fmt: skip
    assert told == Counter([("raw", f"{{broken {n}") for n in broken] + [("paged", n) for n in pageless])
    for name, count in (("raw", sent), ("clean", len(good))):
        accounts = accounts_of(project.store, name, is_source=name == "raw")
        assert [one.slice_id for one in accounts if not one.balanced] == []
        assert sum(one.read or 0 for one in accounts) == count
    # How many rows a micro-batch of another dataset held, no log tells: what became of them has to add up to the truth.
    followed = accounts_of(project.store, "paged")
    assert sum((one.kept or 0) + sum(one.rejected.values()) for one in followed) == len(good)
    assert project.store.leases.held(project._now()) == []
    assert project.store.steps.open_steps() == []
    assert project.store.runs.unfinished() == []
    assert not project.run(at="2026-01-05").outcomes
