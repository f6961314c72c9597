"""The process that is killed while it delivers to several targets at once, all of them half-way. For tests only."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from tests.patterns.data_value.deliveries import records

from lakewright.connectors.http_ordered import HttpSink
from lakewright.connectors.kafka_ordered import KafkaSink
from lakewright.connectors.postgres_ordered import PostgresSink
from lakewright.model.connections import Connection
from lakewright.model.secrets import Secret
from lakewright.patterns.data_value.bin_pack_orderer import deliver_bins, pack
from lakewright.patterns.data_value.fifo_orderer import FifoOrderer, deliver_pipelined
from lakewright.patterns.data_value.ordered_sinks import Outgoing, Sink

__all__ = ["BINS", "EVENTS", "sinks"]

BINS = [record for one in pack(records(A=4, B=3, C=1)) for record in one]
"""Four bins: A1 B1 C1, A2 B2, A3 B3, A4."""
EVENTS = records(A=50)


def sinks(places: dict[str, str]) -> dict[str, Sink]:
    """The targets by name; ``fifo`` is one that is handed records without waiting for each."""
    database = Connection("db", places["database"], Secret("secret://env/PG_TEST_PASSWORD"))
    in_order = FifoOrderer(variant="idempotent").producer_options()
    return {
        "kafka": KafkaSink(places["broker"], places["topic"]),
        "postgres": PostgresSink(database, "feed").prepared({}),
        "http": HttpSink(places["address"]),
        "fifo": KafkaSink(places["broker"], places["fifo"]).prepared(in_order),
    }


def main(places: dict[str, str]) -> None:
    """Deliver to all of them, up to the moment at which the third bin is being put together, and die there."""
    found = sinks(places)
    together = threading.Barrier(len(found), action=lambda: os.kill(os.getpid(), signal.SIGKILL))

    def half_of(sent: Sequence[Outgoing], last: str) -> Iterator[Outgoing]:
        for record in sent:
            if record.id == last:
                together.wait()
            yield record

    for name, sink in found.items():
        work = (deliver_pipelined, half_of(EVENTS, "A30")) if name == "fifo" else (deliver_bins, half_of(BINS, "A4"))
        threading.Thread(target=work[0], args=(work[1], sink)).start()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
