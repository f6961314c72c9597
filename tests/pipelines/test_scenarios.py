"""The scenarios of RUNS, section 6, that need neither streams nor services."""

from __future__ import annotations

import pytest

from lakewright.errors import SchemaChangeError
from tests.pipelines.shop import GUARDED, land, made, ok, order, orders_project, rows_of


def two_days(shop):
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 5), order("b", "2026-01-01T11:00:00Z", 7)])
    ok(shop.run(at="2026-01-02"))
    land(shop.folder, "d2.json", [order("c", "2026-01-02T10:00:00Z", 1)])
    ok(shop.run(at="2026-01-03"))


@pytest.fixture
def shop(prepared):
    """A shop with two days of orders, made."""
    return prepared("two guarded days", orders_project(GUARDED), two_days)


def test_a_late_order_is_repaired_where_it_belongs_and_nowhere_else(shop):
    land(shop.folder, "d3.json", [order("late", "2026-01-01T12:00:00Z", 100), order("d", "2026-01-03T01:00:00Z", 2)])
    summary = ok(shop.run(at="2026-01-04"))
    assert made(summary) == {
        ("orders", "arrival-3"),
        ("clean", "2026-01-01"), ("clean", "2026-01-03"),
        ("daily", "2026-01-01"), ("daily", "2026-01-03"),
    }  # fmt: skip
    assert [row["amount"] for row in rows_of(shop, "daily")] == [112, 1, 2]
    late = {
        a.slice_id: a.counters.late
        for a in [shop.store.receipts.live("clean", s) for s in ("2026-01-01", "2026-01-03")]
    }
    assert late == {"2026-01-01": 1, "2026-01-03": 0}


def test_a_backfill_of_the_week_changes_nothing_but_versions(shop):
    before = rows_of(shop, "clean"), rows_of(shop, "daily")
    summary = ok(shop.backfill("2026-01-01", "2026-01-08", at="2026-01-08"))
    assert made(summary) == {(name, day) for name in ("clean", "daily") for day in ("2026-01-01", "2026-01-02")}
    assert (rows_of(shop, "clean"), rows_of(shop, "daily")) == before


def test_a_second_run_finds_everything_fresh_and_commits_nothing(shop):
    versions = {name: shop.lake.log(name).latest() for name in ("orders", "clean", "daily")}
    summary = ok(shop.run(at="2026-01-03"))
    assert not summary.outcomes
    assert set(summary.fresh) == {"orders", "clean", "daily"}
    assert {name: shop.lake.log(name).latest() for name in versions} == versions


def test_again_repeats_and_the_data_stays_the_same(shop):
    before = rows_of(shop, "clean"), rows_of(shop, "daily")
    summary = ok(shop.run(at="2026-01-03", again=True))
    assert made(summary) == {("clean", "2026-01-02"), ("daily", "2026-01-02")}
    assert (rows_of(shop, "clean"), rows_of(shop, "daily")) == before


def test_a_run_by_hand_at_noon_and_the_scheduled_one_take_each_file_once(project):
    shop = project(orders_project())
    land(shop.folder, "morning.json", [order("a", "2026-01-01T08:00:00Z")])
    noon = ok(shop.run(at="2026-01-01T12:00"))
    assert made(noon) == {("orders", "arrival-1")}
    assert [s.status for s in shop.plan(at="2026-01-01T12:00")["clean"].states] == ["waiting"]
    land(shop.folder, "evening.json", [order("b", "2026-01-01T20:00:00Z")])
    midnight = ok(shop.run(at="2026-01-02T00:05"))
    assert made(midnight) == {("orders", "arrival-2"), ("clean", "2026-01-01"), ("daily", "2026-01-01")}
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]
    assert shop.store.receipts.live("clean", "2026-01-01").counters.late == 0


