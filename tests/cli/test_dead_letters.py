"""`lakewright dead-letters`: listed, shown, replayed after a look at what that touches, and closed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Lakewright

PIPELINE = """
from lakewright import DeadLetter, JsonFiles, Pipeline

shop = Pipeline("shop", start="2026-01-01")
shop.source("raw_orders", JsonFiles("landing"), schema="id string, at timestamp", event_time="at")


@shop.dataset(event_time="at", guards_in={"raw_orders": [DeadLetter(rules={"has_id": "id IS NOT NULL"})]})
def orders(raw_orders):
    return raw_orders
"""
ORDERS = '{"id": "o1", "at": "2026-01-05T10:00:00Z"}\n{"id": null, "at": "2026-01-05T11:00:00Z"}\n{"id": "o3", "at": '


@pytest.mark.shows("03.dead-letter", 6)
def test_dead_letters_are_listed_replayed_and_retired(lakewright: Lakewright, folder: Path, warm: None) -> None:
    for name, text in {
        "lakewright.toml": 'name = "shop"\n',
        "pipelines/shop.py": PIPELINE,
        "landing/1.json": ORDERS,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    empty = json.loads(lakewright("dead-letters", "list", "--json").stdout)
    assert empty == {"dead_letters": [], "counts": [], "alarm": False, "error": None}
    assert lakewright("run", "--at", "2026-01-06").exit_code == 0

    told = json.loads(lakewright("dead-letters", "list", "--json", "--since", "2026-01-01").stdout)
    by_dataset = {one["dataset"]: one for one in told["dead_letters"]}
    assert set(by_dataset) == {"orders", "raw_orders"}
    guarded, unread = by_dataset["orders"], by_dataset["raw_orders"]
    assert (guarded["rules"], guarded["slice"], guarded["state"]) == (["has_id"], "2026-01-05", "open")
    assert (unread["rules"], unread["raw"]) == (["unreadable record"], '{"id": "o3", "at": ')
    assert (unread["file"], unread["slice"]) == ("1.json", "arrival-1")
    assert {(one["dataset"], one["rule"], one["open"], one["new"]) for one in told["counts"]} == {
        ("orders", "has_id", 1, 1), ("raw_orders", "unreadable record", 1, 1),
    }  # fmt: skip
    alarm = lakewright("dead-letters", "list", "orders", "--fail-above", "0")
    assert alarm.exit_code == 3
    assert guarded["id"] in alarm.stdout
    assert "orders, has_id: 1 open, 0 corrected, 0 retired" in alarm.stderr
    shown = lakewright("dead-letters", "show", unread["id"].upper())
    assert '{"id": "o3", "at":' in shown.stdout

    # Nobody is here to ask; --dry-run shows whose slices are made again.
    refused = lakewright("dead-letters", "replay", "orders", "--set", "id=o2")
    assert (refused.exit_code, "--yes does it" in refused.stderr) == (2, True)
    wrong = lakewright("dead-letters", "replay", "orders", "--set", "idd=o2", "--yes")
    assert (wrong.exit_code, "Did you mean 'id'?" in wrong.stderr) == (2, True)
    plan = json.loads(lakewright("dead-letters", "replay", "orders", "--set", "id=o2", "--dry-run", "--json").stdout)
    assert (plan["touched"], plan["slices"]) == ({"raw_orders": ["2026-01-05"]}, {"orders": ["2026-01-05"]})
    assert (plan["records"], plan["done"]) == (1, False)

    fixed = {"record": unread["id"], "raw": '{"id": "o3", "at": "2026-01-04T12:00:00Z"}'}
    (folder / "fixed.jsonl").write_text(json.dumps(fixed))
    done = lakewright("dead-letters", "replay", "raw_orders", "--edit", "fixed.jsonl", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "Replayed 1: 1 corrected, 0 set aside again." in done.stderr
    rows = lakewright("sql", "SELECT id, to_date(at) AS day FROM orders ORDER BY id", "--format", "csv")
    assert rows.stdout.splitlines() == ["id,day", "o1,2026-01-05", "o3,2026-01-04"]

    # And one that nobody will correct.
    for vague in (["orders", "--because", "x"], ["orders", "--reason", "has_id"]):
        assert lakewright("dead-letters", "retire", *vague).exit_code == 2
    gone = lakewright("dead-letters", "retire", "orders", "--reason", "has_id", "--because", "test data", "--json")
    assert json.loads(gone.stdout) == {"retired": 1, "error": None}
    told = json.loads(lakewright("dead-letters", "list", "--state", "all", "--json").stdout)["dead_letters"]
    assert {(one["dataset"], one["state"], one["note"]) for one in told} == {
        ("orders", "retired", "test data"), ("raw_orders", "corrected", None),
    }  # fmt: skip

    # A dataset may say that nothing comes back: told before anybody is asked, and by the list.
    (folder / "pipelines/shop.py").write_text(PIPELINE.replace('NULL"})]', 'NULL"}, replay="never")]'))
    refused = lakewright("dead-letters", "replay", "orders")
    assert (refused.exit_code, 'orders says replay="never"' in refused.stderr) == (2, True)
    listed = lakewright("dead-letters", "list", "orders")
    assert "orders, has_id: 0 open, 0 corrected, 1 retired, never replayed" in listed.stderr
