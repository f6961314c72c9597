"""Replicas in a pipeline: copies elsewhere that follow their original slice by slice, each with its proof."""

from __future__ import annotations

import pytest

from lakewright.errors import DefinitionError
from lakewright.patterns.ingestion.replica_proof import Proof
from tests.patterns.delta import table
from tests.pipelines.shop import land, made, ok, order

CONTRACT = """
name: orders
columns:
  - {name: order_id, type: string}
  - {name: at, type: timestamp}
  - {name: customer, type: int, tags: [%s]}
  - {name: amount, type: int}
event_time: at
"""
PIPELINE = """
    from pathlib import Path
    from lakewright import JsonFiles, PassthroughReplicator, Pipeline, TransformationReplicator, load_contract

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), contract=load_contract(Path(__file__).parent / "orders.yaml"))

    @shop.dataset(event_time="at")
    def clean(orders):
        return orders.select("order_id", "at", "amount")

    shop.replicate("clean_copy", "clean", PassthroughReplicator(), to="../staging/clean", event_time="at")
    shop.replicate("orders_copy", "orders", {how}, to="../staging/orders")
"""
SAFE = "TransformationReplicator()"


def files(how: str = SAFE, tag: str = "pii") -> dict[str, str]:
    return {"pipelines/shop.py": PIPELINE.replace("{how}", how), "pipelines/orders.yaml": CONTRACT % tag}


def columns(spark, path) -> list[str]:
    return [name for name in spark.read.format("delta").load(str(path)).columns if not name.startswith("_lw_")]


@pytest.mark.shows("02.passthrough-replicator", 6)
@pytest.mark.shows("02.transformation-replicator", 3)
@pytest.mark.shows("02.transformation-replicator", 7)
def test_a_replica_follows_its_original_and_what_is_tagged_later_leaves_it(project, spark, tmp_path, monkeypatch):
    shop = project(files())
    staging = shop.folder.parent / "staging"
    land(shop.folder, "a.json", [order("a", "2026-01-01T10:00:00Z", 5), order("b", "2026-01-02T10:00:00Z", 7)])
    ok(shop.run(at="2026-01-03"))
    assert columns(spark, staging / "orders") == ["order_id", "at", "amount"]
    assert [row[2] for row in table(spark, staging / "clean")] == [5, 7]
    receipt = shop.store.receipts.live("clean_copy", "2026-01-01")
    assert receipt.counters.proof.startswith("1 rows, checksum ")
    assert not ok(shop.run(at="2026-01-03")).outcomes

    land(shop.folder, "b.json", [order("late", "2026-01-01T11:00:00Z", 1)])
    again = made(ok(shop.run(at="2026-01-03")))
    assert {one for one in again if one[0].endswith("copy")} == {
        ("clean_copy", "2026-01-01"),
        ("orders_copy", "arrival-2"),
    }
    assert sorted(row[2] for row in table(spark, staging / "clean")) == [1, 5, 7]

    # Whatever changes rows on the way is found, and the slice is as it was.
    before = table(spark, staging / "clean")
    land(shop.folder, "c.json", [order("more", "2026-01-02T11:00:00Z", 3)])
    proofs = iter([Proof(2, "one"), Proof(2, "another")])
    module = "lakewright.patterns.ingestion.passthrough_replicator.prove_rows"
    monkeypatch.setattr(module, lambda frame, names: next(proofs))
    (error,) = shop.run(["clean", "orders", "clean_copy"], at="2026-01-03").errors
    assert "as many rows as the source (2), but other ones. The slice was put back" in str(error)
    assert table(spark, staging / "clean") == before
    monkeypatch.undo()
    ok(shop.run(at="2026-01-03"))
    assert len(table(spark, staging / "clean")) == 4

    tagged = (CONTRACT % "pii").replace("amount, type: int", "amount, type: int, tags: [pii]")
    (shop.folder / "pipelines" / "orders.yaml").write_text(tagged)
    changed = project()
    land(shop.folder, "d.json", [order("new", "2026-01-02T12:00:00Z", 9)])
    assert ("orders_copy", "arrival-4") in made(ok(changed.run(["orders", "orders_copy"], at="2026-01-03")))
    assert columns(spark, staging / "orders") == ["order_id", "at"]
    assert len(table(spark, staging / "orders")) == 5


@pytest.mark.shows("02.passthrough-replicator", 8)
def test_a_project_that_would_copy_what_is_private_is_refused_when_it_is_loaded(project):
    with pytest.raises(DefinitionError, match="tags the columns customer as pii"):
        project(files("PassthroughReplicator()")).graph  # noqa: B018
    with pytest.raises(DefinitionError, match="is no replicator"):
        project(files("'as it is'")).graph  # noqa: B018