def test_in_the_first_load_of_a_backlog_nothing_is_late(project):
    shop = project(orders_project('late=Repair(within="7 days")'))
    days = ["2026-01-01", "2026-03-01", "2026-06-01"]
    land(shop.folder, "backlog.json", [order(day, f"{day}T10:00:00Z") for day in days])
    summary = ok(shop.run(["+clean"], at="2026-12-31"))
    assert {slice_id for name, slice_id in made(summary) if name == "clean"} == set(days)
    assert all(shop.store.receipts.live("clean", day).counters.late == 0 for day in days)


HISTORY = """
    from lakewright import AsOf, JsonFiles, Merger, Pipeline, Repair, Scd2, join_as_of

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")
    shop.source("customers", JsonFiles("landing/customers"), schema="customer int, country string, since timestamp",
                event_time="since", start="2020-01-01")

    @shop.dataset(writer=Merger(keys=["customer"], history=Scd2(valid_from="since")))
    def customers_history(customers):
        return customers

    @shop.dataset(event_time="at", inputs={"customers_history": AsOf("at")}, rows="preserve", late=Repair("9 days"))
    def located(orders, customers_history):
        versions = customers_history.select("customer", "country", "since", "valid_to")
        return join_as_of(orders, versions, keys=["customer"], at="at", valid_from="since")
"""


def move(shop, file: str, country: str, since: str) -> None:
    """The customer lives in a country since a time."""
    land(shop.folder, file, [{"customer": 1, "country": country, "since": since}], folder="customers")


def countries(shop) -> list[tuple[str, str]]:
    return [(row["order_id"], row["country"]) for row in rows_of(shop, "located")]


def test_a_changed_customer_leaves_yesterday_alone_and_a_backfill_gives_the_country_of_the_time(project):
    shop = project({"pipelines/shop.py": HISTORY})
    move(shop, "c1.json", "FR", since="2025-06-01T00:00:00Z")
    land(shop.folder, "o1.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    move(shop, "c2.json", "PL", since="2026-01-02T06:00:00Z")
    land(shop.folder, "o2.json", [order("b", "2026-01-02T05:00:00Z"), order("c", "2026-01-02T07:00:00Z")])
    summary = ok(shop.run(at="2026-01-03"))
    assert ("located", "2026-01-01") not in made(summary)
    assert countries(shop) == [("a", "FR"), ("b", "FR"), ("c", "PL")]
    ok(shop.backfill("2026-01-01", "2026-01-02", at="2026-01-03"))
    assert countries(shop) == [("a", "FR"), ("b", "FR"), ("c", "PL")]

    # A change of the past makes the slices after it stale, and none before it.
    move(shop, "c3.json", "IT", since="2026-01-02T00:00:00Z")
    summary = ok(shop.run(at="2026-01-03"))
    assert {s for name, s in made(summary) if name == "located"} == {"2026-01-02"}
    assert countries(shop) == [("a", "FR"), ("b", "IT"), ("c", "PL")]

    # One that comes too late is told once, and not looked at again by every run.
    move(shop, "c4.json", "ES", since="2025-06-01T00:00:00Z")
    ok(shop.run(at="2026-02-01"))
    states = shop.plan(at="2026-02-01")["located"].states
    assert [(s.slice.id, s.status, s.make) for s in states] == [
        ("2026-01-01", "held", False),
        ("2026-01-02", "held", False),
    ]
    assert countries(shop) == [("a", "FR"), ("b", "IT"), ("c", "PL")]

    # It corrects a version, and goes on doing so when the one that was wrong is merged again: all later ones follow.
    ok(shop.run(["customers_history"], at="2026-02-01", again=True, slices=["arrival-1"]))
    assert [row["country"] for row in rows_of(shop, "customers_history", "since", "country")] == ["ES", "IT", "PL"]


def test_a_rollback_does_not_come_undone_by_itself_and_a_new_arrival_makes_its_slice_anew(shop):
    shop.rollback("clean")
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]
    summary = ok(shop.run(at="2026-01-03"))
    assert {name for name, _ in made(summary)} <= {"daily"}
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]
    land(shop.folder, "d2-late.json", [order("e", "2026-01-02T23:00:00Z", 9)])
    summary = ok(shop.run(at="2026-01-04"))
    assert ("clean", "2026-01-02") in made(summary)
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b", "c", "e"]


