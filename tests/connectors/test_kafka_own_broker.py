"""What only a broker of the test's own can show: one that dies in the middle of a sending, one that asks who it is."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.shop import land, ok, order
from tests.pipelines.topics import committed

from lakewright import KafkaTopic
from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_destination import write_messages
from lakewright.connectors.kafka_errors import in_words
from lakewright.connectors.kafka_ledger import Ledger
from lakewright.connectors.kafka_producer import Transaction, Transactions
from lakewright.errors import TargetError
from lakewright.lake.delta_errors import is_transient
from lakewright.model.connections import Connection, Connections
from lakewright.model.protocols import SourceContext
from lakewright.model.secrets import Secret
from lakewright.runtime.services import guard, processes, up
from lakewright.runtime.services import kafka as kafka_service
from lakewright.runtime.services.ports import HOST, free_port
from lakewright.runtime.services.processes import this_process
from lakewright.runtime.services.state import Place
from lakewright.testing.kafka import Kafka

PIPELINE = """
    from lakewright import JsonFiles, KafkaMessages, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at", into=KafkaMessages("broker", "{topic}", key="order_id", ledger="{topic}.ledger",
                                                      answer_timeout="3 seconds"))
    def told(orders):
        return orders.select("order_id", "at")
"""


class Broker:
    """A broker that a test may kill, on its data and its port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kafka = Kafka("")
        self.start()

    def start(self) -> None:
        (found,) = up(self.folder, ["kafka"], only_while=this_process())
        assert found.address is not None
        self.kafka = Kafka(found.address.url)

    def kill(self) -> None:
        state = Place(self.folder / "kafka").load()
        assert state is not None
        assert state.process is not None
        processes.send(state.process, signal.SIGKILL)
        assert processes.wait_until_gone([state.process], 30)


@pytest.fixture
def own_broker() -> Iterator[Callable[[], Broker]]:
    folder = Path(tempfile.mkdtemp(prefix="lakewright-broker-"))
    guard.ensure(folder, this_process())
    yield lambda: Broker(folder)
    guard.throw_away(folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_broker_that_dies_while_a_slice_is_sent_costs_a_repeat_and_each_record_counts_once(
    project: Any, own_broker: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = own_broker()
    topic = broker.kafka.topic()
    settings = f'name = "shop"\n[connections.broker]\nurl = "kafka://{broker.kafka.bootstrap}"\n'
    shop = project({"lakewright.toml": settings, "pipelines/shop.py": PIPELINE.replace("{topic}", topic)})
    land(shop.folder, "one.json", [order(f"o{n}", "2026-01-01T10:00:00Z") for n in range(3)])
    send, flush = Transaction.send, Transaction.flush
    sent: list[str] = []
    told: list[TargetError] = []

    def dies_first(self: Transaction, to: str, message: Any) -> None:
        if not sent:
            broker.kill()
        sent.append(to)
        send(self, to, message)

    def comes_back_later(self: Transaction) -> None:
        try:
            flush(self)
        except TargetError as error:
            told.append(error)
            broker.start()
            raise

    monkeypatch.setattr(Transaction, "send", dies_first)
    monkeypatch.setattr(Transaction, "flush", comes_back_later)
    ok(shop.run(at="2026-01-02"))

    (gone,) = told
    assert gone.message == (
        f"told: Kafka at {broker.kafka.bootstrap} has taken no message for 3 s, and 3 to the topic '{topic}' are left. "
        "Nothing of this slice counts: the transaction is not committed."
    )
    assert "Is the broker running" in (gone.hint or "")
    assert is_transient(gone)
    assert sent == [topic] * 3 + [topic] * 3 + [f"{topic}.ledger"]
    seen = committed(broker.kafka, topic)
    (entry,) = Ledger(KafkaClient("test", broker.kafka.bootstrap), f"{topic}.ledger").refresh_all()
    assert [(one.key, one.number) for one in seen] == [(f"o{n}", entry.number) for n in range(3)]
    assert entry.rows == 3


def test_a_wrong_password_is_told_as_such_and_not_tried_again(
    spark: Any, own_broker: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    properties = kafka_service.PROPERTIES
    for before, more in (
        ("\nlisteners=PLAINTEXT://{host}:{port}", f",SASL://{HOST}:{port}"),
        ("\nadvertised.listeners=PLAINTEXT://{host}:{port}", f",SASL://{HOST}:{port}"),
        ("PLAINTEXT:PLAINTEXT", ",SASL:SASL_PLAINTEXT"),
    ):
        assert before in properties
        properties = properties.replace(before, before + more)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties += (
        "listener.name.sasl.sasl.enabled.mechanisms=PLAIN\n"
        f'listener.name.sasl.plain.sasl.jaas.config={module} required user_ann="the-right-one";\n'
    )
    monkeypatch.setattr(kafka_service, "PROPERTIES", properties)
    topic = own_broker().kafka.topic()
    rows = spark.sql("SELECT 'a' AS user")

    def login(password: str) -> dict[str, str]:
        who = {"sasl.mechanisms": "PLAIN", "sasl.username": "ann", "sasl.password": password}
        return {"security.protocol": "SASL_PLAINTEXT", **who}

    def look(password: str) -> None:
        monkeypatch.setenv("THE_PASSWORD", password)
        options = {**login(password), "sasl.password": Secret("secret://env/THE_PASSWORD")}
        broker = Connection("broker", f"kafka://{HOST}:{port}", options=options)
        ctx = SourceContext("visits", Path("/nowhere"), connections=Connections({"broker": broker}))
        KafkaTopic("broker", topic, value="text").look(ctx)

    def write(password: str) -> None:
        write_messages(rows, servers=f"{HOST}:{port}", topic=topic, options=login(password))

    def take_over(password: str) -> None:
        client = KafkaClient("visits", f"{HOST}:{port}", login(password))
        with in_words(client.explain(topic, "Nothing was published.")):
            Transactions(client, "lw:visits", timeout=timedelta(minutes=1), answer_timeout="2 seconds")

    for works in (look, write, take_over):
        works("the-right-one")
    for refuses in (look, write, take_over):
        with pytest.raises(TargetError, match=r"did not let us in: .*Invalid username or password") as refused:
            refuses("the-wrong-one")
        assert not is_transient(refused.value)
        assert "sasl.*" in (refused.value.hint or "")
        assert "the-wrong-one" not in f"{refused.value} {refused.value.__cause__!r}"
