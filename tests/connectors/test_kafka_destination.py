"""A topic as a destination: a slice is sent whole or not at all, and the highest number counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from lakewright import DataOverwrite, Merger
from lakewright.connectors.kafka_client import KafkaClient, TopicState
from lakewright.connectors.kafka_destination import KafkaMessages, write_messages
from lakewright.connectors.kafka_ledger import KafkaLog, Ledger
from lakewright.connectors.kafka_producer import Message, Transaction, Transactions
from lakewright.connectors.kafka_reading import read_messages
from lakewright.errors import ConfigurationError, InputError, LeaseHeldError, MissingColumnsError, TargetError
from lakewright.failpoints import FailpointReached, arm
from lakewright.lake.delta_errors import is_transient
from lakewright.model.connections import Connection, Connections
from lakewright.model.identity import Identity
from lakewright.model.outside import Destination, Log
from lakewright.model.receipts import Change, Commit
from lakewright.testing.kafka import Kafka

DAY = "2026-01-01"


@dataclass
class Sender:
    """A dataset ``alerts`` that goes to a topic of its own, with a ledger of its own."""

    spark: SparkSession
    kafka: Kafka
    topic: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def to(self) -> KafkaMessages:
        return KafkaMessages("broker", self.topic, **{"key": "user", "ledger": f"{self.topic}.ledger", **self.options})

    @property
    def connections(self) -> Connections:
        return Connections({"broker": Connection("broker", f"kafka://{self.kafka.bootstrap}")})

    @property
    def log(self) -> Log:
        return self.to.log("alerts", connections=self.connections)

    def table(self, number: int, slice_id: str = DAY, still_mine: Any = lambda: True, kind: Any = "data") -> Any:
        who = Identity("alerts", slice_id, number, f"run-{number}", kind=kind)
        return self.to.open("alerts", who, connections=self.connections, spark=self.spark, still_mine=still_mine)

    def send(self, number: int, *rows: tuple[str | None, int], slice_id: str = DAY, **more: Any) -> Commit | None:
        return self.table(number, slice_id, **more).replace(self.frame(*rows), where="true", within=True)

    def frame(self, *rows: tuple[str | None, int]) -> DataFrame:
        frame = self.spark.createDataFrame(list(rows), "user string, n int")
        return frame.coalesce(1).selectExpr("user", "n", f"'{DAY}' AS _lw_event")

    def messages(self, topic: str | None = None) -> list[Any]:
        """Everything that a reader of committed messages sees, once all transactions are decided."""
        client = KafkaClient("test", self.kafka.bootstrap)
        places = client.state(topic or self.topic, "read_committed").high
        while client.ends(topic or self.topic, places, "read_committed") != client.ends(
            topic or self.topic, places, "read_uncommitted"
        ):
            pass
        consumer = Consumer(
            {"bootstrap.servers": self.kafka.bootstrap, "group.id": "test", "isolation.level": "read_committed",
             "enable.partition.eof": True, "fetch.wait.max.ms": 10, "auto.offset.reset": "earliest"}
        )  # fmt: skip
        consumer.assign([TopicPartition(topic or self.topic, p, 0) for p in places])
        found: list[Any] = []
        ended: set[int] = set()
        while len(ended) < len(places):
            message = consumer.poll(10)
            assert message is not None
            if message.error() is None:
                found.append(message)
            else:
                ended.add(message.partition())
        consumer.close()
        return sorted(found, key=lambda m: (m.partition(), m.offset()))

    def seen(self) -> list[tuple[str, str | None, str]]:
        """Key, value and number of what is seen, in the order of sending."""
        return [(m.key().decode(), m.value() and m.value().decode(), _number(m)) for m in self.messages()]


def _number(message: Any) -> str:
    return dict(message.headers())["lw-number"].decode()


@pytest.fixture
def sender(spark: SparkSession, kafka: Kafka) -> Iterator[Any]:
    def make(partitions: int = 1, settings: Mapping[str, str] | None = None, **options: Any) -> Sender:
        return Sender(spark, kafka, kafka.topic(partitions=partitions, settings=settings), options)

    yield make
    arm({})


def values(number: int, *rows: tuple[str, int]) -> list[tuple[str, str, str]]:
    return [(user, json.dumps({"user": user, "n": n}, separators=(",", ":")), str(number)) for user, n in rows]


def test_a_slice_is_sent_with_keys_headers_and_a_ledger_record_and_a_repeat_sends_it_again(sender):
    to = sender(headers={"how-many": "n"})
    assert isinstance(to.to, Destination)
    assert (to.to.shown, to.to.resends, to.log.exists(), to.log.bounds()) == (
        f"broker: {to.topic}", True, False, (None, None),
    )  # fmt: skip
    first = to.send(3, ("u1", 1), ("u2", 2), ("u1", 3))
    assert to.seen() == values(3, ("u1", 1), ("u2", 2), ("u1", 3))
    message = to.messages()[1]
    assert dict(message.headers()) == {
        "lw-dataset": b"alerts", "lw-slice": DAY.encode(), "lw-number": b"3", "how-many": b"2",
    }  # fmt: skip
    assert (first.version, first.rows, first.touched) == (1, 3, {DAY: Change(3, 0)})
    assert Identity.from_json(first.metadata).run_id == "run-3"

    assert to.send(3, ("late", 1)) is None  # the same number again
    assert to.send(2, ("later", 1)) is None
    other = to.send(2, slice_id="2026-01-02")  # nothing to send is a sending too
    again = to.send(5, ("u1", 1), ("u2", 2), ("u1", 3))
    assert (other.version, other.rows, again.version, again.touched) == (2, 0, 3, {DAY: Change(3, 3)})
    assert to.seen()[3:] == values(5, ("u1", 1), ("u2", 2), ("u1", 3))
    assert to.log.bounds() == (1, 3)
    assert [commit.version for commit in to.log.commits(after=1)] == [2, 3]
    assert to.log.commit(1) == first
    fence = to.table(9, kind="fence").touch()
    assert (fence.version, fence.rows, fence.data_change, len(to.seen())) == (4, 0, False, 6)
    assert to.table(9, kind="fence").touch() is None
    assert [m.key() for m in to.messages(to.to.ledger)] == [b"alerts"] * 4


@pytest.mark.parametrize("place", ["kafka.sent", "kafka.recorded"])
def test_what_fails_half_way_leaves_nothing_that_a_reader_of_committed_messages_sees(sender, place):
    to = sender()
    arm({"LAKEWRIGHT_FAILPOINT": place, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    with pytest.raises(FailpointReached):
        to.send(1, ("u1", 1), ("u2", 2))
    arm({})
    assert (to.seen(), to.log.bounds()) == ([], (None, None))
    assert to.send(2, ("u1", 1)).version == 1
    assert to.seen() == values(2, ("u1", 1))


@pytest.mark.parametrize("successor", ["has committed", "has only taken over"])
def test_a_zombie_that_wakes_in_the_middle_of_its_sending_changes_nothing(sender, successor):
    to = sender()

    def overtaken() -> bool:  # asked before the sending and directly before its end
        asked.append(len(asked))
        if len(asked) == 2:
            if successor == "has committed":
                to.send(2, ("good", 1))
            else:
                to.table(2, kind="fence").touch()
        return True

    asked: list[int] = []
    with pytest.raises(TargetError, match="took this one's place") as fenced:
        to.send(1, ("zombie", 1), still_mine=overtaken)
    assert is_transient(fenced.value)  # whoever still holds the lease may try again, under a new number
    assert to.seen() == (values(2, ("good", 1)) if successor == "has committed" else [])
    assert to.log.latest() == 1
    assert to.send(1, ("zombie", 1)) is None  # it wakes once more, and begins anew
    with pytest.raises(LeaseHeldError, match="another run has taken over"):
        to.send(3, ("zombie", 1), still_mine=lambda: False)
    assert [key for key, _, _ in to.seen()] == (["good"] if successor == "has committed" else [])


def test_projects_with_ledgers_of_their_own_send_the_same_slice_at_the_same_time(sender):
    prod, dev = sender(), sender()
    asked: list[int] = []

    def meanwhile() -> bool:  # asked before the sending and directly before its end
        asked.append(len(asked))
        if len(asked) == 2:
            dev.send(7, ("dev", 1))
        return True

    assert prod.send(1, ("prod", 1), still_mine=meanwhile).version == 1
    assert (prod.seen(), dev.seen()) == (values(1, ("prod", 1)), values(7, ("dev", 1)))


def test_an_attempt_that_is_overtaken_before_it_has_read_the_ledger_sends_nothing(sender, monkeypatch):
    """The name is taken over first: whoever reads the ledger before that does not know of what comes in between."""
    to = sender()
    overtaken: list[str] = []

    def then_a_rival(step: Any) -> Any:
        def first_of_the_two(*args: Any, **options: Any) -> Any:
            found = step(*args, **options)
            if not overtaken:
                overtaken.append(step.__qualname__)
                assert to.send(2, ("good", 1), ("good", 2)).version == 1
            return found

        return first_of_the_two

    # Whichever comes first, the rival's whole attempt lies between the two.
    monkeypatch.setattr(Transactions, "__init__", then_a_rival(Transactions.__init__))
    monkeypatch.setattr(Ledger, "refresh_all", then_a_rival(Ledger.refresh_all))
    assert to.send(1, ("zombie", 1)) is None
    assert overtaken == ["Transactions.__init__"]
    assert to.seen() == values(2, ("good", 1), ("good", 2))
    assert (to.log.bounds(), to.log.commit(1).rows) == ((1, 1), 2)


def test_keys_that_are_gone_get_tombstones_on_a_compacted_topic_unless_another_slice_has_them(sender):
    to = sender(2, {"cleanup.policy": "compact"})
    to.send(1, ("stays", 1), ("goes", 1), ("moves", 1))
    to.send(1, ("moves", 2), slice_id="2026-01-02")
    before = len(to.seen())
    commit = to.send(2, ("stays", 2))
    assert {one for one in to.seen() if one[2] == "2"} == {*values(2, ("stays", 2)), ("goes", None, "2")}
    assert len(to.seen()) == before + 2
    assert (commit.rows, commit.metrics["numDeletedRows"]) == (1, 1)
    assert to.send(3, ("stays", 3)).metrics["numDeletedRows"] == 0  # a tombstone is not repeated


def test_a_message_over_the_limit_is_told_by_key_and_size_and_nothing_is_published(sender):
    to = sender(1, {"max.message.bytes": "2000"}, value="body")
    rows = to.spark.range(60).selectExpr("concat('k', id) AS user", "repeat('x', if(id = 41, 5000, 90)) AS body")
    with pytest.raises(TargetError, match="the key 'k41' has a value of 5,000 bytes"):
        to.table(1).replace(rows, where="true")
    with pytest.raises(TargetError, match="the key 'k41' has a value of 5,000 bytes"):
        write_messages(rows, servers=to.kafka.bootstrap, topic=to.topic, key="user", value="body")
    assert (to.messages(), to.log.bounds()) == ([], (None, None))
    assert to.table(2).replace(rows.where("user <> 'k41'"), where="true").rows == 59


def test_a_refusal_is_told_also_when_the_producer_stops_before_it_reports():
    class Refused:
        """A producer as it is between the broker's refusal and its report, which comes with the second poll."""

        polls = 0

        def produce(self, topic, value, key, *, headers, on_delivery):
            if key == b"k2":
                raise KafkaException(KafkaError(KafkaError._STATE, "Unable to produce message"))
            self.report = partial(on_delivery, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), Big())

        def poll(self, seconds):
            self.polls += 1
            if self.polls == 2:
                self.report()

    class Big:
        topic, key, value = (lambda self: "alerts"), (lambda self: b"k1"), (lambda self: b"x" * 5000)

    sending = Transaction(KafkaClient("alerts", "nowhere:1"), Refused(), None, 30.0)
    sending.send("alerts", Message(b"k1", b"x" * 5000))
    with pytest.raises(TargetError, match="the key 'k1' has a value of 5,000 bytes"):
        sending.send("alerts", Message(b"k2", b"x"))


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_that_was_not_answered_is_told_as_unknown_and_a_repeat_finds_out(sender, monkeypatch, happened):
    class Deaf(Producer):
        """It never hears the answer to a commit, which the broker may have done or never seen."""

        def commit_transaction(self, *wait: float) -> None:
            if happened and not commits:
                super().commit_transaction(*wait)
            commits.append(wait)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "Timed out", False, True))

    to = sender()
    commits: list[Any] = []
    with monkeypatch.context() as deaf:
        deaf.setattr("confluent_kafka.Producer", Deaf)
        with pytest.raises(TargetError, match="whether they count is not known yet") as unknown:
            to.send(1, ("u1", 1), ("u2", 2))
    assert f"alerts: Kafka at {to.kafka.bootstrap}" in unknown.value.message
    assert f"3 messages to '{to.topic}', '{to.to.ledger}'" in unknown.value.message
    assert "Run again" in (unknown.value.hint or "")
    assert is_transient(unknown.value)
    assert len(commits) == 5  # a commit may be asked for again, and is
    assert to.seen() == (values(1, ("u1", 1), ("u2", 2)) if happened else [])
    repeat = to.send(1, ("u1", 1), ("u2", 2))
    assert (repeat is None) == happened  # it is on record, or made now
    assert to.seen() == values(1, ("u1", 1), ("u2", 2))
    with monkeypatch.context() as deaf:
        deaf.setattr("confluent_kafka.Producer", Deaf)
        with pytest.raises(TargetError, match="whether they count is not known yet") as unknown:
            write_messages(to.frame(("u3", 3)), servers=to.kafka.bootstrap, topic=to.topic, key="user")
    assert "no ledger tells" in (unknown.value.hint or "")
    assert "number" not in (unknown.value.hint or "")


