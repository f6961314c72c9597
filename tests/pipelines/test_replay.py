"""Dead letters come back: through the current code or corrected, each record once, whatever dies or is repeated."""

from __future__ import annotations

from collections import Counter

import pytest

from lakewright.errors import InputError
from lakewright.failpoints import FailpointReached, arm
from lakewright.pipelines.accounts import accounts_of
from lakewright.pipelines.dead_letters import Selection
from lakewright.pipelines.replay_records import Edits, RecordEdit
from tests.pipelines.shop import land, made, ok, order, orders_project, rows_of
from tests.pipelines.topics import committed
from tests.processes import LAKEWRIGHT, killed

RULES = """
    guards_in={"orders": [DeadLetter(rules={"has_id": "order_id IS NOT NULL", "paid": "amount > 0"}, mark=True,
                                     keep="90 days")]},
    rows="preserve",
"""
MARKS = '"was_dead_lettered", "replay_job", "replay_version", "replayed_at"'


def marked_project(rules: str = RULES) -> dict[str, str]:
    files = orders_project(rules)
    text = files["pipelines/shop.py"]
    files["pipelines/shop.py"] = text.replace('"amount")\n', f'"amount", {MARKS})\n')
    return files


def three_days(shop) -> None:
    """Each day brings a good order, one without an id, and one that cannot be read."""
    for day in (1, 2, 3):
        at = f"2026-01-0{day}T10:00:00Z"
        land(
            shop.folder,
            f"d{day}.json",
            [order(f"o{day}", at, 5), order(None, at, 7), f'{{"order_id": "x{day}", "at": "{at}", "amount": "many"}}'],
        )
        ok(shop.run(at=f"2026-01-0{day + 1}"))


@pytest.fixture
def shop(prepared):
    return prepared("three days of dead letters", marked_project(), three_days)


def letters(shop, **selection) -> list:
    found = shop.dead_letters(Selection(**selection))
    return [] if found is None else sorted(found.collect(), key=lambda row: (row["dataset"], row["slice"], row["id"]))


def amounts(shop) -> list[tuple]:
    return [(row["order_id"], row["amount"]) for row in rows_of(shop, "clean")]


@pytest.mark.shows("03.dead-letter", 6)
def test_after_a_fix_repaired_rows_are_marked_still_bad_ones_return_and_a_second_replay_adds_nothing(shop, project):
    # The fix: an order without an id is allowed. One of them is still bad, by a new rule.
    fixed = RULES.replace('"order_id IS NOT NULL"', '"true"').replace(
        '"amount > 0"', "\"at < '2026-01-03' OR order_id > ''\""
    )
    again = project(marked_project(fixed))
    summary = again.replay_dead_letters(Selection("clean"), at="2026-01-04")
    ok(summary.run)
    assert (summary.records, summary.corrected, summary.still_open) == (3, 2, 1)
    assert summary.touched == {"orders": ("2026-01-01", "2026-01-02", "2026-01-03")}
    assert summary.slices == dict.fromkeys(("clean", "daily"), ("2026-01-01", "2026-01-02", "2026-01-03"))
    repaired = {row["at"].day: row for row in rows_of(again, "clean") if row["order_id"] is None}
    assert sorted(repaired) == [1, 2]
    for row in repaired.values():
        assert (row["was_dead_lettered"], row["replay_job"]) == (True, "clean")
        assert row["replay_version"] == again.codes["clean"]
        assert row["replayed_at"] is not None
    assert not any(row["was_dead_lettered"] for row in rows_of(again, "clean") if row["order_id"])
    assert [row["amount"] for row in rows_of(again, "daily")] == [12, 12, 5]

    # The one that failed again keeps its history; nothing replays it by itself.
    (left,) = letters(again, dataset="clean")
    assert (left["slice"], left["rules"], left["attempts"]) == ("2026-01-03", ["paid"], 1)
    assert [(one["action"], one["rules"]) for one in left["history"]] == [("replayed", ["has_id"])]
    assert made(ok(again.run(at="2026-01-04"))) == set()
    counts = {(one.dataset, one.rule): (one.open, one.corrected) for one in again.count_dead_letters()}
    assert counts["clean", "has_id"] == (0, 2)
    assert counts["clean", "paid"] == (1, 0)
    assert counts["orders", "unreadable record"] == (3, 0)

    # A second replay: only what is open is tried, and nothing is added.
    before = amounts(again)
    summary = again.replay_dead_letters(Selection("clean"), at="2026-01-04")
    assert (summary.records, summary.corrected, summary.still_open) == (1, 0, 1)
    assert amounts(again) == before
    assert letters(again, dataset="clean")[0]["attempts"] == 2
    accounts = {one.slice_id: one for one in accounts_of(again.store, "clean")}
    assert [(one.read, one.kept, one.corrected) for one in accounts.values()] == [(2, 2, 1), (2, 2, 1), (2, 1, 1)]
    assert all(one.balanced for one in accounts.values())

    # Two lines of the same bytes share a name and are two rows: both are set aside, and both come back.
    at = "2026-01-04T10:00:00Z"
    land(again.folder, "d4.json", [order(None, at, 7), order("o4", at, 5), order(None, at, 7)])
    ok(again.run(at="2026-01-05"))
    found = letters(again, slices=("2026-01-04",))
    assert [row["id"] for row in found] == [found[0]["id"]] * 2
    edits = Edits(records=(RecordEdit(found[0]["id"], fields={"order_id": "t"}),))
    summary = again.replay_dead_letters(Selection("clean", slices=("2026-01-04",)), edits, at="2026-01-05")
    assert (summary.records, summary.corrected, summary.still_open) == (2, 2, 0)
    assert Counter(amounts(again)) == Counter([*before, ("o4", 5), ("t", 7), ("t", 7)])


