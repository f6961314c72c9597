"""Orders: a run that an orchestrator names goes on, is repeated on purpose, or backfills a time. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakewright import JsonFiles, Pipeline
from lakewright.errors import ConfigurationError, LakewrightError, NotReady
from lakewright.model.runs import Run, RunState, StepState
from lakewright.model.times import Interval, parse_time
from lakewright.patterns.data_flow.isolated_sequencer import After, WhenReady
from lakewright.pipelines.order_times import passed_over, refuse_too_early
from lakewright.pipelines.orders import Order, OrderReason, due_span, fulfil, pipeline_of
from lakewright.pipelines.states import Wish
from lakewright.store import Store, open_store

from .lab import Lab, lab

AT = datetime(2026, 1, 6, tzinfo=UTC)
NAMES = ["raw", "clean", "daily"]
DAYS = ("2026-01-04", "2026-01-05")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


@pytest.fixture
def shop(store: Store) -> Lab:
    visits = Pipeline("visits", start="2026-01-01")
    visits.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")
    visits.sql("clean", "SELECT * FROM raw", layer="silver", event_time="at")
    visits.sql("daily", "SELECT to_date(at) AS at, count(*) AS n FROM clean GROUP BY ALL", event_time="at")
    made = lab(store, visits)
    made.arrive("raw", *DAYS)
    for day in DAYS:
        made.commit("clean", day, {day: 3}, raw=0)
        made.commit("daily", day, {day: 1}, clean=1)
    return made


def ran(shop: Lab, order: Order, state: RunState, wish: Wish | None = None, **steps: dict[str, StepState]) -> None:
    """A run has been there: with what it was asked for, what its steps did, and how it ended."""
    options = {"again": {name: sorted(ids) for name, ids in wish.again.items()}} if wish and wish.again else {}
    run = Run(order.run_id, "visits", AT, order.reason)
    shop.store.runs.start(run, owner_id=None, options=options, now=AT)
    for name, slices in steps.items():
        for slice_id, ended in slices.items():
            told = {"run_id": order.run_id, "dataset": name, "slice_id": slice_id, "outputs": [name]}
            step = shop.store.steps.open(number=1, attempt=1, reason="due", now=AT, **told)  # type: ignore[arg-type]
            shop.store.steps.close(step, ended, now=AT)
    shop.store.runs.finish(order.run_id, state, now=AT)


def asked(shop: Lab, order: Order, at: datetime = AT) -> Wish:
    return fulfil(order, shop.graph, shop.store, NAMES, Wish(at))


def again(shop: Lab, order: Order) -> dict[str, list[str]]:
    return {name: sorted(slices) for name, slices in asked(shop, order).again.items()}


def test_a_retry_goes_on_and_a_repeat_makes_again_what_the_run_made(shop: Lab) -> None:
    order = Order("blog.visits/scheduled__2026-01-06", reason="scheduled")
    assert again(shop, order) == {}
    ran(shop, order, "failed", clean={"2026-01-05": "ok"}, daily={"2026-01-05": "failed"})
    assert again(shop, order) == {}, "the same name goes on"
    ran(shop, order, "ok", daily={"2026-01-05": "recovered"}, raw={"arrival-1": "ok"})
    assert again(shop, order) == {}, "what only its orchestrator took for failed is not made twice"
    made = {"clean": ["2026-01-05"], "daily": ["2026-01-05"], "raw": ["arrival-1"]}
    assert order.made(shop.store) == made, "of all attempts: whoever waits for a dataset is told once the run is good"

    cleared = replace(order, repeat=2)
    assert cleared.run_id == f"{order.run_id}~2"
    assert again(shop, cleared) == {"clean": ["2026-01-05"], "daily": ["2026-01-05"]}, "a source is not read again"


def test_a_repeat_that_did_not_succeed_owes_the_rest(shop: Lab) -> None:
    order = Order("r")
    ran(shop, order, "ok", clean=dict.fromkeys(DAYS, "ok"), daily={DAYS[1]: "ok"})
    first = replace(order, repeat=1)
    wish = asked(shop, first)
    ran(shop, first, "failed", wish, clean={DAYS[0]: "ok", DAYS[1]: "failed"})
    rest = {"clean": [DAYS[1]], "daily": [DAYS[1]]}
    assert again(shop, first) == rest, "its next attempt"
    assert again(shop, replace(order, repeat=4)) == rest, "and the next repeat"
    assert replace(order, repeat=4).made(store=shop.store) == {"clean": [DAYS[0]]}, "of which nobody was told yet"
    ran(shop, first, "ok", asked(shop, first), clean={DAYS[1]: "ok"}, daily={DAYS[1]: "ok"})
    everything = {"clean": [*DAYS], "daily": [DAYS[1]]}
    assert again(shop, replace(order, repeat=4)) == everything, "after a good one it is a repeat of all"
    # One that never was good has nothing to repeat: it goes on.
    other = Order("s")
    ran(shop, other, "lost", clean={DAYS[0]: "ok"})
    assert again(shop, replace(other, repeat=1)) == {}


def test_a_backfill_of_a_time_makes_its_slices_again_once(shop: Lab) -> None:
    order = Order("blog.visits/backfill__2026-01-06", reason="backfill")
    wish = asked(shop, order)
    assert shop.statuses("clean", "2026-01-06", backfill=wish.backfill) == {"2026-01-05": "backfill"}
    ran(shop, order, "failed", clean={"2026-01-05": "ok"}, daily={"2026-01-05": "failed"})
    wish = asked(shop, order)
    assert shop.statuses("clean", "2026-01-06", backfill=wish.backfill, made=wish.made) == {}, "it is made already"
    assert shop.statuses("daily", "2026-01-06", backfill=wish.backfill, made=wish.made) == {"2026-01-05": "backfill"}


@pytest.mark.parametrize(
    ("schedule", "timezone", "grid", "at", "span"),
    [
        ("@daily", None, None, "2026-01-06", ("2026-01-05", "2026-01-06")),
        ("@hourly", None, None, "2026-01-06T07:00", ("2026-01-06T06:00", "2026-01-06T07:00")),
        ("@hourly", None, "day", "2026-01-06T07:00", None),
        ("@hourly", None, "day", "2026-01-06T00:00", ("2026-01-05", "2026-01-06")),
        ("0 6 * * *", "Europe/Warsaw", None, "2026-01-06T05:00", ("2026-01-05", "2026-01-06")),
        ("0 0 * * 1", None, None, "2026-01-12", ("2026-01-05", "2026-01-12")),
        ("@monthly", None, None, "2026-02-01", ("2026-01-01", "2026-02-01")),
        # By hand, at no time of the schedule: what has ended since the last one.
        ("@daily", None, None, "2026-01-06T11:30", None),
    ],
)
def test_the_slices_of_a_time_are_those_that_ended_since_the_one_before(
    schedule: str, timezone: str | None, grid: str | None, at: str, span: tuple[str, str] | None
) -> None:
    settings = Pipeline("visits", schedule=schedule, timezone=timezone, grid=grid).settings  # type: ignore[arg-type]
    found = due_span(settings, parse_time(at), settings.grid)
    assert (None if found is None else (found.start, found.end)) == (span and tuple(map(parse_time, span)))


def test_wrong_orders_are_refused(shop: Lab) -> None:
    for wrong in ({"name": "a'b"}, {"name": ""}, {"name": "a", "repeat": -1}, {"name": "a", "reason": "late"}):
        with pytest.raises(ConfigurationError):
            Order(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="daily is left out"):
        pipeline_of(Order("a", reason="scheduled"), shop.graph, ["raw", "clean"])
    assert pipeline_of(Order("a", reason="part"), shop.graph, ["raw", "clean"]).pipeline == "visits"
    with pytest.raises(ConfigurationError, match="has no schedule of times"):
        due_span(Pipeline("by_hand", schedule=None).settings, AT, "day")


def test_a_time_waits_for_what_its_pipeline_waits_for(store: Store, tmp_path: Path) -> None:
    flag = WhenReady("visits", flag="ready/{slice}", within="2 hours")
    settings = Pipeline("figures", schedule="@daily", waits_for=flag).settings

    def ask(reason: OrderReason, now: datetime = AT) -> None:
        refuse_too_early(Order("a", reason=reason), settings, store, AT, folder=tmp_path, now=now)

    ask("manual")
    for reason in ("scheduled", "part", "backfill"):
        with pytest.raises(NotReady, match="visits of 2026-01-05 is not ready"):
            ask(reason)  # type: ignore[arg-type]
    with pytest.raises(LakewrightError, match="within 2 hours") as overdue:
        ask("scheduled", AT + timedelta(hours=3))
    assert overdue.value.exit_code == 1, "it is tried again"
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / "2026-01-05").touch()
    ask("scheduled")


def test_a_pipeline_that_follows_another_once_a_day_passes_the_other_times_over(store: Store) -> None:
    loader = Pipeline("loader", schedule="@hourly")
    loader.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")
    daily = Pipeline("daily", schedule=After("loader", every="day"))
    daily.sql("figures", "SELECT * FROM raw", event_time="at")
    graph = lab(store, loader, daily).graph
    order = Order("blog.daily/scheduled__07", reason="scheduled")
    why = passed_over(order, daily.settings, graph, store, AT.replace(hour=7), now=AT)
    assert why == "daily: 2026-01-06 07:00 is skipped: loader is followed once for each day."
    known = store.runs.get(order.run_id)
    assert known is not None
    assert known.state == "skipped"
    first = Order("blog.daily/scheduled__00", reason="scheduled")
    assert passed_over(first, daily.settings, graph, store, AT, now=AT) is None
    # Its slices belong to the times of the pipeline that it follows.
    wish = fulfil(Order("b", reason="backfill"), graph, store, ["figures"], Wish(AT))
    assert wish.backfill == Interval(AT - timedelta(days=1), AT)
