"""The blog's web servers: they send the generated visits to a topic, in the order in which they happened.

A visits file is in that order, as far as web servers keep it: sessions begin one after another, and what is late,
sent twice or broken stands where it was sent. Each line is one message as it is, the broken ones too; its key is the
user, so that a user's visits stay in order.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

__all__ = ["Sending", "drop_topic", "fresh_topic", "lines_below"]

TIMEOUT_SECONDS = 30.0


def lines_below(folder: Path) -> Iterator[str]:
    """The lines of all visits files of a folder, in the order of the files."""
    for path in sorted(folder.rglob("*.json")):
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.rstrip("\n")


def fresh_topic(servers: str, topic: str, *, partitions: int = 2) -> None:
    """Make an empty topic; one of that name is deleted with all that it holds."""
    client = drop_topic(servers, topic)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            client.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT_SECONDS)
            return
        except KafkaException as error:
            # A broker deletes in the background: the name is taken for a moment longer.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def drop_topic(servers: str, topic: str) -> AdminClient:
    """Delete a topic with all that it holds, where there is one."""
    client = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    if topic in client.list_topics(timeout=TIMEOUT_SECONDS).topics:
        client.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)
    return client


class Sending(threading.Thread):
    """Sends lines at a rate (messages per second; 0: as fast as the broker takes them) in the background.

    ``sent`` counts what the broker has confirmed. After the end ``failure`` says what went wrong, if anything did.
    """

    def __init__(self, lines: Iterable[str], *, servers: str, topic: str, rate: float = 0.0) -> None:
        super().__init__(name=f"producer of {topic}", daemon=True)
        self.sent = 0
        self.failure: str | None = None
        self._lines, self._topic, self._rate = lines, topic, rate
        quiet = {"log_level": 2}  # what matters comes by way of `_confirmed`
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 20, **quiet})
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Send nothing more, and wait for what is under way."""
        self._stopped.set()
        if self.is_alive():
            self.join(TIMEOUT_SECONDS)

    def run(self) -> None:
        try:
            self._send()
            if left := self._producer.flush(TIMEOUT_SECONDS):
                self.failure = self.failure or f"{left} messages were not confirmed by the broker"
        except Exception as error:
            self.failure = str(error)

    def _send(self) -> None:
        began = time.monotonic()
        for number, line in enumerate(self._lines):
            early = began + number / self._rate - time.monotonic() if self._rate else 0.0
            if early > 0.005:
                self._producer.poll(0)
                self._stopped.wait(early)
            if self._stopped.is_set() or self.failure is not None:
                return
            self._hand_over(line)

    def _hand_over(self, line: str) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value=line.encode(), key=_key(line), on_delivery=self._confirmed)
                self._producer.poll(0)
                return
            except BufferError:  # the queue is full: let the broker catch up
                self._producer.poll(0.1)

    def _confirmed(self, error: Any, message: Any) -> None:
        if error is None:
            self.sent += 1
        else:
            self.failure = str(error)


def _key(line: str) -> str | None:
    try:
        return str(json.loads(line)["user_id"])
    except (ValueError, KeyError, TypeError):
        return None  # who sends garbage does not say for whom
