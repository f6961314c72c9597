"""What a Dead-Letter guard says beyond judging rows: that nothing comes back, and which keys fail again and again."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from lakewright.errors import ConfigurationError, MissingColumnsError, StepFailed
from lakewright.model.protocols import FilterTally, GuardContext
from lakewright.model.runs import Run
from lakewright.model.slices import WHOLE, Slice
from lakewright.patterns.error_management.dead_letter import DeadLetter
from lakewright.patterns.error_management.filter_blame import Blame
from lakewright.pipelines.accounts import accounts_of
from lakewright.pipelines.dead_letters import Selection
from lakewright.pipelines.filtering import count_filters
from lakewright.pipelines.private_columns import words_of
from lakewright.pipelines.replay_records import Edits
from lakewright.pipelines.rule_errors import explain_rule_error
from tests.pipelines.shop import land, ok, order, orders_project, rows_of
from tests.pipelines.streaming import send, visit, visits_project

BILLED = """
    @shop.dataset(event_time="at", guards_in={"orders": [
        DeadLetter(rules={"paid": "amount > 0", "has_id": "order_id IS NOT NULL"}, replay="never")]})
    def billed(orders):
        '''What was billed: nobody bills a day twice.'''
        return orders.select("order_id", "at", "amount")
"""
NAMED = """rows="preserve", guards_in={"orders": [DeadLetter(rules={"has_id": "order_id IS NOT NULL"})]}"""
FIRST, SECOND = "2026-01-01T10:00:00Z", "2026-01-02T10:00:00Z"


def states(shop) -> dict[tuple[str, str], tuple[str, int]]:
    letters = shop.dead_letters(Selection(states=("open", "corrected", "retired"))).collect()
    return {(row["dataset"], row["slice"]): (row["state"], row["attempts"]) for row in letters}


@pytest.mark.shows("03.dead-letter", 6)
def test_a_dataset_that_never_replays_takes_nothing_back_by_its_own_letters_or_by_those_of_others(project):
    files = {name: text + BILLED for name, text in orders_project(NAMED).items()}
    shop = project(files)
    land(shop.folder, "d1.json", [order("a", FIRST, 5), order(None, FIRST, 7), order("c", SECOND, 3)])
    ok(shop.run(at="2026-01-03"))
    before, edits = rows_of(shop, "billed"), Edits(columns={"order_id": "b"})
    untouched = {("billed", "2026-01-01"): ("open", 0), ("clean", "2026-01-01"): ("open", 0)}
    assert states(shop) == untouched

    for dry_run in (True, False):
        with pytest.raises(ConfigurationError, match='billed says replay="never"') as refused:
            shop.replay_dead_letters(Selection("billed"), edits, at="2026-01-03", dry_run=dry_run)
        assert (refused.value.exit_code, "dead-letters retire" in refused.value.hint) == (2, True)
        # The same record was set aside by another dataset: put back there, it would be in this one as well.
        with pytest.raises(ConfigurationError, match=r"slices of billed again \(2026-01-01\)") as refused:
            shop.replay_dead_letters(Selection("clean"), edits, at="2026-01-03", dry_run=dry_run)
        assert "Nothing was changed" in str(refused.value)
    assert not shop.lake.log("_lakewright/corrections/orders").exists()
    assert states(shop) == untouched
    assert ok(shop.run(at="2026-01-03")).made == []
    counts = {(one.dataset, one.rule): (one.open, one.replay) for one in shop.count_dead_letters()}
    assert counts == {("billed", "has_id"): (1, "never"), ("clean", "has_id"): (1, "allow")}

    # Given up, it is closed; and where consumers can take corrected slices the choice is taken back.
    assert shop.retire_dead_letters(Selection("billed", reasons=("has_id",)), because="billed by hand") == 1
    shop = project({name: text.replace('replay="never"', 'replay="allow"') for name, text in files.items()})
    summary = shop.replay_dead_letters(Selection("clean"), edits, at="2026-01-03")
    assert (summary.corrected, summary.slices["billed"]) == (1, ("2026-01-01",))
    assert sorted(row["order_id"] for row in rows_of(shop, "clean")) == ["a", "b", "c"]
    assert len(rows_of(shop, "billed")) == len(before) + 1


BESIDE = """
    from lakewright import DeadLetter, FilterInterceptor, JsonFiles, Latest, Pipeline, WindowedDeduplicator

    shop = Pipeline("shop", start="2026-01-01")
    for name in ("orders", "people"):
        shop.source(name, JsonFiles(f"landing/{name}"), event_time="at",
                    schema="order_id string, at timestamp, customer int, amount int")

    def known(orders, people):
        return orders.join(people.select("customer"), "customer", "left")

    for name, of_orders, of_people in (
        ("once", WindowedDeduplicator(keys=["order_id"]), DeadLetter(rules={"a": "customer IS NOT NULL"})),
        ("paid", DeadLetter(rules={"b": "amount > 0"}), FilterInterceptor(filters={"c": "customer IS NOT NULL"})),
    ):
        shop.dataset(name=name, event_time="at", rows="preserve", inputs={"people": Latest()},
                     guards_in={"orders": [of_orders], "people": [of_people]})(known)

    @shop.dataset(event_time="at", guards_in={"orders": [
        DeadLetter(rules={"paid": "amount > 0", "round": "CAST(order_id AS INT) > 0"})]})
    def numbered(orders):
        return orders
