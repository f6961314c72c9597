"""`make chaos KILLS=200 ARGS="-k every_writer"`: one pipeline with every writer, killed at random moments.

Python, the JVM and the whole process group are killed in turn while files and messages keep coming. After every
kill a run mends: one that is the next victim, and after every fifth one that nobody disturbs. A JVM that outlives
its Python is left alone: it may still commit while its successor is at work. At the end each target holds what was
delivered, by a reckoning that knows nothing of Lakewright. `LAKEWRIGHT_SEED` says which moments and rows it is.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakewright.pipelines.project import Project
from lakewright.testing.plugin import write_files
from tests.chaos.writers_check import check_everything, check_postgres, check_store
from tests.chaos.writers_project import AT, files_of, prepare
from tests.chaos.writers_truth import Truth

pytestmark = pytest.mark.chaos

WHOM = ("python", "jvm", "group")
PATIENCE_SECONDS = 180.0
"""A run that tells nothing for so long hangs."""
STEPS = 28
"""So many beginnings and ends of slices, at most, before a kill: a whole run has some forty."""
MENDED_EACH = 5
"""After so many kills a run is left alone; the others are mended by the next victim."""
EVERYTHING_EACH = 25
"""So often, in kills, all targets are compared; PostgreSQL's after each undisturbed run."""
Tell = Callable[[str], None]


