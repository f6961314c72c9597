"""`run --sample` and `run --empty`: the project is tried out, and the real lake and store stay as they are."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError, InputError, LeaseHeldError, StepFailed
from lakewright.pipelines.project import Project
from lakewright.store import open_store, this_process
from tests.pipelines.shop import GUARDED, land, made, ok, order, orders_project

MORE = """
    shop.source("users", JsonFiles("landing/users"), schema="user_id int, country string, since timestamp",
                event_time="since")

    @shop.dataset(writer=Merger(keys=["user_id"], history=Scd2(valid_from="since")))
    def users_history(users):
        return users

    @shop.dataset(event_time="at", inputs={"users_history": AsOf("at")}, writer=DataOverwrite(empty="fail"),
                  outputs={"unknown": PrivateOutput(writer=DataOverwrite(empty="fail"))})
    def enriched(clean, users_history):
        visitors = clean.withColumnRenamed("customer", "user_id")
        known = join_as_of(visitors, users_history, keys=["user_id"], at="at", valid_from="since")
        return {"enriched": known.where("country IS NOT NULL"), "unknown": known.where("country IS NULL")}

    shop.sql("totals", "SELECT country, count(*) AS orders FROM enriched GROUP BY 1")
"""


def everything(project: Project) -> dict[str, tuple[float, int]]:
    """Every file of the real lake and store, as it is."""
    home = project.folder / ".lakewright"
    places = [home / "lake", *home.glob("store.db*")]
    files = [file for place in places for file in [place, *place.rglob("*")] if file.is_file()]
    return {str(file): (file.stat().st_mtime, file.stat().st_size) for file in files}


def with_more(options: str = GUARDED, *, more: str = MORE) -> dict[str, str]:
    files = orders_project(options)
    return {"pipelines/shop.py": files["pipelines/shop.py"] + more}


def test_a_run_on_no_rows_checks_every_step_before_anything_has_arrived(project):
    shop = project(with_more())
    assert not (shop.folder / "landing").exists()
    summary = ok(shop.run(empty=True, at="2026-01-02"))
    assert made(summary) == {
        ("clean", "2026-01-01"), ("daily", "2026-01-01"), ("users_history", "arrival-1"), ("enriched", "2026-01-01"),
        ("totals", "whole"),
    }  # fmt: skip
    assert [outcome.receipt.rows for outcome in summary.made] == [0] * 5
    assert "a trial on no rows" in summary.notes[-1].message
    assert not (shop.folder / ".lakewright" / "lake").exists()
    assert not (shop.folder / ".lakewright" / "store.db").exists()


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (("FROM clean GROUP BY", "FROM clean WHERE amont > 0 GROUP BY"), StepFailed, ["the SQL of daily", "amont"]),
        (("order_id IS NOT NULL", "ordr_id IS NOT NULL"), StepFailed, ["shop.py:", "clean", "ordr_id"]),
        (('schema="order_id string, at timestamp,', 'schema="order_id string, time timestamp,'), InputError, ["'at'"]),
    ],
)
def test_a_wrong_column_fails_with_the_usual_message(project, wrong, error, words):
    files = with_more(more="")
    shop = project({name: text.replace(*wrong) for name, text in files.items()})
    summary = shop.run(empty=True, at="2026-01-02")
    assert isinstance(summary.errors[0], error)
    assert [word for word in words if word not in str(summary.errors[0])] == []


def test_a_sample_reads_a_part_of_the_real_lake_and_changes_nothing_of_it(project):
    shop = project(with_more(more=""))
    land(shop.folder, "d1.json", [order(str(n), "2026-01-01T10:00:00Z") for n in range(200)])
    ok(shop.run(at="2026-01-02"))
    land(shop.folder, "d2.json", [order("new", "2026-01-02T10:00:00Z")])
    before = everything(shop)
    for _ in range(2):  # a trial begins anew, whatever an earlier one left
        summary = ok(shop.run(sample=0.25, at="2026-01-03"))
        assert made(summary) == {("clean", "2026-01-01"), ("daily", "2026-01-01")}
    clean, daily = sorted(summary.made, key=lambda outcome: outcome.dataset)
    assert 10 < clean.receipt.rows < 190
    assert (clean.receipt.counters.read, daily.receipt.counters.read) == (None, clean.receipt.rows)
    assert "25% of the rows" in summary.notes[-1].message
    assert everything(shop) == before
    assert shop.plan(at="2026-01-03")["orders"].new.startswith("1 new file")

    # A step alone is tried on the real tables above it; on no rows they tell its columns.
    summary = ok(shop.run(["daily"], empty=True, at="2026-01-03"))
    assert made(summary) == {("daily", "2026-01-02")}
    assert everything(shop) == before
    with pytest.raises(ConfigurationError, match="nothing to repeat"):
        shop.run(empty=True, again=True)


def test_a_trial_does_not_pull_the_rug_from_under_another(project):
    shop = project(with_more(more=""))
    place: Path = shop.folder / ".lakewright" / "sample" / "store.db"
    with open_store(f"sqlite:///{place}") as store:
        owner, now = this_process(), shop._now()
        store.leases.register(owner, timedelta(minutes=1), now)
        store.leases.acquire("pipeline:shop", "*", owner_id=owner.owner_id, run_id=None, now=now)
    with pytest.raises(LeaseHeldError, match="Another trial"):
        shop.run(sample=0.5)
    assert place.exists()
