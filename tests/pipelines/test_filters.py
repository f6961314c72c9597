"""Filters of a pipeline: counted before the write, told by its commit, replaced with their slice."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row
from typer.testing import CliRunner

from lakewright import FilterInterceptor, JsonFiles, Pipeline
from lakewright.cli.main import app
from lakewright.errors import DefinitionError
from lakewright.model.identity import Identity
from lakewright.model.receipts import Counters, Filtered, Receipt
from lakewright.model.slices import Slice
from lakewright.pipelines.accounts import accounts_of
from lakewright.pipelines.filtering import count_filters, filter_history, filter_warnings
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.settle import not_preserved
from lakewright.store import open_store
from lakewright.testing.connect import engine_of
from tests.pipelines.shop import land, ok, order, orders_project, rows_of
from tests.pipelines.streaming import send, visit, visits_project

FILTERED = """
    rows="preserve",
    guards_in={"orders": [DeadLetter(rules={"has_customer": "customer IS NOT NULL"}, warn_above_rows=0),
                          FilterInterceptor(
                              filters={"has_id": "order_id IS NOT NULL", "worth_it": "amount > {least}"},
                              overlaps=True, warn_above=0.5, stop_above={"has_id": 0.6}),
                          WindowedDeduplicator(keys=["order_id"])]},
