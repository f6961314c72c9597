"""`make chaos`: a broker that is killed between two bins, and comes back; what was not acknowledged is sent again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from lakewright.connectors.kafka_ordered import KafkaSink
from lakewright.patterns.data_value.bin_pack_orderer import deliver_bins
from lakewright.patterns.data_value.ordered_delivery import Patience
from lakewright.patterns.data_value.ordered_sinks import Outgoing
from tests.chaos.test_stream_kills import Services, services
from tests.patterns.data_value.ordered_victim import BINS
from tests.pipelines.topics import fresh_topic

__all__ = ["services"]

pytestmark = pytest.mark.chaos


def test_a_broker_that_dies_between_two_bins_and_comes_back_gets_the_rest_in_order(services: Services) -> None:
    topic = fresh_topic(services.kafka)

    def cut_between() -> Iterator[Outgoing]:
        for record in BINS:
            if record.id == "A3":  # bin 1 is acknowledged, bin 2 is being put together
                services.kill("kafka")
                threading.Thread(target=services.start).start()
            yield record

    sink = KafkaSink(services.kafka.bootstrap, topic, timeout_seconds=3)
    done = deliver_bins(cut_between(), sink, patience=Patience(tries=20, pause_seconds=0.5))
    assert (done.records, done.tried_again > 0) == (len(BINS), True)
    consumer = Consumer(
        {"bootstrap.servers": services.kafka.bootstrap, "group.id": "t", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    while "A4" not in found:
        found += [dict(message.headers())["lw-id"].decode() for message in consumer.consume(100, timeout=5)]
    consumer.close()
    assert list(dict.fromkeys(found)) == [record.id for record in BINS]
