"""Which branch of a choice makes a slice. Declarations, receipts and parameters decide: nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakewright.connectors.files import JsonFiles
from lakewright.errors import ConfigurationError, DefinitionError, StepFailed, UnknownNameError
from lakewright.model.ddl import schema_from_ddl
from lakewright.model.parameters import Parameter, parse_parameters
from lakewright.model.runs import Run
from lakewright.model.times import Interval, parse_time
from lakewright.patterns.data_flow.exclusive_choice import (
    ByDate,
    ByMetadata,
    ByParameter,
    BySchema,
    ChoiceFacts,
    Condition,
    ExclusiveChoice,
)
from lakewright.pipelines.choosing import choice_warnings, new_skips
from lakewright.pipelines.decide import Decider, SliceState, Wish
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.rules import rules_of
from lakewright.pipelines.run_parameters import checked_parameters
from lakewright.store import Store, open_store
from tests.pipelines.lab import LOOKED_AT, Lab, lab

BRANCHES = {"old": "old_totals", "new": "new_totals"}
BY_DATE = ByDate("2026-01-02", before="old", after="new")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def totals(by: Condition, *, event_time: str | None = "at", **options: Any) -> Pipeline:
    """A source, two branches of it, and what reads both."""
    shop = Pipeline("shop", start="2026-01-01", **options)
    shop.source("raw", JsonFiles("landing"), schema="at timestamp, type string", event_time="at")

    def step(raw):  # type: ignore[no-untyped-def]
        return raw

    for name in BRANCHES.values():
        shop.add(step, name=name, event_time=event_time)

    def merged(old_totals, new_totals):  # type: ignore[no-untyped-def]
        return old_totals.unionByName(new_totals)

    shop.add(merged, event_time=event_time)
    shop.choose("migration", ExclusiveChoice(by=by, branches=BRANCHES))
    return shop


def record_skips(bench: Lab, name: str, at: str, **wish: Any) -> None:
    """What a run does with the slices of a branch that was not chosen."""
    decider = Decider(bench.graph, bench.store, dict.fromkeys(bench.graph.datasets, "code"))
    for state in new_skips(bench.store, decider.decide(name, Wish(parse_time(at), **wish))):
        bench.store.steps.leave_out(
            run_id="r", dataset=name, slice_id=state.slice.id, reason=f"skipped: {state.reason}", now=LOOKED_AT
        )


def test_the_day_decides_and_the_boundary_belongs_to_the_new_branch(store: Store) -> None:
    bench = lab(store, totals(BY_DATE))
    bench.arrive("raw", "2026-01-01", "2026-01-02", "2026-01-03")
    at = "2026-01-04"
    assert bench.statuses("old_totals", at) == {
        "2026-01-01": "missing", "2026-01-02": "skipped", "2026-01-03": "skipped",
    }  # fmt: skip
    assert bench.statuses("new_totals", at) == {"2026-01-01": "skipped", "2026-01-02": "due", "2026-01-03": "due"}
    state = bench.states("old_totals", at)["2026-01-02"]
    assert (state.make, state.reason) == (False, "migration chose new: 2026-01-02 is not before 2026-01-02")
    assert bench.states("new_totals", at)["2026-01-02"].reason == (
        "raw has rows for it and it was never made; migration chose new: 2026-01-02 is not before 2026-01-02"
    )


def test_a_skip_is_recorded_once_and_nobody_waits_for_it(store: Store) -> None:
    shop = totals(BY_DATE)

    def monthly(old_totals):  # type: ignore[no-untyped-def]
        return old_totals

    shop.add(monthly, event_time="at", grid="month")
    bench = lab(store, shop)
    bench.arrive("raw", "2026-01-01", "2026-01-03")
    bench.commit("old_totals", "2026-01-01", {"2026-01-01": 1}, raw=0)
    assert bench.statuses("monthly", "2026-02-02") == {"2026-01": "waiting"}
    record_skips(bench, "old_totals", "2026-02-02")
    assert bench.statuses("monthly", "2026-02-02") == {"2026-01": "due"}
    assert list(store.steps.left_out("old_totals")) == ["2026-01-03"]
    record_skips(bench, "old_totals", "2026-02-02")
    assert len(store.steps.of_run("r")) == 1


def test_two_pipelines_with_an_end_and_a_start_share_the_days_without_a_condition(store: Store) -> None:
    """The other way to follow one of two branches: each pipeline has its own stretch of event time."""
    raw = Pipeline("raw", start="2026-01-01")
    raw.source("visits", JsonFiles("landing"), schema="at timestamp", event_time="at")
    old = Pipeline("old", start="2026-01-01", end="2026-01-02")
    old.sql("old_totals", "SELECT * FROM visits", event_time="at")
    old.sql("monthly", "SELECT * FROM old_totals", event_time="at", grid="month")
    new = Pipeline("new", start="2026-01-02")
    new.sql("new_totals", "SELECT * FROM visits", event_time="at", expect_within="1 hour")
    bench = lab(store, raw, old, new)
    bench.arrive("visits", "2026-01-01", "2026-01-02")
    assert bench.statuses("old_totals", "2026-01-04") == {"2026-01-01": "missing"}
    assert bench.statuses("new_totals", "2026-01-04T02:00") == {
        "2026-01-02": "missing", "2026-01-03": "overdue", "2026-01-04": "waiting",
    }  # fmt: skip

    # Nobody waits for days that it leaves to others; a backfill leaves them too, and late rows of its own come in.
    bench.commit("old_totals", "2026-01-01", {"2026-01-01": 1}, visits=0)
    assert bench.statuses("monthly", "2026-02-02") == {"2026-01": "due"}
    span = Interval(parse_time("2026-01-01"), parse_time("2026-02-01"))
    assert bench.statuses("old_totals", "2026-01-04", backfill=span) == {"2026-01-01": "backfill"}
    bench.arrive("visits", "2026-01-01", "2026-01-03")
    assert bench.statuses("old_totals", "2026-01-04") == {"2026-01-01": "late"}
    with pytest.raises(DefinitionError, match="it would never make anything"):
        Pipeline("none", start="2026-01-02", end="2026-01-02")


def test_an_arrival_keeps_the_time_of_the_run_that_it_came_with(store: Store) -> None:
    bench = lab(store, totals(BY_DATE, event_time=None))
    for number, at in ((1, "2026-01-01"), (2, "2026-01-02")):
        store.runs.start(Run(f"r{number}", "shop", parse_time(at)), owner_id=None, options={}, now=LOOKED_AT)
        store.arrivals.record("raw", window={}, run_id=f"r{number}", now=LOOKED_AT)
        bench.commit("raw", f"arrival-{number}", {at: 1})
    assert bench.statuses("old_totals", "2026-03-01") == {"arrival-1": "due", "arrival-2": "skipped"}
    assert bench.statuses("new_totals", "2026-03-01") == {"arrival-1": "skipped", "arrival-2": "due"}


WIDE = BySchema("raw", {"old": lambda schema: len(schema) < 3, "new": lambda schema: len(schema) >= 3})


def decided(bench: Lab, name: str, columns: str, **wish: Any) -> dict[str, SliceState]:
    schema = schema_from_ddl(columns)
    codes = dict.fromkeys(bench.graph.datasets, "code")
    decider = Decider(bench.graph, bench.store, codes, lambda name, version: schema)
    plan = decider.decide(name, Wish(parse_time("2026-01-04"), **wish))
    return {state.slice.id: state for state in plan.states}


def test_what_was_made_keeps_its_branch_though_the_columns_have_changed(store: Store) -> None:
    bench = lab(store, totals(WIDE))
    bench.arrive("raw", "2026-01-01")
    assert decided(bench, "old_totals", "a int, b int")["2026-01-01"].reason.endswith(
        "migration chose old: raw has 2 columns (a, b)"
    )
    bench.commit("old_totals", "2026-01-01", {"2026-01-01": 1}, raw=0)
    bench.arrive("raw", "2026-01-01", "2026-01-02")
    three = "a int, b int, c int"
    late = decided(bench, "old_totals", three)["2026-01-01"]
    assert (late.status, late.make) == ("late", True)
    assert late.reason.endswith("migration chose old: it has made this slice before")
    assert decided(bench, "new_totals", three)["2026-01-01"].status == "skipped"
    assert decided(bench, "new_totals", three)["2026-01-02"].make


def test_a_parameter_decides_until_a_branch_has_made_the_slice_and_then_only_if_it_is_given(store: Store) -> None:
    by = ByParameter("layout", {"legacy": "old", "current": "new"})
    bench = lab(store, totals(by, parameters={"layout": Parameter(("legacy", "current"), default="current")}))
    bench.arrive("raw", "2026-01-01")
    assert bench.statuses("new_totals", "2026-01-02") == {"2026-01-01": "due"}
    legacy = {"parameters": {"layout": "legacy"}}
    assert bench.statuses("new_totals", "2026-01-02", **legacy) == {"2026-01-01": "skipped"}
    assert bench.states("old_totals", "2026-01-02", **legacy)["2026-01-01"].reason.endswith(
        "migration chose old: layout = legacy"
    )
    bench.commit("old_totals", "2026-01-01", {"2026-01-01": 1}, raw=0)
    assert bench.statuses("new_totals", "2026-01-02") == {"2026-01-01": "skipped"}
    assert bench.statuses("new_totals", "2026-01-02", parameters={"layout": "current"}) == {"2026-01-01": "due"}


def test_a_function_sees_facts_and_no_rows(store: Store) -> None:
    seen: list[ChoiceFacts] = []

    def large(facts: ChoiceFacts) -> str:
        seen.append(facts)
        return "new" if (facts.rows or 0) > 3 else "old"

    bench = lab(store, totals(ByMetadata(large, of="raw")))
    bench.commit("raw", "arrival-1", {"2026-01-01": 3, "2026-01-02": 4})
    decider = Decider(bench.graph, store, dict.fromkeys(bench.graph.datasets, "code"))
    wish = Wish(parse_time("2026-01-03"))
    for name, states in (("old_totals", ["due", "skipped"]), ("new_totals", ["skipped", "due"])):
        assert [state.status for state in decider.decide(name, wish).states] == states
    # Once for each slice, whichever branch asks.
    assert [(facts.slice_id, facts.rows, facts.time) for facts in seen] == [
        ("2026-01-01", 3, parse_time("2026-01-01")),
        ("2026-01-02", 4, parse_time("2026-01-02")),
    ]


@pytest.mark.parametrize("answer", [None, "newest", ["old", "new"], 7, ValueError("no")])
def test_an_answer_that_is_not_one_branch_fails_both_with_the_list(store: Store, answer: object) -> None:
    def wrong(facts: ChoiceFacts) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    bench = lab(store, totals(ByMetadata(wrong)))
    bench.arrive("raw", "2026-01-01")
    messages = set()
    for name in BRANCHES.values():
        with pytest.raises(StepFailed, match=r"old, new\. None of them has run") as told:
            bench.states(name, "2026-01-02")
        messages.add(str(told.value))
    assert len(messages) == 1


def test_what_reads_both_branches_as_a_whole_needs_one_of_them(store: Store) -> None:
    shop = totals(BY_DATE)

    def everything(old_totals, new_totals):  # type: ignore[no-untyped-def]
        return new_totals

    shop.add(everything)
    bench = lab(store, shop)
    assert bench.statuses("everything", "2026-01-03") == {}
    bench.arrive("raw", "2026-01-02")
    bench.commit("new_totals", "2026-01-02", {"2026-01-02": 1}, raw=0)
    assert bench.statuses("everything", "2026-01-03") == {"whole": "missing"}
    assert bench.statuses("merged", "2026-01-03") == {"2026-01-02": "due"}


def test_a_choice_is_shown_and_too_many_branches_are_warned_of() -> None:
    graph = Graph(totals(BY_DATE).datasets)
    assert choice_warnings(graph) == []
    assert rules_of(graph["old_totals"])["choice"] == {
        "name": "migration",
        "branch": "old",
        "by": "by date, from 2026-01-02 on new, old before",
        "branches": BRANCHES,
    }
    shop = Pipeline("shop", start="2026-01-01")
    shop.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")

    def step(raw):  # type: ignore[no-untyped-def]
        return raw

    for number in range(6):
        shop.add(step, name=f"b{number}", event_time="at")
    shop.choose("many", ExclusiveChoice(ByMetadata(lambda facts: "b0"), {f"b{n}": f"b{n}" for n in range(6)}))
    assert "'many' has 6 branches" in choice_warnings(Graph(shop.datasets))[0]


def test_what_cannot_be_chosen_is_refused_when_the_file_is_loaded() -> None:
    with pytest.raises(ConfigurationError, match=r"no branch 'newer'\. The branches are old, new"):
        ExclusiveChoice(ByDate("2026-01-01", before="old", after="newer"), BRANCHES)
    with pytest.raises(ConfigurationError, match="at least two branches"):
        ExclusiveChoice(ByMetadata(lambda facts: "old"), {"old": "old_totals"})
    with pytest.raises(ConfigurationError, match="is no condition"):
        ExclusiveChoice("date", BRANCHES)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is not a time"):
        ByDate("soon", before="old", after="new")
    with pytest.raises(DefinitionError, match=r"no parameter of the pipeline shop 'layout'"):
        totals(ByParameter("layout"))
    with pytest.raises(DefinitionError, match=r"the value 'csv' of layout names no branch"):
        totals(ByParameter("layout"), parameters={"layout": ["old", "new", "csv"]})
    with pytest.raises(DefinitionError, match="no input for the choice 'migration' 'rw'"):
        Graph(totals(BySchema("rw", dict(WIDE.when))).datasets)
    shop = totals(BY_DATE)
    with pytest.raises(DefinitionError, match="old_totals is a branch of 'migration' and of 'again'"):
        shop.choose("again", ExclusiveChoice(BY_DATE, BRANCHES))
    with pytest.raises(DefinitionError, match="declared before the choice 'late'"):
        shop.choose("late", ExclusiveChoice(ByMetadata(lambda facts: "x"), {"x": "unknown", "y": "merged"}))
    with pytest.raises(DefinitionError, match="is a source, a stream"):
        shop.choose("early", ExclusiveChoice(ByMetadata(lambda facts: "x"), {"x": "raw", "y": "merged"}))


def test_branches_that_are_cut_in_other_ways_are_refused() -> None:
    shop = Pipeline("shop", start="2026-01-01")
    shop.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")

    def step(raw):  # type: ignore[no-untyped-def]
        return raw

    shop.add(step, name="old_totals", event_time="at", grid="hour")
    shop.add(step, name="new_totals", event_time="at")
    shop.choose("migration", ExclusiveChoice(BY_DATE, BRANCHES))
    with pytest.raises(DefinitionError, match="one decision has to fit both"):
        Graph(shop.datasets)


def test_parameters_are_checked_against_what_the_pipelines_of_a_run_declare() -> None:
    shop = totals(BY_DATE, parameters={"output_type": ["delta", "csv"]})
    graph = Graph([*shop.datasets, *_other().datasets])
    both = ["merged", "elsewhere"]
    assert checked_parameters(graph, both, {"output_type": "csv"}) == {"output_type": "csv"}
    with pytest.raises(ConfigurationError, match=r"'output_type' is missing: it is delta or csv\. Nothing was started"):
        checked_parameters(graph, both, {})
    with pytest.raises(ConfigurationError, match=r"'output_type' is delta or csv, not 'avro'"):
        checked_parameters(graph, both, {"output_type": "avro"})
    with pytest.raises(UnknownNameError, match="no parameter 'outputtype'"):
        checked_parameters(graph, both, {"outputtype": "csv"})
    assert checked_parameters(graph, ["elsewhere"], {}) == {}
    for wrong in (["delta"], ["=x"], ["a=1", "a=2"]):
        with pytest.raises(ConfigurationError):
            parse_parameters(wrong)
    for values in ((), "delta", ("",)):
        with pytest.raises(ConfigurationError):
            Parameter(values)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is none of"):
        Parameter(("delta",), default="csv")


def _other() -> Pipeline:
    other = Pipeline("other", start="2026-01-01")
    other.source("elsewhere", JsonFiles("landing"), schema="at timestamp")
    return other