"""


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def filtered_project(least: int = 0) -> dict[str, str]:
    files = orders_project(FILTERED.replace("{least}", str(least)))
    return {name: text.replace("Fail,", "Fail, FilterInterceptor,") for name, text in files.items()}


def day(number: int, *amounts: int) -> list[dict[str, object]]:
    return [order(f"o{number}-{i}", f"2026-01-0{number}T10:00:00Z", amount) for i, amount in enumerate(amounts)]


@pytest.mark.shows("03.filter-interceptor", 4)
@pytest.mark.shows("03.filter-interceptor", 6)
def test_a_release_that_breaks_a_filter_is_named_and_a_repeat_replaces_its_figures(project, failing):
    shop = project(filtered_project())
    first = [*day(1, 5, 7, 9, 0), order(None, "2026-01-01T11:00:00Z", 0), *day(1, 5)]
    first += [order("lost", "2026-01-01T12:00:00Z", 5, customer=None)]
    land(shop.folder, "1.json", first)
    ok(shop.run(["orders"], at="2026-01-02"))
    failing("published")  # the commit is there, the receipt is not: it is found in the log, and counted once
    assert shop.run(["clean"], at="2026-01-02").state == "failed"
    ok(shop.run(at="2026-01-02"))

    account = accounts_of(shop.store, "clean")[0]
    assert (account.read, account.kept, account.duplicates) == (7, 3, 1)
    assert account.rejected == {"has_customer": 1}
    assert account.filtered == {"has_id": 1, "worth_it": 1}
    assert account.balanced
    before = filter_history(shop.store, "clean")[0]
    assert before.filtered.judged == 6
    assert before.filtered.breaks == {"has_id": 1, "worth_it": 2}
    (told,) = shop.store.findings.latest("clean")
    assert (told.subject, told.slice_id) == ("dead letters", "2026-01-01")
    assert told.message.startswith("1 of 7 rows (14.3%) of slice 2026-01-01 are dead letters (has_customer 1)")

    # A release sets the limit too high: the report names the filter, and what it removed before.
    shop = project(filtered_project(least=8))
    ok(shop.run(["clean"], at="2026-01-02", again=True))
    dead, told = shop.store.findings.latest("clean")[:2]
    assert (dead.subject, dead.slice_id) == ("dead letters", "2026-01-01")
    assert (told.subject, told.severity, told.slice_id) == ("filter", "warning", "2026-01-01")
    assert "'worth_it' removed 66.7% of 6 rows in slice 2026-01-01 (16.7% before), more than 50.0%" in told.message
    (now,) = filter_history(shop.store, "clean")
    assert now.filtered.removed == {"has_id": 1, "worth_it": 4}
    assert (now.run_id, now.job_version) != (before.run_id, before.job_version)
    assert now.job_version != before.job_version

    # A share above the other limit publishes nothing.
    land(shop.folder, "2.json", [order(None, "2026-01-02T10:00:00Z", 9)] * 2 + day(2, 9))
    refused = shop.run(["+clean"], at="2026-01-03")
    assert "the filter 'has_id' removed 2 of 3 rows (66.7%), more than the limit of 60.0%" in str(refused.errors[0])
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["o1-2"]


def counted(judged: int, sample: float = 1.0, **removed: int) -> Any:
    """The tally of a guard, and what its job finds."""
    row = Row(read=judged, **{f"first:{name}": rows for name, rows in removed.items()})
    return SimpleNamespace(totals=SimpleNamespace(first=lambda: row), sample=sample, stop_above={})


def test_windows_are_whole_however_many_receipts_lie_in_them(store, monkeypatch):
    monkeypatch.setattr("lakewright.store.receipts._PAGE", 3)
    counters = Counters(filtered=Filtered(2, {"has_n": 1}))
    for place in range(6):  # one on the first day, five on the second; and between them what makes no figures
        at = datetime(2026, 1, 1 if place == 0 else 2, place, tzinfo=UTC)
        told = Receipt("busy", f"arrival-{place}", "data", 2 * place, None, place, at, counters=counters)
        store.receipts.add([told, replace(told, kind="maintenance", version=2 * place + 1)])
    days = filter_history(store, "busy", window=timedelta(days=1))
    assert [(one.start.day, one.filtered.judged) for one in days] == [(2, 10), (1, 2)]
    (newest,) = filter_history(store, "busy", window=timedelta(days=1), limit=1)
    assert newest == days[0]
    assert [one.slice_id for one in filter_history(store, "busy", limit=4)] == [f"arrival-{n}" for n in (5, 4, 3, 2)]


def test_the_figures_of_several_filters_add_up_and_those_of_another_input_stay_apart(store):
    guarded: Any = SimpleNamespace(guards=("some",), dataset="app")
    other: Any = SimpleNamespace(guards=("some",), dataset="web")
    shop = Pipeline("shop", start="2026-01-01")
    for name in ("app", "web"):
        shop.source(name, JsonFiles(name), schema="at timestamp, n int", event_time="at")
    most, least = (FilterInterceptor({name: "n > 0"}, warn_above=0.3) for name in ("has_n", "worth_it"))
    guards = {"app": [most, least], "web": [FilterInterceptor({"has_n": "n > 0"}, warn_above=0.2)]}
    shop.add(lambda app, web: app.union(web), name="both", event_time="at", rows="preserve", guards_in=guards)
    (dataset,) = [one for one in Graph(shop.datasets).datasets.values() if one.name == "both"]
    current: Any = SimpleNamespace(told={}, dataset=dataset, slice=Slice.parse("2026-01-01"))
    frames: list[Any] = [
        SimpleNamespace(given=guarded, tallies=(counted(10, has_n=2), counted(8, worth_it=1))),
        SimpleNamespace(given=other, tallies=(counted(4, has_n=1),)),
    ]
    count_filters(current, frames)
    identity = Identity("both", "2026-01-01", 1, "run", details=current.told)
    told = Counters(read=10, written=7, filtered=identity.filtered, filtered_by_input=identity.filtered_by_input)
    assert told.filtered == Filtered(10, {"has_n": 2, "worth_it": 1})
    assert not_preserved(dataset, told) is None
    assert not_preserved(dataset, replace(told, written=8)) == 7

    # The store tells them again, and a warning compares each filter with its own input's rows.
    receipt = Receipt("both", "2026-01-01", "data", 0, None, 1, datetime(2026, 1, 2, tzinfo=UTC), counters=told)
    store.receipts.add([receipt])
    (known,) = filter_history(store, "both")
    assert known.by_input == {"web": Filtered(4, {"has_n": 1})}
    (by_window,) = filter_history(store, "both", window=timedelta(days=1))
    assert (by_window.filtered, by_window.by_input) == (known.filtered, known.by_input)
    (warning,) = filter_warnings(store, dataset, receipt)
    assert "'has_n' removed 25.0% of 4 rows of web in slice 2026-01-01, more than 20.0%" in warning.message

    for second, words in (
        (FilterInterceptor({"has_n": "n > 1"}), "two filters 'has_n' on app"),
        (FilterInterceptor({"few": "n > 1"}, sample=0), "count different samples"),
    ):
        wrong = Pipeline("wrong", start="2026-01-01")
        wrong.source("app", JsonFiles("app"), schema="at timestamp, n int", event_time="at")
        wrong.add(lambda app: app, name="both", event_time="at", guards_in={"app": [most, second]})
        with pytest.raises(DefinitionError, match=words):
            Graph(wrong.datasets)


@pytest.mark.shows("03.filter-interceptor", 7)
def test_a_filter_that_cannot_be_computed_names_itself_and_the_row(project):
    rules = (
        'guards_in={"orders": [FilterInterceptor(filters={"fine": "amount > 0", "even": "100 DIV (amount - 3) > 0"})]}'
    )
    files = {name: text.replace("Fail,", "Fail, FilterInterceptor,") for name, text in orders_project(rules).items()}
    shop = project(files)
    land(shop.folder, "1.json", day(1, 1, 3, 5, 7))
    (error,) = shop.run(["+clean"], at="2026-01-02").errors
    assert "clean, slice 2026-01-01: the filter 'even' cannot be computed for the row order_id='o1-1'" in str(error)
    assert "_lw_file='1.json'" in str(error)
    assert "Nothing was written." in str(error)

    shop = project({name: text.replace("amount > 0", "amuont > 0") for name, text in files.items()})
    (error,) = shop.run(["clean"], at="2026-01-02").errors
    assert "the filter 'fine' does not fit" in str(error)
    assert error.hint == "The input has order_id, at, customer, amount."
    assert not shop.lake.log("clean").exists()


@pytest.mark.parametrize("share", [0, 0.5])
def test_a_sample_changes_what_is_counted_and_never_which_rows_are_kept(project, share):
    rules = f"""rows="preserve", guards_in={{"orders": [
        FilterInterceptor(filters={{"has_id": "order_id IS NOT NULL"}}, sample={share})]}}"""
    files = {name: text.replace("Fail,", "Fail, FilterInterceptor,") for name, text in orders_project(rules).items()}
    shop = project(files)
    lost = [order(None, "2026-01-01T11:00:00Z", n) for n in range(60)]
    land(shop.folder, "1.json", [*day(1, *range(140)), *lost])
    ok(shop.run(["+clean"], at="2026-01-02"))
    assert len(rows_of(shop, "clean")) == 140
    counters = shop.store.receipts.live("clean", "2026-01-01").counters
    assert (counters.read, counters.written) == (200, 140)
    if share == 0:
        assert counters.filtered is None
        assert filter_history(shop.store, "clean") == []
        return
    assert (counters.filtered.sample, counters.filtered.rows) == (0.5, None)
    assert 60 < counters.filtered.judged < 140
    assert 0 < counters.filtered.removed["has_id"] < 60


STREAMED = """
    from lakewright import FilterInterceptor

    @visits.dataset(mode="stream", event_time="at",
                    guards_in={"raw": [FilterInterceptor(filters={"has_page": "page IS NOT NULL"}, warn_above=0.9)]})
    def paged(raw):
        '''Visits of a page.'''
        return raw
