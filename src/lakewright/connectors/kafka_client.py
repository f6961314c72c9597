"""What a topic is and holds just now, asked by the driver: quick questions that read no message."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from lakewright.connectors.kafka_errors import (
    code_of,
    explain_kafka_error,
    in_words,
    is_refused_login,
    is_silence,
    unknown_topic,
)
from lakewright.connectors.kafka_options import driver_options, servers_of, spark_options
from lakewright.errors import ConfigurationError, LakewrightError
from lakewright.model.connections import Connections

__all__ = ["Isolation", "KafkaClient", "TopicState"]

Isolation = Literal["read_committed", "read_uncommitted"]
_NOT_YET = ("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PART")
_PAUSE_SECONDS = 0.05
_TIMEOUT_SECONDS = 4.0
"""How long a question may take: a broker that is down is told in seconds."""
_WENT = ("isconnected", "onnection reset", "timed out")
_REFUSAL_SECONDS = 15.0
"""A login that is refused for good is refused again within 10 s, the longest that librdkafka waits by default."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is: its id (a topic made anew has another) and, by partition, the first offset and the end."""

    topic: str
    id: str
    low: Mapping[int, int]
    high: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class KafkaClient:
    """A broker, and who asks."""

    who: str
    """For errors: the dataset."""
    servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    _open: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _refusals: list[tuple[float, Exception]] = field(default_factory=list, repr=False, compare=False)
    """The last refused login and when it was told: a call of librdkafka itself only says that nobody answered."""

    @classmethod
    def connect(cls, connections: Connections, name: str, *, asked_by: str) -> KafkaClient:
        """The client of a connection by its name; nothing is asked yet."""
        connection = connections.get(name, kind="kafka", asked_by=asked_by)
        return cls(asked_by, servers_of(connection.url), connection.revealed_options())

    def __post_init__(self) -> None:
        if importlib.util.find_spec("confluent_kafka") is None:
            raise ConfigurationError(
                f"{self.who}: Kafka needs the package confluent-kafka.", hint="Run: pip install 'lakewright[kafka]'"
            )

    def driver_options(self) -> dict[str, Any]:
        """Settings for a client of librdkafka, which tells this one of refused logins whenever it is polled."""
        return {**driver_options(self.servers, self.options), "error_cb": _note_refusal(self._refusals)}

    def spark_options(self) -> dict[str, str]:
        """Options for Spark's Kafka source."""
        return spark_options(self.servers, self.options)

    def state(self, topic: str, isolation: Isolation) -> TopicState:
        """The topic now; its end is, for ``read_committed``, before the first transaction that is still open."""
        from confluent_kafka import TopicCollection

        with self._explained(topic):
            admin = self._admin()
            try:
                answer = admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_SECONDS)
                found = answer[topic].result()
            except Exception as error:
                if code_of(error) != "UNKNOWN_TOPIC_OR_PART":
                    raise
                raise unknown_topic(self.who, topic, _topics(admin)) from None
            partitions = [partition.id for partition in found.partitions]
            low = _offsets(admin, topic, partitions, _specs().earliest(), isolation)
            high = _offsets(admin, topic, partitions, _specs().latest(), isolation)
        return TopicState(topic, str(found.topic_id), low, high)

    def ends(self, topic: str, partitions: Iterable[int], isolation: Isolation) -> dict[int, int]:
        """The end of each partition, as ``state`` tells it."""
        with self._explained(topic):
            return _offsets(self._admin(), topic, partitions, _specs().latest(), isolation)

    def at_time(self, state: TopicState, moment: datetime, isolation: Isolation) -> dict[int, int]:
        """The first record at or after a moment; the end of a partition that has none."""
        spec = _specs().for_timestamp(int(moment.timestamp() * 1000))
        with self._explained(state.topic):
            found = _offsets(self._admin(), state.topic, state.high, spec, isolation)
        return {p: state.high[p] if offset < 0 else offset for p, offset in found.items()}

    def settings(self, topic: str) -> dict[str, str]:
        """The settings of a topic, the broker's defaults included."""
        module = _admin_module()
        with self._explained(topic):
            asked = [module.ConfigResource(module.RESOURCE_TOPIC, topic)]
            answer = self._admin().describe_configs(asked, request_timeout=_TIMEOUT_SECONDS)
            found = next(iter(answer.values())).result()
        return {name: str(entry.value) for name, entry in found.items()}

    def create(self, topic: str, settings: Mapping[str, str], *, partitions: int = 1) -> None:
        """Make a topic; one that is already there stays as it is."""
        new = _admin_module().NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=dict(settings))
        with self._explained(topic):
            try:
                self._admin().create_topics([new], request_timeout=_TIMEOUT_SECONDS)[topic].result()
            except Exception as error:
                if code_of(error) != "TOPIC_ALREADY_EXISTS":
                    raise

    def explain(self, topic: str, effect: str) -> Callable[[BaseException], LakewrightError | None]:
        """How this client words an error."""

        def told(error: BaseException) -> LakewrightError | None:
            refused = self.refused_login() if is_silence(error) else None
            explained = explain_kafka_error(
                refused or error, who=self.who, servers=self.servers, topic=topic, effect=effect
            )
            if explained is not None and refused is not None:
                explained.__cause__ = refused  # a wrong password does not pass, as a timeout does
            return explained

        return told

    def refused_login(self) -> Exception | None:
        """Why a broker did not let us in, where that is what happened; to be asked when nobody answered."""
        if self._open:
            self._open["admin"].poll(0)
        recent = time.monotonic() - _REFUSAL_SECONDS
        return next((failure for told_at, failure in self._refusals if told_at > recent), None)

    def cluster_id(self, *, timeout_seconds: float) -> str:
        """The id of the brokers' cluster."""
        return str(self._admin().list_topics(timeout=timeout_seconds).cluster_id)

    def _explained(self, topic: str) -> AbstractContextManager[None]:
        return in_words(self.explain(topic, "Nothing was read or written."))

    def _admin(self) -> Any:
        if not self._open:
            self._open["admin"] = _admin_module().AdminClient(self.driver_options())
        self._open["admin"].poll(0)  # or what it has to tell of its connections would pile up
        return self._open["admin"]


