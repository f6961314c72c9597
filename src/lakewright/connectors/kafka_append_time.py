"""Who gives a topic's messages their time: the broker when it appends them, or the producer, who may say anything.

A key that is made of append times (Keyed Idempotency) stays the same only where the broker gives them.
"""

from __future__ import annotations

import logging
from typing import Literal

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.errors import ConfigurationError

__all__ = ["ProducerTimes", "check_append_time"]

ProducerTimes = Literal["allow", "warn", "refuse"]

_LOG = logging.getLogger("lakewright.kafka")
_LOG.addHandler(logging.NullHandler())
_SETTING = "message.timestamp.type"
_BY_BROKER = "LogAppendTime"


def check_append_time(client: KafkaClient, topic: str, *, producer_times: ProducerTimes = "refuse") -> str | None:
    """Ask the broker who gives the times; what is wrong with that, in words, or None. Reads no message.

    ``"refuse"`` stops where the producer gives them, ``"warn"`` logs it (``lakewright.kafka``), ``"allow"`` asks
    nothing.
    """
    if producer_times == "allow":
        return None
    kind = client.settings(topic).get(_SETTING, "CreateTime")
    if kind == _BY_BROKER:
        return None
    told = (
        f"{client.who}: the messages of the topic '{topic}' have the time that their producer gave them "
        f"({_SETTING}={kind}): a repeat may find another first message, and another key."
    )
    if producer_times == "refuse":
        raise ConfigurationError(
            f"{told} Nothing was read.",
            hint=f"Set {_SETTING}={_BY_BROKER} on the topic, or choose a key that needs no append time.",
        )
    _LOG.warning("%s", told)
    return told