"""


def test_the_account_is_that_of_the_first_guarded_input_whatever_is_set_aside_of_others(project):
    shop = project({"pipelines/shop.py": BESIDE})
    land(shop.folder, "o.json", [order("a", FIRST), order("b", FIRST, 0), order("b", FIRST, 0)])
    people = [order(None, FIRST), *(order(None, FIRST) | {"customer": None} for _ in range(2))]
    land(shop.folder, "p.json", people, folder="people")
    ok(shop.run(["once", "paid", "orders", "people"], at="2026-01-02"))
    found = {name: accounts_of(shop.store, name)[0] for name in ("once", "paid")}
    assert all(account.balanced for account in found.values())
    told = {name: (one.read, one.kept, dict(one.rejected), one.duplicates) for name, one in found.items()}
    assert told == {"once": (3, 2, {}, 1), "paid": (3, 1, {"b": 2}, None)}
    assert shop.store.receipts.live("paid", "2026-01-01").counters.filtered_by_input["people"].removed == {"c": 2}
    # A rule that cannot be computed is named, with a row, though another rule rejects rows as well.
    (error,) = shop.run(["numbered"], at="2026-01-02").errors
    assert "numbered, slice 2026-01-01: the rule 'round' cannot be computed for the row order_id='" in str(error)
    assert "try_cast" in error.hint


@pytest.mark.parametrize("private", [["email"], []], ids=["a private column", "none"])
def test_what_spark_says_of_a_row_shows_no_value_where_columns_are_private(private, monkeypatch):
    said = "An error occurred while calling o1.first.\n: [CAST_INVALID_INPUT] The value 'a\\'b@c.d' of the type "
    error = ValueError(said + "\"STRING\" cannot be cast, don't; 'x" + "y" * 500)
    explained = []
    current = SimpleNamespace(
        shop=None, slice=Slice.parse("2026-01-01"), told={}, dataset=SimpleNamespace(name="clean", place="p.py:1")
    )
    judged = SimpleNamespace(columns=["email"])
    for module in ("rule_errors", "filtering"):
        monkeypatch.setattr(
            f"lakewright.pipelines.{module}.find_failing_row", lambda *_, **__: Blame("round", "email=***")
        )
        monkeypatch.setattr(f"lakewright.pipelines.{module}.private_columns", lambda *_: private)
    rules = SimpleNamespace(conditions=lambda: {"round": None})
    explained.append(str(explain_rule_error(current, [SimpleNamespace(side=[(judged, rules)])], error)))
    totals = SimpleNamespace(first=Mock(side_effect=error))
    tally = FilterTally(judged=judged, conditions={}, totals=totals, stop_above={}, sample=1.0)
    with pytest.raises(StepFailed) as failed:
        count_filters(current, [SimpleNamespace(given=SimpleNamespace(guards=(), dataset="raw"), tallies=[tally])])
    explained.append(str(failed.value))
    for words in explained:
        assert ("b@c.d" in words, "yy" in words) == (not private, not private)
        assert "row email=***: [CAST_INVALID_INPUT] The value" in words
        assert 'of the type "STRING" cannot be cast, don\'t; ' in words
    for value, words in (  # where Spark sets no quotes
        ("123456.78", "[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION] 123456.78 cannot be represented as Decimal(5, 2)."),
        ("1234.56", "[NUMERIC_VALUE_OUT_OF_RANGE] The 1234.6 rounded half up from 1234.56 cannot be represented as D"),
        ("a b@c.d", "[DUPLICATED_MAP_KEY] Duplicate map key a b@c.d was found, please check the input data."),
        ("a b@c", "[DUPLICATED_MAP_KEY] Duplicate map key a b@c\n.d was found, please check the input data."),
        ("b@c.d", "[INVALID_URL] The url is invalid: http://b@c.d ?. Use `try_parse_url` to tolerate invalid URL."),
        ("120", "[BINARY_ARITHMETIC_OVERFLOW] 120S + 100S caused overflow. Use `try_add` to ignore it."),
    ):
        said = words_of(ValueError(words), private)
        assert ((value in said), said.startswith(words[:20])) == (not private, True)


def test_two_readings_of_one_dataset_do_not_both_set_its_rows_aside(project):
    twice = """
        from lakewright import DeadLetter, JsonFiles, Lookback, Pipeline

        shop = Pipeline("shop", start="2026-01-01")
        shop.source("orders", JsonFiles("landing/orders"), schema="id string, at timestamp", event_time="at")
        HAS_ID = [DeadLetter(rules={"has_id": "id IS NOT NULL"})]

        @shop.dataset(event_time="at", inputs={"before": Lookback("1 day", "orders")},
                      guards_in={"orders": HAS_ID, "before": HAS_ID})
        def clean(orders, before):
            return orders
    """
    with pytest.raises(ConfigurationError, match="clean reads orders twice, as orders and as before") as refused:
        project({"pipelines/shop.py": twice}).graph  # noqa: B018
    assert "in a dataset of its own" in refused.value.hint


PER_KEY = """
    rows="preserve",
    guards_in={"orders": [DeadLetter(rules={"paid": "amount > 0"}, warn_per_key=("customer", 3))]},