class Broker:
    """A topic of one partition, as it is told of and as it is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, decided: int, records: Sequence[bytes] = ()) -> None:
        self.now, self.records, self.read = 0.0, list(records), 0
        ends = {"read_committed": decided, "read_uncommitted": 5}
        monkeypatch.setattr(
            KafkaClient, "state", lambda client, topic, isolation: TopicState(topic, "id", {0: 0}, {0: ends[isolation]})
        )
        monkeypatch.setattr("confluent_kafka.Consumer", lambda settings: self)
        for module in ("kafka_ledger", "kafka_reading"):
            clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.passes)
            monkeypatch.setattr(f"lakewright.connectors.{module}.time", clock)

    def passes(self, seconds: float) -> None:
        self.now += max(seconds, 20.0)

    def assign(self, places: Any) -> None: ...

    def close(self) -> None: ...

    def poll(self, seconds: float) -> Any:
        self.passes(seconds)
        if self.read == len(self.records):
            return None
        self.read += 1
        value, offset = self.records[self.read - 1], self.read - 1
        return SimpleNamespace(value=lambda: value, offset=lambda: offset, error=lambda: None)


def test_an_open_transaction_is_waited_for_and_tried_again_and_what_was_committed_is_not_denied(monkeypatch):
    Broker(monkeypatch, decided=3)
    ledger = Ledger(KafkaClient("alerts", "nowhere:1"), "ledger")
    with pytest.raises(TargetError, match=r"neither committed nor taken back.*Nothing was written") as waited:
        ledger.refresh_all()
    assert is_transient(waited.value)
    with pytest.raises(TargetError, match="is committed and counts, but its record in 'ledger'") as own:
        KafkaLog(ledger, "alerts", "broker: alerts").at_offset(4)
    assert is_transient(own.value)
    assert "Nothing was written" not in own.value.message


def test_a_ledger_is_read_for_as_long_as_records_come_and_then_given_up_as_what_may_pass(monkeypatch):
    broker = Broker(monkeypatch, decided=5, records=[b"of somebody else"] * 5)
    assert (Ledger(KafkaClient("alerts", "nowhere:1"), "ledger").refresh_all(), broker.now) == ([], 100.0)
    broker = Broker(monkeypatch, decided=5, records=[b"of somebody else"])
    with pytest.raises(TargetError, match=r"no Kafka broker answers at nowhere:1\. Nothing was written") as silent:
        Ledger(KafkaClient("alerts", "nowhere:1"), "ledger").refresh_all()
    assert is_transient(silent.value)
    assert "Is it running" in (silent.value.hint or "")
    with pytest.raises(TargetError, match="gave no message for 60 s") as silent:
        list(read_messages(KafkaClient("alerts", "nowhere:1"), "visits", {0: (0, 5)}, "read_committed"))
    assert is_transient(silent.value)


@pytest.mark.parametrize("wrong", ["retention.ms=604800000", "cleanup.policy=compact"])
def test_a_ledger_that_would_lose_its_records_is_refused_with_the_command_that_cures_it(kafka, wrong):
    topic = kafka.topic(settings={"retention.ms": "-1", **dict([wrong.split("=")])})
    with pytest.raises(
        TargetError, match=f"does not keep its records for ever .{wrong}.*Nothing was written"
    ) as refused:
        Ledger(KafkaClient("alerts", kafka.bootstrap), topic).create()
    cured = "--add-config cleanup.policy=delete,retention.ms=-1,retention.bytes=-1"
    assert f"--entity-name {topic} {cured}" in (refused.value.hint or "")
    kept = kafka.topic(settings={"retention.ms": "-1"})
    Ledger(KafkaClient("alerts", kafka.bootstrap), kept).create()


@pytest.mark.shows("08.horizontal-partitioner", 8)
def test_a_key_map_sends_its_keys_to_their_partition_and_all_others_to_another(sender):
    to = sender(2, partition_of={"A": 0, "B": 0}, other=1)
    to.send(1, *[(key, 1) for key in "ABCDEFABGH"])
    assert {(m.key().decode(), m.partition()) for m in to.messages()} == {
        ("A", 0), ("B", 0), *((key, 1) for key in "CDEFGH"),
    }  # fmt: skip
    to.options = {"partition_of": {"A": 2}, "other": 7}
    before = len(to.messages())
    with pytest.raises(TargetError, match=r"partition 2, 7, but the topic .* has 2 \(0 to 1\)"):
        to.send(2, ("A", 1))
    assert len(to.messages()) == before


def test_what_cannot_be_sent_is_refused_before_anything_is(sender, kafka):
    to = sender()
    with pytest.raises(MissingColumnsError, match="Did you mean 'user'"):
        Sender(to.spark, kafka, to.topic, {"key": "usr"}).send(1, ("u", 1))
    with pytest.raises(InputError, match="neither text nor bytes"):
        Sender(to.spark, kafka, to.topic, {"value": "n"}).send(1, ("u", 1))
    with pytest.raises(InputError, match="a row has no 'user'"):
        to.send(1, ("u", 1), (None, 2))
    with pytest.raises(InputError, match=f"Did you mean '{to.topic}'"):
        Sender(to.spark, kafka, f"{to.topic}x").send(1, ("u", 1))
    for call in (to.table(1).read, to.table(1).schema):
        with pytest.raises(TargetError, match="declare a KafkaTopic"):
            call()
    assert (to.messages(), to.log.bounds()) == ([], (None, None))
    to.to.check_writer("alerts", DataOverwrite())
    with pytest.raises(ConfigurationError, match="Merger cannot write to the topic"):
        to.to.check_writer("alerts", Merger(keys=["user"]))
    with pytest.raises(TargetError, match="cannot be the ledger: it has 2 partitions"):
        Sender(to.spark, kafka, to.topic, {"ledger": kafka.topic(partitions=2)}).send(1, ("u", 1))


@pytest.mark.parametrize(
    "options",
    [{"partition_of": {"A": 0}}, {"key": "k", "other": 1}, {"key": "k", "partition_of": {"A": -1}},
     {"headers": {"lw-x": "a"}}, {"ledger": "alerts"}, {"transaction_timeout": "soon"}],
)  # fmt: skip
def test_a_wrong_option_is_refused_when_the_file_is_loaded(options):
    with pytest.raises(ConfigurationError):
        KafkaMessages("broker", "alerts", **options)


def test_a_frame_can_be_sent_without_a_pipeline_and_read_back(sender):
    to = sender(2)
    rows = to.spark.sql("SELECT 'a' AS user, 7 AS n, NULL AS c, TIMESTAMP '2026-01-01 10:00:00.123456' AS at")
    assert write_messages(rows, servers=to.kafka.bootstrap, topic=to.topic, key="n", headers={"u": "user"}) == 1
    message = to.messages()[0]
    assert (message.key(), message.headers()) == (b"7", [("u", b"a")])
    assert json.loads(message.value()) == {"user": "a", "n": 7, "c": None, "at": "2026-01-01T10:00:00.123456Z"}
