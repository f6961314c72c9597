"""``history``: how long a dataset keeps its versions, for a table that is made and for one that is there already."""

from __future__ import annotations

import re

import pytest

from lakewright.errors import ConfigurationError, DefinitionError
from lakewright.failpoints import FailpointReached
from lakewright.lake.log import DeltaLog
from lakewright.model.identity import Identity
from lakewright.model.receipts import Commit
from lakewright.patterns.idempotency.versions import remove_unused_files
from lakewright.patterns.ingestion.vacuum import vacuum_table
from lakewright.testing.kafka import Kafka
from tests.pipelines.shop import land, made, ok, order, rows_of
from tests.pipelines.streaming import send, visit

LOG, FILES = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"
WRITERS = """
    from lakewright import JsonFiles, KafkaTopic, Merger, Pipeline, StatefulMerger

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at" HISTORY)

    @shop.dataset(event_time="at" HISTORY)
    def replaced(orders):
        return orders.select("order_id", "at", "amount")

    @shop.dataset(writer=Merger(keys=["order_id"]) HISTORY)
    def merged(orders):
        return orders.select("order_id", "amount")

    @shop.dataset(writer=StatefulMerger(keys=["order_id"]) HISTORY)
    def restored(orders):
        return orders.select("order_id", "amount")

    shop.source("raw", KafkaTopic("test", "TOPIC"), schema="id string, at timestamp", event_time="at", mode="stream"
                HISTORY)

    @shop.dataset(mode="stream", event_time="at" HISTORY)
    def added(raw):
        return raw

    @shop.dataset(mode="stream", writer=Merger(keys=["order_id"]) HISTORY)
    def followed(orders):
        return orders.select("order_id", "amount")

    @shop.dataset(event_time="at")
    def below(replaced):
        return replaced
"""
WRITTEN = ("orders", "replaced", "merged", "restored", "raw", "added", "followed")
ONE = """
    from lakewright import JsonFiles, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at" HISTORY)
    def replaced(orders):
        return orders.select("order_id", "at", "amount")

    @shop.dataset(event_time="at")
    def below(replaced):
        return replaced
"""


def keeping(text: str, history: str | None) -> dict[str, str]:
    option = "" if history is None else f', history="{history}"'
    return {"pipelines/shop.py": re.sub(r"\s+HISTORY", option, text)}


def with_stream(kafka: Kafka, topic: str, history: str | None) -> dict[str, str]:
    toml = f'name = "test"\n[connections.test]\nurl = "kafka://{kafka.bootstrap}"\n'
    return {"lakewright.toml": toml, **keeping(WRITERS.replace("TOPIC", topic), history)}


def kept(shop, name: str) -> tuple[str | None, str | None]:
    told = shop.lake.properties(name)
    return told.get(LOG), told.get(FILES)


def parts(shop, name: str, *, after: int = -1) -> list[str]:
    """Which part of an attempt each commit is."""
    found = (Identity.from_json(commit.metadata) for commit in shop.lake.log(name).commits(after=after))
    return ["somebody" if one is None else f"{one.kind} {one.part}" for one in found]


def newest(shop, name: str) -> int:
    version = shop.lake.log(name).latest()
    assert version is not None
    return version