"""


def unpaid(customer: int | None, times: int, at: str = FIRST) -> list[dict[str, object]]:
    return [order(f"{customer}-{n}", at, 0) | {"customer": customer} for n in range(times)]


def told_of_keys(shop, name: str = "clean") -> list[tuple[str | None, str]]:
    found = shop.store.findings.latest(name)
    return [(one.slice_id, one.message) for one in found if one.subject == "dead letters of a key"]


@pytest.mark.parametrize("place", ["published", None])
def test_keys_that_fail_again_and_again_in_one_slice_are_named_once(project, failing, place):
    shop = project(orders_project(PER_KEY))
    # The third customer fails twice a day, which is not often in either; of orders of nobody there are five.
    rows = [*unpaid(1, 4), *unpaid(2, 3), *unpaid(3, 2), *unpaid(None, 5), *unpaid(3, 2, SECOND), order("x", SECOND, 5)]
    land(shop.folder, "d1.json", rows)
    ok(shop.run(["orders"], at="2026-01-03"))
    if place is not None:  # the commit is there, the receipt is not: it is found in the log, and told once
        failing(place)
        assert shop.run(["clean"], at="2026-01-03").state == "failed"
    ok(shop.run(["clean"], at="2026-01-03"))
    assert told_of_keys(shop) == [
        ("2026-01-01", "3 or more dead letters of slice 2026-01-01 have the same customer: 1 (4), 2 (3)."),
    ]
    letters = shop.dead_letters(Selection("clean", slices=("2026-01-02",))).collect()
    assert {row["record"] for row in letters} == {'{"amount":0,"customer":3}'}

    # The slice is repeated with more of them: the largest are named, the others counted.
    land(shop.folder, "d2.json", [row for customer in (4, 5, 6) for row in unpaid(customer, customer)])
    ok(shop.run(at="2026-01-03"))
    assert told_of_keys(shop)[0][1].endswith("have the same customer: 6 (6), 5 (5), 1 (4) and 2 more.")


CONTRACT = """
    from lakewright.model.contracts import Contract, ContractColumn

    ORDERS = Contract("orders", (ContractColumn("order_id", "STRING"), ContractColumn("at", "TIMESTAMP"),
                                 ContractColumn("customer", "INT", tags=("TAG",)), ContractColumn("amount", "INT")))
"""


TAKEN = """
    @shop.dataset(event_time="at")
    def taken(orders):
        return orders