def _note_refusal(refusals: list[tuple[float, Exception]]) -> Callable[[Any], None]:
    """What librdkafka calls with each error of a connection. It holds the list only: a client must be able to end."""

    def note(error: Any) -> None:
        from confluent_kafka import KafkaException

        # One that went in the middle of a login or a handshake has refused nothing, and may come back.
        went = any(word in str(error.str()) for word in _WENT)
        if is_refused_login(failure := KafkaException(error)) and not went:
            refusals[:] = [(time.monotonic(), failure)]

    return note


def _admin_module() -> Any:
    """Loaded when it is needed: the package is an extra, and much of this module is not typed."""
    return importlib.import_module("confluent_kafka.admin")


def _specs() -> Any:
    return _admin_module().OffsetSpec


def _topics(admin: Any) -> tuple[str, ...]:
    names = admin.list_topics(timeout=_TIMEOUT_SECONDS).topics
    return tuple(name for name in names if not name.startswith("__"))


def _offsets(admin: Any, topic: str, partitions: Iterable[int], spec: Any, isolation: Isolation) -> dict[int, int]:
    from confluent_kafka import IsolationLevel, TopicPartition

    level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
    asked = {TopicPartition(topic, partition): spec for partition in partitions}
    until = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        answer = admin.list_offsets(asked, isolation_level=level, request_timeout=_TIMEOUT_SECONDS)
        try:
            return {place.partition: future.result().offset for place, future in answer.items()}
        except Exception as error:
            # Of a topic that was just made, or whose leader has changed, the broker may not know all at once.
            if code_of(error) not in _NOT_YET or time.monotonic() > until:
                raise
            time.sleep(_PAUSE_SECONDS)
