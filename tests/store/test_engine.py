from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError, LeaseHeldError, MadeMeanwhileError, StoreError
from lakewright.model.receipts import Change, Receipt
from lakewright.store import HeldSlice, Known, Store, open_store, this_process

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SRC = str(Path(__file__).parents[2] / "src")


def python(code: str, *args: str) -> subprocess.Popen[str]:
    """A second process that runs some code of ours."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC},
    )


def worker(store: Store) -> str:
    owner = this_process()
    store.leases.register(owner, MINUTE, NOW)
    return owner.owner_id


def begin(store: Store, owner_id: str, slice_id: str = "2026-01-04", known: Known | None = None) -> tuple[object, int]:
    return store.begin_step(
        "visits",
        slice_id,
        owner_id=owner_id,
        run_id="r1",
        attempt=1,
        reason="due",
        outputs=["visits"],
        now=NOW,
        known=known,
    )


def data(version: int, slice_id: str = "2026-01-04") -> Receipt:
    touched: dict[str | None, Change] = {slice_id: Change(5, 0)}
    return Receipt("visits", slice_id, "data", version, version - 1, version, NOW, touched=touched)


def test_a_new_store_is_made_with_its_folder_and_found_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/deep/er/store.db"
    with open_store(url) as store:
        store.leases.raise_numbers("visits", 41)
    with open_store(url) as store:
        assert store.leases.acquire("visits", "*", owner_id=worker(store), run_id=None, now=NOW).number == 42


def test_importing_the_store_does_not_import_alembic() -> None:
    code = "import sys, lakewright.store; sys.exit('alembic' in sys.modules or 'pyspark' in sys.modules)"
    assert python(code).wait() == 0


def test_readers_do_not_wait_for_a_writer(store: Store) -> None:
    with store.transaction() as conn:
        store.leases.raise_numbers("visits", 7, conn=conn)
        assert store.leases.held(NOW) == []


def test_a_transaction_that_fails_leaves_nothing_behind(store: Store) -> None:
    def fail() -> None:
        with store.transaction() as conn:
            store.receipts.add([data(1)], conn=conn)
            store.markers.set("visits", "2026-01-04", run_id=None, now=NOW, conn=conn)
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError):
        fail()
    assert store.receipts.last_version("visits") is None
    assert store.markers.list() == []


def test_a_file_that_is_no_database_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("these are my notes, not a database\n" * 50)
    with pytest.raises(StoreError, match="rebuild") as caught:
        open_store(f"sqlite:///{path}")
    assert str(path) in caught.value.message
    assert path.read_text().startswith("these are my notes")


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(StoreError, match="recipes"):
        open_store(f"sqlite:///{path}")
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("recipes",)]


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="permission"):
        open_store(f"sqlite:///{tmp_path}")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="folder"):
        open_store(f"sqlite:///{tmp_path}/file/store.db")


def test_a_folder_without_write_permission_is_refused_with_the_cure(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    # Root may write anywhere: there the second process becomes somebody else, once everything is imported.
    code = (
        "import os, sys; from lakewright.errors import StoreError; from lakewright.store import open_store\n"
        "open_store(sys.argv[1]).close()\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "for url in sys.argv[2:]:\n"
        "    try: open_store(url)\n"
        "    except StoreError as error: print(error)\n"
    )
    urls = [
        f"sqlite:///{tmp_path}/warm.db",
        f"sqlite:///{folder}/store.db",
        f"sqlite:///{folder}/sub/store.db",
    ]
    try:
        said, trouble = python(code, *urls).communicate(timeout=60)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
    assert [line.count("write permission") for line in said.splitlines()] == [1, 1], trouble


def test_a_store_held_by_another_process_is_in_use(empty_url: str) -> None:
    url = empty_url
    code = (
        "import sys; from lakewright.store import open_store\n"
        "with open_store(sys.argv[1]).transaction():\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with open_store(url, busy_timeout=timedelta(milliseconds=20)) as store:
        other = python(code, url)
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert store.runs.latest() == []
            with pytest.raises(StoreError, match="in use") as caught:
                store.leases.raise_numbers("visits", 7)
            assert "Nothing was written" in caught.value.message
            assert caught.value.exit_code == 1, "it may pass: who has started it tries again"
        finally:
            other.communicate(timeout=60)
        store.leases.raise_numbers("visits", 7)


def test_processes_that_make_one_store_at_the_same_time_all_get_it(empty_url: str) -> None:
    code = (
        "import sys; from lakewright.store import open_store\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "open_store(sys.argv[1]).close()\n"
    )
    others = [python(code, empty_url) for _ in range(4)]
    for other in others:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
    for other in others:
        assert other.stdin is not None
        other.stdin.write("go\n")
        other.stdin.flush()
    results = [(other.communicate(timeout=60)[1], other.returncode) for other in others]
    assert results == [("", 0)] * 4


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://me:secret@host/db", "store.db"])
def test_an_address_that_cannot_work_is_refused_before_anything_is_made(url: str) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_many_threads_can_write_at_once(store: Store) -> None:
    owner_id = worker(store)
    numbers: list[int] = []

    def work(slice_id: str) -> None:
        for _ in range(5):
            grant, step_id = store.begin_step(
                "visits",
                slice_id,
                owner_id=owner_id,
                run_id="r1",
                attempt=1,
                reason="due",
                outputs=[],
                now=NOW,
            )
            numbers.append(grant.number)
            store.finish_step(step_id, "ok", grant=grant, receipts=[], now=NOW)

    threads = [threading.Thread(target=work, args=(f"key-{n}",)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 101))


def test_a_step_that_begins_has_a_lease_and_an_open_record(store: Store) -> None:
    grant, step_id = store.begin_step(
        "visits",
        "2026-01-04",
        owner_id=worker(store),
        run_id="r1",
        attempt=1,
        reason="due",
        outputs=["visits", "visits_rejected"],
        now=NOW,
    )
    assert store.leases.check("visits", "2026-01-04", grant.number, NOW)
    assert [(step.step_id, step.number) for step in store.steps.open_steps("visits")] == [(step_id, 1)]


def test_a_step_that_gets_no_lease_leaves_no_record(store: Store) -> None:
    begin(store, worker(store))
    with pytest.raises(LeaseHeldError):
        begin(store, worker(store))
    assert len(store.steps.open_steps()) == 1


def test_a_step_that_ends_has_its_receipts_and_gives_its_lease_back(store: Store) -> None:
    store.arrivals.record("raw", window={}, run_id="r1", now=NOW)
    grant, step_id = store.begin_step(
        "visits",
        "2026-01-04",
        owner_id=worker(store),
        run_id="r1",
        attempt=1,
        reason="due",
        outputs=[],
        now=NOW,
    )
    late = HeldSlice("visits", "2026-01-01", "raw", 3, rows=2, since_run="r1")
    ours = store.finish_step(step_id, "ok", grant=grant, receipts=[data(1)], now=NOW, arrival=("raw", 1), held=[late])
    assert ours
    live = store.receipts.live("visits", "2026-01-04")
    assert live is not None
    assert live.version == 1
    assert store.steps.open_steps() == []
    assert store.leases.held(NOW) == []
    assert store.arrivals.pending("raw") == []
    assert store.receipts.held("visits") == {"2026-01-01": late}


def test_a_failed_step_keeps_its_error_and_publishes_nothing(store: Store) -> None:
    grant, step_id = store.begin_step(
        "visits", "whole", owner_id=worker(store), run_id="r1", attempt=1, reason="due", outputs=[], now=NOW
    )
    store.finish_step(step_id, "failed", grant=grant, receipts=[], now=NOW, error="no such column", hint="look")
    step = store.steps.last("visits")
    assert step is not None
    assert (step.state, step.error, step.hint, step.ended_at) == ("failed", "no such column", "look", NOW)
    assert store.leases.held(NOW) == []


def test_a_zombie_that_ends_its_step_keeps_the_lease_of_its_successor(store: Store) -> None:
    old, step_id = store.begin_step(
        "visits", "whole", owner_id=worker(store), run_id="r1", attempt=1, reason="due", outputs=[], now=NOW
    )
    later = NOW + timedelta(hours=1)
    successor = this_process()
    store.leases.register(successor, MINUTE, later)
    new = store.leases.acquire("visits", "whole", owner_id=successor.owner_id, run_id="r2", now=later)
    assert store.finish_step(step_id, "ok", grant=old, receipts=[], now=later) is False
    assert store.leases.check("visits", "whole", new.number, later)


def test_a_slice_that_another_run_has_made_since_it_was_found_due_is_not_leased(store: Store) -> None:
    owner_id = worker(store)
    grant, step_id = begin(store, owner_id, known=Known(None))
    store.finish_step(step_id, "ok", grant=grant, receipts=[data(1)], now=NOW)  # type: ignore[arg-type]
    with pytest.raises(MadeMeanwhileError, match="was made by another run meanwhile"):
        begin(store, owner_id, known=Known(None))
    assert store.leases.held(NOW) == []
    assert store.steps.open_steps() == []
    begin(store, owner_id, known=Known(1))