def test_after_a_rollback_run_again_makes_the_slice(shop):
    shop.rollback("clean")
    ok(shop.run(at="2026-01-03", again=True, slices=["2026-01-02"]))
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b", "c"]
    assert [row["orders"] for row in rows_of(shop, "daily")] == [2, 1]


def test_an_edited_query_makes_its_slices_outdated_and_a_backfill_applies_it(shop, project):
    files = orders_project(GUARDED)
    files["pipelines/shop.py"] = files["pipelines/shop.py"].replace(
        "sum(amount) AS amount", "bigint(max(amount)) AS amount"
    )
    edited = project(files)
    plan = edited.plan(at="2026-01-03")
    assert [(s.slice.id, s.status, s.make) for s in plan["daily"].states] == [
        ("2026-01-01", "outdated", False),
        ("2026-01-02", "outdated", False),
    ]
    ok(edited.backfill(outdated=True, at="2026-01-03"))
    assert [row["amount"] for row in rows_of(edited, "daily")] == [7, 1]


def test_where_the_target_says_so_a_run_repeats_what_is_outdated(shop, project):
    (shop.folder / "lakewright.toml").write_text('name = "test"\n[targets.dev]\noutdated = "run"\n')
    files = orders_project(GUARDED)
    files["pipelines/shop.py"] = files["pipelines/shop.py"].replace(
        "sum(amount) AS amount", "bigint(max(amount)) AS amount"
    )
    edited = project(files)
    ok(edited.run(at="2026-01-03"))
    assert [row["amount"] for row in rows_of(edited, "daily")] == [7, 1]


def test_a_gained_column_is_added_and_older_slices_read_null(shop, project):
    files = orders_project(GUARDED)
    files["pipelines/shop.py"] = files["pipelines/shop.py"].replace(
        "count(*) AS orders", "count(*) AS orders, min(at) AS first_at"
    )
    edited = project(files)
    land(edited.folder, "d3.json", [order("d", "2026-01-03T10:00:00Z")])
    ok(edited.run(at="2026-01-04"))
    assert [row["first_at"] is None for row in rows_of(edited, "daily")] == [True, True, False]
    assert {s.status for s in edited.plan(at="2026-01-04")["daily"].states} == {"outdated"}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("count(*) AS orders", "first(1) AS other"), "no longer in the rows"),
        (("count(*) AS orders", "string(count(*)) AS orders"), "is bigint in the table and string"),
    ],
)
def test_a_lost_or_retyped_column_is_refused_before_the_write(shop, project, change, word):
    files = orders_project(GUARDED)
    files["pipelines/shop.py"] = files["pipelines/shop.py"].replace(*change)
    edited = project(files)
    version = edited.lake.log("daily").latest() if edited.graph else None
    summary = edited.backfill(outdated=True, at="2026-01-03")
    assert summary.exit_code == 3
    assert isinstance(summary.errors[0], SchemaChangeError)
    assert word in str(summary.errors[0])
    assert edited.lake.log("daily").latest() == version


def test_a_file_replaced_under_its_name_replaces_its_rows_and_both_days_follow(shop):
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 50), order("x", "2026-01-02T09:00:00Z", 3)])
    summary = ok(shop.run(at="2026-01-03"))
    assert made(summary) >= {("clean", "2026-01-01"), ("clean", "2026-01-02")}
    assert [(r["order_id"], r["amount"]) for r in rows_of(shop, "clean")] == [("a", 50), ("c", 1), ("x", 3)]
    assert [r["amount"] for r in rows_of(shop, "daily")] == [50, 4]
