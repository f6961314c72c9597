"""kill -9 of the real command between any two commits of each writer that goes outside the lake, and of what merges.

The commands share the Spark Connect server of the test run: what dies is their process, at a cost of seconds instead of
a cold JVM each. The kills of processes with their own JVM are in `test_kills`, and in `make chaos` for all writers.
"""

from __future__ import annotations

import json

from lakewright.patterns.idempotency.proxy import publish_load, read_latest_load, read_manifest
from tests.connectors.test_postgres_table import Database
from tests.pipelines.shop import land, made, ok, order, rows_of
from tests.pipelines.topics import committed
from tests.processes import LAKEWRIGHT, killed

PIPELINE = """
    from lakewright import (FileProxy, JsonFiles, KafkaMessages, Merger, Pipeline, PostgresParts, PostgresProxy,
                            PostgresTable, PostgresVersions, StatefulMerger, Whole)

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at", into=PostgresParts("db", "by_day", clean="drop"))
    def by_day(orders):
        return orders.select("order_id", "at")

    @shop.dataset(inputs={"orders": Whole()}, into=PostgresProxy("db", "shown"))
    def shown(orders):
        return orders.select("order_id")

    @shop.dataset(event_time="at", into=KafkaMessages("broker", "TOPIC", key="order_id", ledger="TOPIC.ledger"))
    def told(orders):
        return orders.select("order_id", "at")

    @shop.dataset(inputs={"orders": Whole()}, into=PostgresVersions("db", "numbered"))
    def numbered(orders):
        return orders.select("order_id")

    @shop.dataset(inputs={"orders": Whole()}, into=FileProxy("exports"))
    def exported(orders):
        return orders.select("order_id")

    @shop.dataset(writer=Merger(keys=["order_id"]), into=PostgresTable("db", "merged"))
    def merged(orders):
        return orders.select("order_id", "amount")

    @shop.dataset(writer=StatefulMerger(keys=["order_id"]), into=PostgresTable("db", "rebuilt"))
    def rebuilt(orders):
        return orders.select("order_id", "amount")

    @shop.dataset(writer=StatefulMerger(keys=["order_id"]))
    def exact(orders):
        return orders.select("order_id", "amount")

    @shop.dataset(writer=Merger(keys=["order_id"]))
    def current(orders):
        return orders.select("order_id", "amount")

    @shop.dataset(mode="stream", writer=Merger(keys=["order_id"]))
    def followed(current):
        return current
"""
# What is killed, where, and whether the rows are there although nobody knows of it. The second `kafka.recorded` and
# `committed.main` of a topic are those of the rows: the first is the fence of the predecessor that died.
KILLS = [
    ("by_day", "staged", False),
    ("by_day", "committed.main", True),
    ("shown", "staged", False),
    ("shown", "loaded", False),
    ("shown", "committed.main", True),
    ("told", "kafka.sent", False),
    ("told", "kafka.recorded:2", False),
    ("told", "committed.main:2", True),
    ("numbered", "staged", False),
    ("numbered", "loaded", False),
    ("numbered", "committed.main", True),
    ("exported", "staged", False),
    ("exported", "loaded", False),
    ("exported", "committed.main", True),
    ("merged", "staged", False),
    ("merged", "committed.main", True),
    ("rebuilt", "staged", False),
    ("rebuilt", "committed.main", True),
    ("exact", "published", True),
    ("current", "before_receipt", True),
    ("followed", "before_receipt", True),
]
IN_THE_LAKE = ("exact", "current", "followed")