def test_a_dataset_keeps_its_versions_for_its_history_from_its_first_commit_whatever_writes_it(project, kafka):
    topic = kafka.topic()
    send(kafka, topic, [visit(1)])
    shop = project(with_stream(kafka, topic, "30 days"))
    land(shop.folder, "a.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    for name in WRITTEN:
        assert kept(shop, name) == ("interval 30 days", "interval 30 days"), name
        assert "schema main:properties" not in parts(shop, name), "nothing was left to say"
    assert kept(shop, "below") == (None, None)


def test_a_history_that_is_declared_later_reaches_every_table_with_its_next_write(project, kafka):
    topic = kafka.topic()
    send(kafka, topic, [visit(1)])
    shop = project(with_stream(kafka, topic, None))
    land(shop.folder, "a.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    assert {kept(shop, name) for name in WRITTEN} == {(None, None)}
    before = {name: newest(shop, name) for name in WRITTEN}

    shop = project(with_stream(kafka, topic, "30 days"))
    assert not ok(shop.run(at="2026-01-02")).made, "declaring it makes nothing again"
    land(shop.folder, "b.json", [order("b", "2026-01-02T10:00:00Z")])
    send(kafka, topic, [visit(2)])
    ok(shop.run(at="2026-01-03"))
    for name in WRITTEN:
        assert kept(shop, name) == ("interval 30 days", "interval 30 days"), name
        told = parts(shop, name, after=before[name])
        assert told[:2] == ["schema main:properties", "data main"], (name, told)
        assert told.count("schema main:properties") == 1, "it is said once"
    assert [row["order_id"] for row in rows_of(shop, "followed")] == ["a", "b"]


def test_the_commit_that_lets_a_table_keep_more_is_no_data_and_makes_nothing_stale(project):
    shop = project(keeping(ONE, None))
    land(shop.folder, "a.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    shop = project(keeping(ONE, "30 days"))
    land(shop.folder, "b.json", [order("b", "2026-01-02T10:00:00Z")])
    assert made(ok(shop.run(at="2026-01-03"))) == {
        ("orders", "arrival-2"), ("replaced", "2026-01-02"), ("below", "2026-01-02"),
    }  # fmt: skip
    said: Commit = shop.lake.log("replaced").commit(newest(shop, "replaced") - 1)
    assert (said.data_change, dict(said.touched)) == (False, {})
    assert not ok(shop.run(at="2026-01-03")).made

    receipt = shop.store.receipts.get("replaced", said.version)
    assert (receipt.kind, receipt.touched) == ("schema", {})
    shop.rebuild_store()
    assert shop.store.receipts.get("replaced", said.version).kind == "schema"
    assert not ok(shop.run(at="2026-01-03")).made


def test_what_is_declared_counts_and_what_nobody_declares_is_left_to_people(project):
    shop = project(keeping(ONE, None))

    def next_day(number: int) -> None:
        land(shop.folder, f"{number}.json", [order(f"o{number}", f"2026-01-{number:02d}T10:00:00Z")])
        ok(shop.run(at=f"2026-01-{number + 1:02d}"))

    def by_hand(properties: str) -> None:
        path = shop.lake.resolve("replaced")
        shop.lake.session().sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({properties})")

    next_day(1)
    by_hand(f"'{FILES}' = 'interval 20 days', 'delta.enableChangeDataFeed' = 'true'")
    next_day(2)
    assert kept(shop, "replaced") == (None, "interval 20 days")
    shop = project(keeping(ONE, "30 days"))
    next_day(3)
    assert kept(shop, "replaced") == ("interval 30 days", "interval 30 days")
    shop = project(keeping(ONE, "10 days"))
    next_day(4)
    assert kept(shop, "replaced") == ("interval 10 days", "interval 10 days")
    shop = project(keeping(ONE, None))
    next_day(5)
    assert kept(shop, "replaced") == ("interval 10 days", "interval 10 days"), "nobody says otherwise"
    assert shop.lake.properties("replaced")["delta.enableChangeDataFeed"] == "true"


def test_a_run_that_dies_between_the_history_and_its_data_says_it_once(project, failing):
    shop = project(keeping(ONE, None))
    land(shop.folder, "a.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    before = newest(shop, "replaced")
    shop = project(keeping(ONE, "30 days"))
    land(shop.folder, "b.json", [order("b", "2026-01-02T10:00:00Z")])
    failing("history_declared")
    assert isinstance(shop.run(at="2026-01-03").errors[0], FailpointReached)
    failing("nothing")
    assert parts(shop, "replaced", after=before) == ["schema main:properties"]
    ok(shop.run(at="2026-01-03"))
    assert parts(shop, "replaced", after=before) == ["schema main:properties", "data main"]
    assert [row["order_id"] for row in rows_of(shop, "below")] == ["a", "b"]


def test_a_table_whose_log_no_longer_tells_its_properties_is_asked_by_spark(project, monkeypatch):
    shop = project(keeping(ONE, "30 days"))
    land(shop.folder, "a.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    before = newest(shop, "replaced")
    monkeypatch.setattr(DeltaLog, "properties", lambda log: None)
    land(shop.folder, "b.json", [order("b", "2026-01-02T10:00:00Z")])
    ok(shop.run(at="2026-01-03"))
    assert parts(shop, "replaced", after=before) == ["data main"]


def test_a_restore_to_a_time_before_the_history_does_not_lose_it(project):
    shop = project(keeping(ONE, None))
    land(shop.folder, "a.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    first = newest(shop, "replaced")
    shop = project(keeping(ONE, "30 days"))
    land(shop.folder, "b.json", [order("b", "2026-01-02T10:00:00Z")])
    ok(shop.run(at="2026-01-03"))
    shop.rollback("replaced", to=first)
    assert kept(shop, "replaced") == (None, None), "RESTORE takes the properties back as well"
    land(shop.folder, "c.json", [order("c", "2026-01-03T10:00:00Z")])
    ok(shop.run(at="2026-01-04"))
    assert kept(shop, "replaced") == ("interval 30 days", "interval 30 days")


@pytest.mark.shows("04.proxy", 6)
def test_every_overwritten_version_can_be_read_within_the_history_and_no_vacuum_goes_below_it(project):
    shop = project(keeping(ONE, "30 days"))
    land(shop.folder, "a.json", [order("a", "2026-01-01T10:00:00Z", amount=1)])
    ok(shop.run(at="2026-01-02"))
    for _ in range(3):
        ok(shop.run(["replaced"], again=True, at="2026-01-02"))
    path, spark = shop.lake.resolve("replaced"), shop.lake.session()
    overwritten = [commit.version for commit in shop.lake.log("replaced").commits()]
    assert len(overwritten) == 4
    for vacuum in (
        lambda: vacuum_table(spark, path, retention="8 days"),
        lambda: remove_unused_files(spark, path, keep="8 days"),
    ):
        with pytest.raises(ConfigurationError, match=r"30 days|longer than 8 days"):
            vacuum()
    spark.sql(f"VACUUM delta.`{path}`")
    for version in overwritten:
        assert [row["order_id"] for row in shop.lake.read("replaced", version=version).collect()] == ["a"]


def test_a_history_that_is_no_length_is_refused_with_its_place(project):
    with pytest.raises(DefinitionError, match=r"replaced: history: .*soon") as refused:
        project(keeping(ONE, "soon")).graph  # noqa: B018
    assert "shop.py:" in str(refused.value)