"""


@pytest.mark.parametrize(("tag", "between"), [("pii", False), ("ours alone", True)])
def test_keys_of_a_column_that_a_contract_keeps_private_are_counted_and_not_named(project, tag, between):
    files = orders_project(PER_KEY)
    text = files["pipelines/shop.py"].replace(
        'schema="order_id string, at timestamp, customer int, amount int",', "contract=ORDERS,"
    )
    if between:  # the contract may be that of a dataset further above
        for word in ('guards_in={"ORDERS"', "def clean(ORDERS)", "return ORDERS.select"):
            text = text.replace(word.replace("ORDERS", "orders"), word.replace("ORDERS", "taken"))
        text += TAKEN
    shop = project({"pipelines/shop.py": CONTRACT.replace("TAG", tag) + text})
    land(shop.folder, "d1.json", [*unpaid(11, 4), *unpaid(12, 3), *unpaid(13, 2), order("x", FIRST, 5)])
    ok(shop.run(["+clean"], at="2026-01-03"))
    assert told_of_keys(shop) == [
        (
            "2026-01-01",
            "3 or more dead letters of slice 2026-01-01 have the same customer: 2 of them, not named here since a "
            f"contract tags the column as {tag}.",
        )
    ]


CAST = """
    shop.sql("lazy", "SELECT at, CAST(order_id AS INT) AS number FROM orders", event_time="at", rows="expand")

    @shop.dataset(event_time="at")
    def eager(orders):
        orders.selectExpr("CAST(order_id AS INT)").collect()
        return orders
"""


@pytest.mark.parametrize("tags", ['("pii",)', "()"], ids=["a private column", "none"])
def test_what_a_step_says_of_its_own_failure_shows_no_value_where_columns_above_are_private(project, tags):
    text = orders_project()["pipelines/shop.py"].replace(
        'schema="order_id string, at timestamp, customer int, amount int",', "contract=ORDERS,"
    )
    contract = CONTRACT.replace('"order_id", "STRING"', f'"order_id", "STRING", tags={tags}').replace('("TAG",)', "()")
    shop = project({"pipelines/shop.py": contract + text + CAST})
    land(shop.folder, "d1.json", [order("ann@example.com", FIRST)])
    summary = shop.run(["+lazy", "+eager"], at="2026-01-03")
    assert {type(error) for error in summary.errors} == {StepFailed}
    steps = shop.store.steps.newest()
    told = [str(error) for error in summary.errors]
    told += [steps["lazy"].error, steps["eager"].error, shop.store.runs.latest()[0].error]
    assert len(told) == 5
    for words in told:
        assert "[CAST_INVALID_INPUT] The value " in words
        assert ("ann@example.com" in words) == (tags == "()")


STREAMED = """
    @visits.dataset(mode="stream", event_time="at", guards_in={"raw": [
        DeadLetter(rules={"has_page": "page IS NOT NULL"}, record="identity", warn_per_key=("id", 2))]})
    def paged(raw):
        '''Visits of a page.'''
        return raw
"""


def test_a_micro_batch_tells_the_keys_that_fail_in_it(project, kafka):
    topic = kafka.topic()
    shop = project(visits_project(kafka, topic, STREAMED))
    send(kafka, topic, [visit(1, page=None), visit(1, page=None), visit(2, page=None), visit(3)])
    ok(shop.run(["raw", "paged"], at="2026-01-03"))
    ((first, message),) = told_of_keys(shop, "paged")
    assert message == f"2 or more dead letters of slice {first} have the same id: v1 (2)."
    letters = shop.dead_letters(Selection("paged")).collect()
    assert sorted(row["record"] for row in letters) == ['{"id":"v1"}', '{"id":"v1"}', '{"id":"v2"}']

    send(kafka, topic, [visit(2, page=None), visit(3, page=None)])  # once more, and each only once in this micro-batch
    ok(shop.run(["raw", "paged"], at="2026-01-03"))
    assert told_of_keys(shop, "paged") == [(first, message)]


def test_policies_that_cannot_mean_anything_are_refused(spark):
    with pytest.raises(ConfigurationError, match="replay is 'allow' or 'never'"):
        DeadLetter(rules={"a": "b"}, replay="sometimes")
    for wrong in ("customer", ("customer",), ("customer", 0), ("", 5), (5, "customer")):
        with pytest.raises(ConfigurationError, match="warn_per_key is a column and a number"):
            DeadLetter(rules={"a": "b"}, warn_per_key=wrong)
    visits = spark.createDataFrame([], "visit string, page int")
    context = GuardContext("clean", "raw", WHOLE, Run("r", "p", datetime(2026, 1, 5, tzinfo=UTC)))
    with pytest.raises(MissingColumnsError, match="Did you mean 'visit' for 'visitt'"):
        DeadLetter(rules={"a": "page > 0"}, warn_per_key=("visitt", 5)).on_batch(visits, context)