def test_a_kill_at_each_commit_outside_the_lake_is_mended(project, postgres, kafka, connect_url, spark, monkeypatch):
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    database, topic = Database(postgres.database()), kafka.topic(partitions=1)
    connections = f'[connections.db]\nurl = "{database.connection.url}"\npassword = "secret://env/PG_TEST_PASSWORD"\n'
    connections += f'[connections.broker]\nurl = "kafka://{kafka.bootstrap}"\n'
    toml = f'name = "shop"\n[targets.dev]\nparallel = 1\n{connections}'
    shop = project({"lakewright.toml": toml, "pipelines/shop.py": PIPELINE.replace("TOPIC", topic)})
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 5), order("b", "2026-01-02T10:00:00Z", 2)])
    ok(shop.run(["orders"], at="2026-01-03"))

    def there(name: str) -> bool:
        """Whether a reader sees rows of the dataset."""
        if name == "told":
            return bool(committed(kafka, topic))
        if name == "exported":
            return (shop.folder / "exports" / "manifests").is_dir()
        if name in IN_THE_LAKE:
            return shop.lake.log(name).exists() and bool(rows_of(shop, name))
        return database.rows(f"SELECT to_regclass('{name}') IS NOT NULL") == [(True,)] and bool(
            database.rows(f"SELECT 1 FROM {name}")
        )

    for name, failpoint, is_there in KILLS:
        words = (*LAKEWRIGHT, "run", "--at", "2026-01-03", "--select", name)
        killed(shop.folder, *words, failpoint=failpoint, master=connect_url)
        assert [dead.dataset for dead in shop.store.steps.open_steps() if dead.dataset == name] == [name]
        if name != "told" or is_there:  # a transaction that nobody ends holds its readers back
            assert there(name) == is_there, f"{name} at {failpoint}"

    # What was committed is found, and not made again.
    rest = {("by_day", "2026-01-02"), ("told", "2026-01-02"), ("followed", "whole")}
    assert made(ok(shop.run(at="2026-01-03"))) == rest
    assert database.rows("SELECT order_id FROM by_day ORDER BY 1") == [("a",), ("b",)]
    assert sorted(database.rows("SELECT order_id FROM shown")) == [("a",), ("b",)]
    assert database.rows("SELECT tablename FROM pg_tables WHERE starts_with(tablename, 'shown_')") == [("shown_1",)]
    assert [(one.slice_id, one.key) for one in committed(kafka, topic)] == [("2026-01-01", "a"), ("2026-01-02", "b")]
    assert sorted(database.rows("SELECT order_id FROM numbered")) == [("a",), ("b",)]
    exports = read_latest_load(spark, str(shop.folder / "exports"), schema="order_id string")
    assert sorted(row["order_id"] for row in exports.collect()) == ["a", "b"]
    assert read_manifest(str(shop.folder / "exports")).number == 1
    for name in ("merged", "rebuilt"):
        assert sorted(database.rows(f"SELECT order_id, amount FROM {name}")) == [("a", 5), ("b", 2)]
    for name in IN_THE_LAKE:
        assert [tuple(row) for row in rows_of(shop, name, "order_id", "amount")] == [("a", 5), ("b", 2)]
    assert database.rows("SELECT tablename FROM pg_tables WHERE tablename ~ '^_lw_(stage|new)'") == []
    assert shop.store.steps.open_steps() == []
    assert shop.store.leases.held(shop._now()) == []
    assert not ok(shop.run(at="2026-01-03")).outcomes


def test_a_kill_before_the_manifest_shows_the_former_load(tmp_path):
    for name in ("one", "two"):
        load = tmp_path / "loads" / name
        load.mkdir(parents=True)
        size = (load / "part.json").write_text(f'{{"n": "{name}"}}\n')
        told = {"format": "json", "options": {}, "files": {"part.json": size}}
        (load / "_format.json").write_text(json.dumps(told))
    publish_load(str(tmp_path), "one")
    words = "from lakewright.patterns.idempotency.proxy import publish_load; publish_load('.', 'two')"
    killed(tmp_path, "-c", words, failpoint="manifest")
    assert read_manifest(str(tmp_path)).load == "one"
    assert publish_load(str(tmp_path), "two") == read_manifest(str(tmp_path))
    assert (read_manifest(str(tmp_path)).number, len(list((tmp_path / "manifests").glob("*.json")))) == (2, 2)
