"""Data Overwrite as the writer of a dataset: an empty result may be meant, or be the sign of a broken input."""

from __future__ import annotations

import pytest

from lakewright.errors import DefinitionError, InputError
from tests.pipelines.shop import land, made, ok, order, rows_of

PIPELINE = """
    from lakewright import DataOverwrite, JsonFiles, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at", writer=DataOverwrite(empty="EMPTY"))
    def paid(orders):
        return orders.where("amount > 0").select("order_id", "at", "amount")

    @shop.dataset(event_time="at")
    def below(paid):
        return paid
"""


def delivered(shop, amount: int) -> None:
    """The day's file, corrected once more."""
    land(shop.folder, "day.json", [order("a", "2026-01-01T10:00:00Z", amount)])


def amounts(shop, name: str) -> list[int]:
    return [row["amount"] for row in rows_of(shop, name)]


@pytest.mark.shows("04.data-overwrite", 7)
def test_an_empty_result_is_refused_the_data_stay_and_a_later_run_goes_on(project):
    shop = project({"pipelines/shop.py": PIPELINE.replace("EMPTY", "fail")})
    delivered(shop, 5)
    ok(shop.run(at="2026-01-02"))
    before = shop.lake.log("paid").latest()

    delivered(shop, 0)
    for _ in range(2):  # and it stays refused
        refused = shop.run(at="2026-01-02")
        assert (refused.state, refused.exit_code) == ("refused", 3)
        (error,) = refused.errors
        assert isinstance(error, InputError)
        assert "paid, slice 2026-01-01" in error.message
        assert (shop.lake.log("paid").latest(), amounts(shop, "paid"), amounts(shop, "below")) == (before, [5], [5])

    delivered(shop, 70)
    assert {("paid", "2026-01-01"), ("below", "2026-01-01")} <= made(ok(shop.run(at="2026-01-02")))
    assert (amounts(shop, "paid"), amounts(shop, "below")) == ([70], [70])


def test_without_the_option_an_empty_result_replaces_the_slice(project):
    shop = project({"pipelines/shop.py": PIPELINE.replace("EMPTY", "allow")})
    for amount in (5, 0):
        delivered(shop, amount)
        ok(shop.run(at="2026-01-02"))
    assert (amounts(shop, "paid"), amounts(shop, "below")) == ([], [])


def test_a_wrong_word_is_refused_when_the_file_is_loaded(project):
    with pytest.raises(DefinitionError, match="'allow' or 'fail', not 'maybe'"):
        project({"pipelines/shop.py": PIPELINE.replace("EMPTY", "maybe")}).graph  # noqa: B018
