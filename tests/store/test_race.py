"""Two runners on one store: every slice is committed by exactly one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lakewright.store import open_store

SRC = str(Path(__file__).parents[2] / "src")

# Each makes one slice of its own; then both go through all in the same order, so that they meet at each.
RUNNER = '''
import sys
from datetime import UTC, datetime, timedelta
from lakewright.errors import LeaseHeldError
from lakewright.model.receipts import Receipt
from lakewright.store import open_store, this_process

url, name, slices = sys.argv[1], sys.argv[2], int(sys.argv[3])
now = datetime.now(UTC)
def make(slice_id):
    """True where the slice is made, by us or by the other; False where the other is at it."""
    if store.receipts.live("visits", slice_id) is not None:
        return True
    try:
        grant, step = store.begin_step("visits", slice_id, owner_id=me.owner_id, run_id=name, attempt=1,
                                       reason="due", outputs=["visits"], now=now)
    except LeaseHeldError:
        return False
    made = store.receipts.live("visits", slice_id) is not None  # by the other, before we had the lease
    receipt = Receipt("visits", slice_id, "data", grant.number, None, grant.number, now, run_id=name)
    assert store.finish_step(step, "ok", grant=grant, receipts=[] if made else [receipt], now=now)
    return True

with open_store(url) as store:
    me = this_process()
    store.leases.register(me, timedelta(minutes=10), now)
    left = [f"key-{number:03}" for number in range(slices)]
    assert make(left[int(name)])
    print("ready", flush=True)
    sys.stdin.readline()
    while left:
        left = [slice_id for slice_id in left if not make(slice_id)]
'''


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_two_runners_that_race_make_each_slice_once(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    slices = 200 if database == "postgresql" else 40
    url = f"sqlite:///{tmp_path}/store.db" if database == "sqlite" else request.getfixturevalue("store_database").url
    runners = [
        subprocess.Popen(
            [sys.executable, "-c", RUNNER, url, name, str(slices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SRC},
        )
        for name in ("0", "1")
    ]
    for runner in runners:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "ready\n"
    for runner in runners:
        assert runner.stdin is not None
        runner.stdin.write("go\n")
        runner.stdin.flush()
    said = [(runner.communicate(timeout=120)[1], runner.returncode) for runner in runners]
    assert said == [("", 0)] * 2
    with open_store(url) as store:
        receipts = store.receipts.history("visits", limit=10_000)
        steps = [step for name in ("0", "1") for step in store.steps.of_run(name)]
        drawn = store.leases.draw("visits")
        open_steps = store.steps.open_steps()
    assert Counter(receipt.slice_id for receipt in receipts) == Counter(f"key-{n:03}" for n in range(slices))
    assert {receipt.state for receipt in receipts} == {"live"}
    numbers = [step.number for step in sorted(steps, key=lambda step: step.step_id)]
    assert numbers == sorted(set(numbers))  # in the order of the grants: none twice, none lower than one before
    assert drawn == numbers[-1] + 1
    assert len(numbers) >= slices
    assert open_steps == []
    assert {receipt.run_id for receipt in receipts} == {"0", "1"}
