"""A stream below a merged table: what an update took away goes, what it brought comes, by the step's own keys."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipelines.shop import land, ok, order, rows_of

PIPELINE = """
    from lakewright import JsonFiles, Merger, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(writer=Merger(keys=["order_id"]))
    def current(orders):
        return orders.select("order_id", "customer", "amount")

    @shop.dataset(mode="stream", writer=Merger(keys=["place"]))
    def placed(current):
        '''A key of the step's own: it changes with the customer.'''
        return current.where("amount > 0").selectExpr("concat(customer, '/', order_id) AS place", "amount")

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

    bring("first", a=(1, 10), b=(1, 20), c=(2, 30), d=(2, 40))
    agree()
    bring("amounts", a=(1, 11), b=(1, 21))  # the key of the step stays
    bring("customers", b=(3, 21), c=(3, 31))  # it changes: the old row goes, also where the amount changes with it
    bring("back", b=(1, 22), e=(4, 50))  # and comes back, in a later version
    bring("empty", d=(2, 0), a=(1, 0))  # the step leaves them out from now on
    bring("again", d=(5, 41))
    agree()
    assert truth(orders) == [("1/b", 22), ("3/c", 31), ("4/e", 50), ("5/d", 41)]