def corrected_fields(shop, dataset: str, **fields) -> Edits:
    """The same fields for every open letter; ``at`` of the last one lies a day before."""
    found = letters(shop, dataset=dataset)
    edits = [
        RecordEdit(row["id"], fields={**fields, "order_id": f"{fields['order_id']}{n}"})
        for n, row in enumerate(found, 1)
    ]
    last = edits[-1]
    return Edits(records=(*edits[:-1], RecordEdit(last.record, fields={**last.fields, "at": "2026-01-02T23:00:00Z"})))


@pytest.mark.shows("03.dead-letter", 6)
def test_corrected_records_of_three_days_survive_a_backfill_and_leave_with_their_file(shop):
    # Scenario 5 of RUNS. Those of the source had no cell; those of the guard leave the one that they had.
    before = {one.slice_id: one for one in accounts_of(shop.store, "orders", is_source=True)}
    assert [(one.read, one.kept, sum(one.rejected.values())) for one in before.values()] == [(3, 2, 1)] * 3
    summary = shop.replay_dead_letters(
        Selection("orders"), corrected_fields(shop, "orders", order_id="x", amount=9), at="2026-01-05"
    )
    ok(summary.run)
    assert summary.touched == {"orders": ("2026-01-01", "2026-01-02")}
    assert summary.slices["clean"] == ("2026-01-01", "2026-01-02")
    summary = shop.replay_dead_letters(
        Selection("clean"), corrected_fields(shop, "clean", order_id="n"), at="2026-01-05"
    )
    ok(summary.run)
    assert summary.touched == {"orders": ("2026-01-01", "2026-01-02", "2026-01-03")}

    everything = [("n1", 7), ("n2", 7), ("n3", 7), ("o1", 5), ("o2", 5), ("o3", 5), ("x1", 9), ("x2", 9), ("x3", 9)]
    assert amounts(shop) == everything
    assert [row["orders"] for row in rows_of(shop, "daily")] == [3, 5, 1]
    assert letters(shop) == []
    accounts = accounts_of(shop.store, "orders", is_source=True)
    assert [(one.read, one.kept, one.corrected, one.balanced) for one in accounts] == [(3, 2, 1, True)] * 3
    assert [(one.read, one.kept, one.corrected) for one in accounts_of(shop.store, "clean")] == [
        (3, 3, 2), (5, 5, 4), (1, 1, 0),
    ]  # fmt: skip
    assert shop.sql("SELECT * FROM dead_letters").count() == 0

    # Corrected once more, a record leaves the day that it was moved to, which is not the one that its letter names.
    known = {row["slice"]: row["id"] for row in letters(shop, dataset="clean", states=("corrected",))}
    moved, wrong = known["2026-01-03"], known["2026-01-01"]
    times = {moved: "2026-01-05T10:00:00Z", wrong: "soon", "b1": None}
    edits = Edits(records=tuple(RecordEdit(one, fields={"at": at}) for one, at in times.items()))
    chosen = Selection("clean", records=(moved, wrong, "gone"), states=("open", "corrected"))
    shown = shop.replay_dead_letters(chosen, edits, at="2026-01-05", dry_run=True)
    assert (shown.records, shown.unusable, shown.unchanged) == (2, 1, 1)
    assert shown.touched == {"orders": ("2026-01-02", "2026-01-03", "2026-01-05")}
    assert shown.notes[0].startswith("No letter that is meant is called b1, gone:")
    assert shown.notes[1].startswith("1 records of orders were corrected before, and what is given now cannot be used")
    assert shop.plan(at="2026-01-05")["clean"].states == ()

    # A backfill keeps them; so does reading the recorded files again.
    ok(shop.backfill("2026-01-01", "2026-01-02", at="2026-01-05", sources=True))
    assert amounts(shop) == everything
    assert letters(shop) == []
    assert all(one.balanced for one in accounts_of(shop.store, "orders", is_source=True))

    # The producer delivers the first file again, corrected: the corrections of its old version go with it.
    at = "2026-01-01T10:00:00Z"
    land(shop.folder, "d1.json", [order("o1", at, 5), order("m1", at, 7), order("y1", at, 11), order(None, at)])
    ok(shop.run(at="2026-01-05"))
    assert amounts(shop) == [("m1", 7), *everything[1:6], *everything[7:], ("y1", 11)]
    assert [(row["dataset"], row["note"]) for row in letters(shop, states=("retired",))] == [
        (name, "its file was replaced by arrival-4") for name in ("clean", "orders")
    ]
    assert [row["slice"] for row in letters(shop)] == ["2026-01-01"]
    assert len(letters(shop, states=("corrected",))) == 4
    gone = Selection("clean", slices=("2026-01-01",), states=("retired",))
    shown = shop.replay_dead_letters(gone, Edits(columns={"amount": "1"}), at="2026-01-05", dry_run=True)
    assert (shown.records, shown.unchanged, shown.touched) == (1, 1, {"orders": ()})
    assert "records that are no longer in orders" in shown.notes[0]

    # What the store knows of it, the logs tell too.
    shop.rebuild_store()
    assert made(ok(shop.run(at="2026-01-05"))) == set()


