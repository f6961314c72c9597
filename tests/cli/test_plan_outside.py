"""`lakewright plan` of a dataset that goes to a topic: a repeat there is no overwrite, and it says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Lakewright
from tests.pipelines.shop import order

from lakewright.testing.kafka import Kafka
from lakewright.testing.plugin import write_files

PIPELINE = """
    from lakewright import JsonFiles, KafkaMessages, Pipeline, Repair

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp", event_time="at")

    @shop.dataset(event_time="at", late=Repair(within="30 days"),
                  into=KafkaMessages("broker", "{topic}", key="order_id", ledger="{topic}.ledger"))
    def told(orders):
        return orders

    @shop.dataset(event_time="at", late=Repair(within="30 days"))
    def kept(orders):
        return orders
"""


def landed(name: str, *days: str) -> dict[str, str]:
    lines = [json.dumps(order(f"{name} {day}", f"{day}T10:00:00Z")) for day in days]
    return {f"landing/orders/{name}.json": "\n".join(lines) + "\n"}


@pytest.mark.usefixtures("warm")
def test_the_plan_says_that_a_slice_of_a_topic_is_sent_again(
    lakewright: Lakewright, folder: Path, kafka: Kafka
) -> None:
    topic = kafka.topic()
    settings = f'name = "shop"\n[connections.broker]\nurl = "kafka://{kafka.bootstrap}"\n'
    files = {"lakewright.toml": settings, "pipelines/shop.py": PIPELINE.replace("{topic}", topic)}
    write_files(folder, {**files, **landed("first", "2026-01-01")})
    done = lakewright("run", "--at", "2026-01-02")
    assert done.exit_code == 0, done.output
    write_files(folder, landed("late", "2026-01-01", "2026-01-02"))
    assert lakewright("run", "--select", "orders", "--at", "2026-01-03").exit_code == 0

    plan = json.loads(lakewright("plan", "--at", "2026-01-03", "--json").stdout)
    reasons = {(one["name"], state["slice"]): state["reason"] for one in plan["datasets"] for state in one["slices"]}
    assert reasons["told", "2026-01-01"].endswith("; sends again")
    # What was never sent is sent for the first time, and a table of the lake is overwritten.
    assert "sends again" not in reasons["told", "2026-01-02"]
    assert "sends again" not in reasons["kept", "2026-01-01"]
    assert "2026-01-01 late" in (shown := lakewright("plan", "--at", "2026-01-03").stdout)
    assert shown.count("; sends again") == 1
