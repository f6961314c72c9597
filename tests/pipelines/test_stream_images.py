"""A stream below a merged table: what an update took away goes, what it brought comes, by the step's own keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakewright.errors import InputError
from tests.pipelines.shop import land, ok, order, rows_of

PIPELINE = """
    from lakewright import DeadLetter, JsonFiles, Merger, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(writer=Merger(keys=["order_id"]))
    def current(orders):
        return orders.select("order_id", "customer", "amount")

    @shop.dataset(mode="stream", writer=Merger(keys=["place"]),
                  guards_in={"current": [DeadLetter(rules={"is_paid": "amount > 0"})]})
    def placed(current):
        '''A key of the step's own: it changes with the customer.'''
        return current.selectExpr("concat(customer, '/', order_id) AS place", "amount")

    @shop.dataset(mode="stream", writer=Merger(keys=["order_id"]))
    def followed(current):
        return current
"""
TIME = "2026-01-01T10:00:00Z"


def truth(orders: dict[str, tuple[int, int]]) -> list[tuple[str, int]]:
    return sorted((f"{customer}/{name}", amount) for name, (customer, amount) in orders.items() if amount > 0)


@pytest.mark.parametrize("versions", ["one by one", "at once"])
def test_updates_of_a_merged_table_reach_a_stream_below_it_also_where_they_change_its_key(
    project: Any, versions: str
) -> None:
    shop = project({"pipelines/shop.py": PIPELINE})
    orders: dict[str, tuple[int, int]] = {}

    def bring(name: str, **changed: tuple[int, int]) -> None:
        rows = [order(key, TIME, amount, customer) for key, (customer, amount) in changed.items()]
        land(shop.folder, f"{name}.json", rows)
        orders.update(changed)
        ok(shop.run(["orders", "current"], at="2026-01-02"))
        if versions == "one by one":
            agree()

    def agree() -> None:
        ok(shop.run(["placed", "followed"], at="2026-01-02"))
        assert [tuple(row) for row in rows_of(shop, "placed", "place", "amount")] == truth(orders)
        followed = {row["order_id"]: (row["customer"], row["amount"]) for row in rows_of(shop, "followed")}
        assert followed == orders
        # Each row that is there and breaks a rule has one letter, and no other row has any.
        records = shop.sql("SELECT record FROM dead_letters WHERE dataset = 'placed'").collect()
        unpaid = sorted(name for name, (_, amount) in orders.items() if amount == 0)
        assert sorted(json.loads(row["record"])["order_id"] for row in records) == unpaid

    bring("first", a=(1, 10), b=(1, 20), c=(2, 0), d=(2, 40), f=(6, 0))
    agree()
    bring("amounts", a=(1, 11), b=(1, 21))  # the key of the step stays
    bring("customers", b=(3, 21), c=(3, 31))  # it changes: the old row goes, also where the amount changes with it
    bring("back", b=(1, 22), e=(4, 50))  # and comes back, in a later version
    bring("empty", d=(2, 0), a=(1, 0))  # the step leaves them out from now on
    bring("again", d=(5, 41))
    agree()
    ok(shop.run(["current"], at="2026-01-02", again=True))  # rows that stay as they are may be told as changes as well
    agree()
    assert truth(orders) == [("1/b", 22), ("3/c", 31), ("4/e", 50), ("5/d", 41)]


CHANGES = """
    from lakewright import HorizontalPartitioner, JsonFiles, Merger, Pipeline
    from pathlib import Path

    LOOK = Path(__file__).with_name("look")
    shop = Pipeline("shop")
    shop.source("changes", JsonFiles("landing/changes"), schema="id int, seq int, gone boolean")

    def step(changes):
        '''As somebody changed the code meanwhile.'''
        look = LOOK.read_text() if LOOK.exists() else "*"
        return changes.selectExpr(*look.split(";"))

    shop.add(step, name="hard", mode="stream", writer=Merger(keys=["id"], sequence="seq", deleted="gone"),
             layout=HorizontalPartitioner(by=["id"]))
    shop.add(step, name="soft", mode="stream",
             writer=Merger(keys=["id"], sequence="seq", deleted="gone", delete="soft"))
    shop.add(step, name="unordered", mode="stream", writer=Merger(keys=["id"], deleted="gone"))
"""


@pytest.mark.shows("04.merger", 2, 3, 6)
def test_a_stream_orders_flags_refuses_and_lays_out_changes_as_a_batch_does(project: Any) -> None:
    shop = project({"pipelines/shop.py": CHANGES})

    def bring(name: str, *changes: tuple[int, int, bool | None]) -> None:
        rows = [dict(zip(("id", "seq", "gone"), change, strict=True)) for change in changes]
        land(shop.folder, f"{name}.json", rows, folder="changes")

    def held(name: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in rows_of(shop, name, "id", "seq", "gone")]

    # Of one arrival the last by `sequence` counts, in whatever order the rows come; a flag of NULL is none.
    bring("a", (1, 6, True), (1, 5, False), (2, 2, None), (2, 1, True), (3, 1, False))
    refused = shop.run(at="2026-01-02").errors
    assert [type(error) for error in refused] == [InputError]
    assert "several changes have the same key (id): (id=" in str(refused[0])
    assert not shop.lake.log("unordered").exists()
    assert held("hard") == held("soft") == [(2, 2, False), (3, 1, False)]
    assert shop.lake.log("hard").partition_columns() == ("id",)
    bring("b", (2, 3, True), (4, 1, True))
    (shop.folder / "pipelines" / "look").write_text("*;1 AS gained")
    ok(shop.run(["changes", "hard", "soft"], at="2026-01-02"))
    assert held("hard") == [(3, 1, False)]
    assert held("soft") == [(2, 3, True), (3, 1, False)], "what was never there is not marked"
    assert [row["gained"] for row in rows_of(shop, "soft")] == [1, None]