class Victim:
    """A process that runs the project when it is told to, and what it says of itself."""

    def __init__(self, folder: Path) -> None:
        self._said = folder / "said.txt"
        with self._said.open("ab") as said:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.writers_victim", str(folder)],
                cwd=Path(__file__).parents[2], start_new_session=True, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            )  # fmt: skip
        self.under_way: set[str] = set()
        self.mended: list[str] = []
        self.errors: list[str] = []
        self.published = self.steps = 0
        self._ready, self._done = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            word, _, rest = line.strip().partition(" ")
            self.steps += word in ("begin", "end")
            if word == "begin":
                self.under_way.add(rest)
            elif word == "end":
                self.under_way.discard(rest)
            elif word == "note" and "an earlier run died here" in rest:
                self.mended.append(rest)
            elif word == "error":
                self.errors.append(rest)
            elif word == "published":
                self.published = int(rest)
            elif word == "ready":
                self._ready.set()
            elif word == "done":
                self._done.set()
        self._ready.set()
        self._done.set()

    def go(self, number: int) -> None:
        """Let it run; it has started long ago, or does so now."""
        assert self._ready.wait(120)
        assert self.child.poll() is None, f"the victim ended by itself: {self._said.read_text()[-2000:]}"
        self._done.clear()
        self.steps = 0
        assert self.child.stdin is not None
        self.child.stdin.write(f"go {number}\n")
        self.child.stdin.flush()

    def got_through(self, steps: int, seconds: float) -> bool:
        """Whether its run ended well before the moment of the kill: some time after so many steps began or ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.steps < steps and not self._done.wait(0.02):
            assert time.monotonic() < deadline, f"nothing goes on: {self.under_way}"
        if not self._done.wait(seconds):
            return False
        # Where it ended by itself, it failed, and nobody had killed anything.
        assert self.child.poll() is None, f"the run failed undisturbed: {self.errors}"
        assert not self.errors
        return True

    def strike(self, whom: str) -> list[str]:
        """kill -9 of Python alone, of its JVM alone, or of the whole group; what was under way."""
        met = sorted(self.under_way)
        if whom == "group":
            os.killpg(self.child.pid, signal.SIGKILL)
        elif whom == "python":
            self.child.kill()
        else:
            found = subprocess.run(["pgrep", "-P", str(self.child.pid), "java"], capture_output=True, text=True)
            for pid in found.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
        self.child.wait(timeout=120)
        return met

    def clear_away(self) -> None:
        """What is left of its session: a JVM that did not notice that its Python is gone, or a Python worker."""
        subprocess.run(["pkill", "-KILL", "-s", str(self.child.pid)], check=False)
        self.child.wait(timeout=120)


def test_random_kills_of_a_pipeline_with_every_writer_lose_nothing_and_double_nothing(
    spark, postgres, kafka, tmp_path, monkeypatch, capfd
):
    kills = int(os.environ.get("LAKEWRIGHT_KILLS", "50"))
    seed = int(os.environ.get("LAKEWRIGHT_SEED", "1"))
    chance = random.Random(seed)
    began = time.monotonic()

    def tell(text: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"[{time.monotonic() - began:6.0f} s] {text}\n")
            sys.stdout.flush()

    places = prepare(postgres, kafka, environment=monkeypatch)
    folder = tmp_path / "every"
    write_files(folder, dict(files_of(places)))
    truth = Truth(folder, kafka, places.events, chance)
    tell(f"{kills} kills of a pipeline with every writer, LAKEWRIGHT_SEED={seed}")
    victim = Victim(folder)
    with Project(folder, spark=spark) as project:
        project.graph  # noqa: B018  (declares the names, as any command does)
        truth.deliver()
        mend(project, tell)
        chaos = Chaos(project, places, truth, chance, tell, victim, kills)
        try:
            chaos.go_on_until_all_are_dead()
        finally:
            for one in (chaos.victim, chaos.spare, *chaos.dead):
                if one is not None:
                    one.clear_away()
        chaos.steps += mend(project, tell)
        compared = check_everything(project, places, truth, published=chaos.published)
        # A stream that follows a change feed is looked at in each run: Delta notes the last file, not the next version.
        written = [one for one in project.run(at=AT).outcomes if one.receipt is not None]
        assert written == [], "a further run finds nothing to do"
    tell("under way when it was killed, by dataset: " + ", ".join(f"{n} {c}" for n, c in sorted(chaos.met.items())))
    whom = ", ".join(f"{chaos.killed[name]} {name}" for name in WHOM)
    tell(
        f"{datetime.now(UTC):%Y-%m-%d}: {kills} kills ({whom}) in {(time.monotonic() - began) / 60:.0f} minutes, "
        f"seed {seed}, {truth.deliveries} deliveries, {chaos.steps} steps mended: {compared:,} rows compared, "
        "0 lost, 0 twice."
    )


def mend(project: Project, tell: Tell) -> int:
    """A run that nobody disturbs; how many steps it found dead."""
    began = time.monotonic()
    summary = project.run(at=AT)
    for error in summary.errors:
        tell(f"failed undisturbed: {error}")
        raise error
    assert summary.state == "ok"
    died = [note.message for note in summary.notes if "an earlier run died here" in note.message]
    found = sum("found in the log" in text for text in died)
    made = sorted({outcome.dataset for outcome in summary.made})
    tell(
        f"    mended: {len(died)} steps had died, {found} of them after their commit; {len(summary.made)} slices made "
        f"in {time.monotonic() - began:.1f} s, of {', '.join(made) or 'nothing'}"
    )
    return len(died)


class Chaos:
    """Kills one victim after the other; the next one starts while the last one runs."""

    def __init__(
        self, project: Project, places, truth: Truth, chance: random.Random, tell: Tell, victim: Victim, kills: int
    ) -> None:
        self.project, self.places, self.truth = project, places, truth
        self.chance, self.tell, self.kills = chance, tell, kills
        self.victim, self.spare, self.dead = victim, None, []
        self.killed: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.runs = self.published = self.steps = 0

    def go_on_until_all_are_dead(self) -> None:
        quiet = through = True
        while (number := self.killed.total()) < self.kills:
            # Not before each kill: then none would ever meet what comes last.
            if through or number % 2 == 0:
                self.truth.deliver(may_replace=quiet)
            quiet = False
            self.spare = self.spare or Victim(self.project.folder)
            through = not self._one_run_until_it_is_killed(number)
            if not through and ((number + 1) % MENDED_EACH == 0 or number + 1 == self.kills):
                self.steps += mend(self.project, self.tell)
                self._look(number + 1)
                quiet = True
                self._clear_away()

    def _one_run_until_it_is_killed(self, number: int) -> bool:
        """Whether it was killed: a run that is done before its moment comes is no victim."""
        self.runs += 1
        # By its own steps, so that a slow machine kills no earlier; then by time, so that any place may be hit.
        after, seconds = self.chance.randint(0, STEPS), self.chance.uniform(0, 1)
        self.victim.go(self.runs)
        began = time.monotonic()
        through, took = self.victim.got_through(after, seconds), time.monotonic() - began
        self.published = max(self.published, self.victim.published)
        if through:
            self.tell(f"    run {self.runs} got through in {took:.1f} s")
            return False
        whom = WHOM[number % len(WHOM)]
        met = self.victim.strike(whom)
        self.published = max(self.published, self.victim.published)
        self.killed[whom] += 1
        self.steps += len(self.victim.mended)
        self.met.update(one.split()[0] for one in met)
        self.tell(
            f"kill {number + 1} of {self.kills}: {whom} after {took:.1f} s; it had mended "
            f"{len(self.victim.mended)} steps; under way: {', '.join(met) or 'nothing'}"
        )
        self.dead.append(self.victim)
        assert self.spare is not None
        self.victim, self.spare = self.spare, None
        return True

    def _look(self, number: int) -> None:
        check_store(self.project)
        if number % EVERYTHING_EACH == 0:
            rows = check_everything(self.project, self.places, self.truth, published=self.published)
            self.tell(f"    compared everything: {rows:,} rows, 0 lost, 0 twice")
        else:
            check_postgres(self.places, self.truth)

    def _clear_away(self) -> None:
        """Only now: a JVM without its Python was free to commit while its successor mended."""
        for one in self.dead:
            one.clear_away()
        self.dead.clear()
