"""kill -9 between two bins: nothing is lost, and by the ids of a repeat each entity keeps its order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.patterns.data_value.deliveries import AT_ONCE, Partner
from tests.patterns.data_value.ordered_victim import BINS, EVENTS, sinks
from tests.pipelines.topics import fresh_topic
from tests.processes import killed

from lakewright.patterns.data_value.bin_pack_orderer import deliver_bins
from lakewright.patterns.data_value.fifo_orderer import deliver_pipelined
from lakewright.testing.kafka import Kafka
from lakewright.testing.postgres import Postgres

ROOT = Path(__file__).resolve().parents[3]
WHOLE = [record.id for record in BINS]
TAKEN = WHOLE[:5]
"""What was acknowledged when it died: the first two bins."""


def ids_in(kafka: Kafka, topic: str, last: str) -> list[str]:
    """The ids of a topic's records up to the one that only a whole delivery ends with."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "t", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    while last not in found:
        if (message := consumer.poll(5)) is not None:
            found.append(dict(message.headers())["lw-id"].decode())
    consumer.close()
    return found


@pytest.mark.shows("05.bin-pack-orderer", 6)
@pytest.mark.shows("05.fifo-orderer", 5)
def test_a_delivery_that_is_killed_between_two_bins_is_done_again_and_each_record_is_there_once_in_order(
    kafka: Kafka, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    partner, at = Partner(), postgres.database()
    places = {
        "broker": kafka.bootstrap,
        "topic": fresh_topic(kafka),
        "fifo": fresh_topic(kafka),
        "database": f"postgresql://{at.user}@{at.host}:{at.port}/{at.name}",
        "address": f"{partner.url}/feed",
    }

    def stored() -> list[str]:
        with at.connect() as session:
            return [row[0] for row in session.execute(b"SELECT id FROM feed ORDER BY position").fetchall()]

    def posted() -> list[str]:
        return [record["id"] for record in partner.taken["/feed"]]

    killed(ROOT, "-m", "tests.patterns.data_value.ordered_victim", json.dumps(places), failpoint="none")
    assert stored() == posted() == TAKEN

    for name, sink in sinks(places).items():
        if name == "fifo":
            deliver_pipelined(EVENTS, sink)
        else:
            deliver_bins(BINS, sink, patience=AT_ONCE)
    assert stored() == WHOLE  # where ids are unique, each record is there once
    assert posted() == TAKEN + WHOLE  # elsewhere whoever reads leaves out what it has
    assert ids_in(kafka, places["topic"], "A4") == TAKEN + WHOLE
    sent = ids_in(kafka, places["fifo"], "A50")
    again = [record.id for record in EVENTS]
    assert sent[-50:] == again
    assert sent[:-50] == again[: len(sent) - 50]  # nothing had overtaken anything
    partner.close()