"""


@pytest.mark.shows("03.filter-interceptor", 5)
def test_each_window_of_a_stream_has_its_own_counts_and_a_repeated_batch_adds_none(project, kafka, failing, request):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(2, page=None), visit(3)])
    shop = project(visits_project(kafka, topic, STREAMED))
    ok(shop.run(["raw"], at="2026-01-03"))  # by itself, so that what fails below is the stream with the filter
    if engine_of(request.config) == "classic":  # over Connect a micro-batch runs on the server, out of reach
        # Counted and not committed; committed, and repeated by Spark; committed, and without its receipt.
        for place in ("set_aside", "filters_counted", "batch_done", "before_receipt"):
            failing(place)
            assert shop.run(["paged"], at="2026-01-03").state == "failed", place
    ok(shop.run(["paged"], at="2026-01-03"))
    ok(shop.run(["raw", "paged"], at="2026-01-03"))
    assert [row["id"] for row in rows_of(shop, "paged")] == ["v1", "v3"]
    (window,) = filter_history(shop.store, "paged")
    assert (window.filtered.judged, window.filtered.removed) == (3, {"has_page": 1})

    send(kafka, topic, [visit(4, page=None), visit(5, page=None)])
    ok(shop.run(["raw", "paged"], at="2026-01-03"))
    assert [one.filtered.removed["has_page"] for one in filter_history(shop.store, "paged")] == [2, 1]
    assert "'has_page' removed 100.0% of 2 rows" in shop.store.findings.latest("paged")[0].message

    windows = filter_history(shop.store, "paged", window=timedelta(milliseconds=1))
    assert [(one.filtered.judged, one.filtered.removed["has_page"]) for one in windows] == [(2, 2), (3, 1)]
    assert windows[1].end <= windows[0].start
    typed = ["filters", "paged", "--window", "100000 days", "--json", "--project", str(shop.folder)]
    shown = json.loads(CliRunner().invoke(app, typed).stdout)
    assert [(one["judged"], one["removed"]) for one in shown["windows"]] == [(5, {"has_page": 3})]
    assert shown["windows"][0]["start"] < shown["windows"][0]["end"]