def test_a_replay_that_dies_anywhere_is_finished_by_the_next_run(shop, connect_url):
    only = Selection("clean", slices=("2026-01-01",))
    edits = Edits(columns={"order_id": "n1"})

    def dying(failpoint: str, selection: Selection, edits: Edits) -> None:
        arm({"LAKEWRIGHT_FAILPOINT": failpoint, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
        try:
            with pytest.raises(FailpointReached):
                shop.replay_dead_letters(selection, edits, at="2026-01-04")
        finally:
            arm({})

    # It was only noted: the letter is open, and nothing is stale.
    dying("replay_noted", only, edits)
    assert letters(shop, dataset="clean")[0]["attempts"] == 1
    assert shop.plan(at="2026-01-04")["clean"].states == ()

    # The correction is there, and the process killed: the next run makes its slice.
    words = ("dead-letters", "replay", "clean", "--slice", "2026-01-01", "--set", "order_id=n1", "--yes")
    killed(shop.folder, *LAKEWRIGHT, *words, failpoint="corrected", master=connect_url)
    assert made(ok(shop.run(at="2026-03-01"))) == {("clean", "2026-01-01"), ("daily", "2026-01-01")}
    assert ("n1", 7) in amounts(shop)
    assert [row["slice"] for row in letters(shop, dataset="clean")] == ["2026-01-02", "2026-01-03"]
    assert letters(shop, dataset="clean", states=("corrected",))[0]["attempts"] == 2

    # The letter of the source is gone, and its account not yet told.
    dying("letters_withdrawn", Selection("orders", slices=("arrival-1",)), Edits(columns={"amount": "9"}))
    ok(shop.run(at="2026-03-01"))
    assert sorted(amounts(shop), key=str) == [("n1", 7), ("o1", 5), ("o2", 5), ("o3", 5), ("x1", 9)]
    account = accounts_of(shop.store, "orders", is_source=True)[0]
    assert (account.corrected, account.balanced) == (1, True)

    # Letters that are older than the dataset keeps them are closed by `maintain`.
    assert (
        "2 open for longer than kept: retired; 0 closed ones forgotten" in shop.maintain(["clean"]).outcomes[-1].reason
    )
    assert letters(shop, dataset="clean") == []
    assert {row["note"] for row in letters(shop, dataset="clean", states=("retired",))} == {"older than 90 days"}

    # A rollback takes the corrected slice back, and it does not come again by itself.
    shop.rollback("clean")
    assert made(ok(shop.run(["orders", "clean"], at="2026-03-01"))) == set()


ORDERED = """
    from lakewright import DeadLetter, JsonFiles, Merger, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(writer=Merger(keys=["customer"]),
                  guards_in={"orders": [DeadLetter(rules={"paid": "amount > 0"})]})
    def last_amount(orders):
        return orders.select("customer", "amount")
"""


SENT = """
    from lakewright import DeadLetter, JsonFiles, KafkaMessages, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at", guards_in={"orders": [DeadLetter(rules={"paid": "amount > 0"})]})
    def clean(orders):
        return orders.select("order_id", "at", "amount")

    @shop.dataset(event_time="at", into=KafkaMessages("broker", "TOPIC", key="order_id", ledger="TOPIC.ledger"))
    def told(clean):
        return clean
"""


@pytest.mark.shows("03.dead-letter", 7)
def test_a_replay_that_reaches_a_topic_is_refused_unless_it_is_asked_for(project, kafka):
    topic = kafka.topic()
    toml = f'name = "shop"\n[connections.broker]\nurl = "kafka://{kafka.bootstrap}"\n'
    shop = project({"lakewright.toml": toml, "pipelines/shop.py": SENT.replace("TOPIC", topic)})
    first, second = "2026-01-01T10:00:00Z", "2026-01-02T10:00:00Z"
    land(shop.folder, "d1.json", [order("a", first), order("b", first, 0), order("c", second)])
    ok(shop.run(at="2026-01-03"))
    sent = committed(kafka, topic)
    assert sorted((one.slice_id, one.key) for one in sent) == [("2026-01-01", "a"), ("2026-01-02", "c")]

    edits = Edits(columns={"amount": "1"})
    with pytest.raises(InputError, match=f"told goes to broker: {topic}, where corrected rows would come after newer"):
        shop.replay_dead_letters(Selection("clean"), edits, at="2026-01-03")
    assert (committed(kafka, topic), letters(shop)[0]["attempts"]) == (sent, 0)
    shown = shop.replay_dead_letters(Selection("clean"), edits, at="2026-01-03", dry_run=True)
    assert list(shown.ordered) == ["told"]  # the table of the lake has no order that could break
    assert shown.slices == {"clean": ("2026-01-01",), "told": ("2026-01-01",)}
    # Asked for, the slice is sent again as a whole, behind what was sent since, with a higher number.
    ok(shop.replay_dead_letters(Selection("clean"), edits, at="2026-01-03", out_of_order=True).run)
    again = committed(kafka, topic)[len(sent) :]
    assert sorted((one.slice_id, one.key) for one in again) == [("2026-01-01", "a"), ("2026-01-01", "b")]
    assert min(one.number for one in again) > max(one.number for one in sent if one.slice_id == "2026-01-01")
    assert letters(shop) == []


@pytest.mark.shows("03.dead-letter", 7)
def test_a_replay_into_an_ordered_output_is_refused_unless_it_is_asked_for(project):
    shop = project({"pipelines/shop.py": ORDERED})
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 0), order("b", "2026-01-01T10:00:00Z", 3, 2)])
    ok(shop.run(at="2026-01-02"))
    land(shop.folder, "d2.json", [order("c", "2026-01-02T10:00:00Z", 5)])
    ok(shop.run(at="2026-01-03"))
    edits = Edits(columns={"amount": "1"})
    with pytest.raises(InputError, match="last_amount takes the arrivals of its input in turn") as refused:
        shop.replay_dead_letters(Selection("last_amount"), edits, at="2026-01-03")
    assert "--out-of-order" in str(refused.value)
    assert letters(shop)[0]["attempts"] == 0
    shown = shop.replay_dead_letters(Selection("last_amount"), edits, at="2026-01-03", dry_run=True)
    assert (shown.records, list(shown.ordered)) == (1, ["last_amount"])
    assert shown.slices == {"last_amount": ("arrival-1", "arrival-2")}
    # Asked for, the later arrival is taken again after the corrected one: the newest value stays.
    ok(shop.replay_dead_letters(Selection("last_amount"), edits, at="2026-01-03", out_of_order=True).run)
    assert [(row["customer"], row["amount"]) for row in rows_of(shop, "last_amount")] == [(1, 5), (2, 3)]
    assert letters(shop) == []
