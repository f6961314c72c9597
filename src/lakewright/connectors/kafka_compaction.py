"""Log compaction of a topic, a variant of Compactor: its settings read, and what they mean for readers told in words.

The broker does the work, when it finds the time: nothing here starts it. How many older messages of a key are left can
never be told, so every reader folds by key (``keep_latest_per_key``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lakewright.connectors.kafka_client import KafkaClient

__all__ = ["LogCompaction", "check_log_compaction"]

_FOR_EVER = 2**62
_DAY = 86_400_000


@dataclass(frozen=True, slots=True)
class LogCompaction:
    """How a topic cleans up, and what to know about it."""

    topic: str
    compacts: bool
    deletes: bool
    min_lag_ms: int
    """A message is safe from compaction for so long."""
    max_lag_ms: int
    """Within so long an older message is looked at, if its segment is full or old enough by then."""
    findings: tuple[str, ...]


def check_log_compaction(client: KafkaClient, topic: str, *, reads_within: timedelta | None = None) -> LogCompaction:
    """Ask the broker how a topic cleans up; reads no message.

    ``reads_within`` is how far behind a reader may be that has to see every message, not only the last of each key.
    """
    settings = client.settings(topic)
    policies = {one.strip() for one in settings.get("cleanup.policy", "delete").split(",")}
    shortest, longest = (int(settings.get(f"{which}.compaction.lag.ms", "0")) for which in ("min", "max"))
    found = LogCompaction(topic, "compact" in policies, "delete" in policies, shortest, longest, ())
    return LogCompaction(
        topic, found.compacts, found.deletes, shortest, longest, tuple(_findings(found, settings, reads_within))
    )


def _findings(found: LogCompaction, settings: dict[str, str], reads_within: timedelta | None) -> list[str]:
    if not found.compacts:
        return [
            f"The topic is not compacted (cleanup.policy={settings.get('cleanup.policy')}): messages go by age or size."
        ]
    told = ["Older messages of a key may stay: the broker cleans when it finds the time. Readers fold by key."]
    if found.deletes:
        age = int(settings.get("retention.ms", "-1"))
        limit = "by size" if age < 0 else f"after {_length(age)}"
        told.append(
            f"It deletes as well ({limit}): a key that is not sent again is lost then (cleanup.policy=compact,delete)."
        )
    if reads_within is not None and found.min_lag_ms < reads_within.total_seconds() * 1000:
        told.append(
            f"A message may be dropped {_length(found.min_lag_ms)} after it came (min.compaction.lag.ms); a reader "
            f"that is {_length(int(reads_within.total_seconds() * 1000))} behind would not see it."
        )
    if found.max_lag_ms >= _FOR_EVER:
        told.append(
            "Nothing says by when it is cleaned (max.compaction.lag.ms is not set): older values may stay for ever."
        )
    kept = int(settings.get("delete.retention.ms", str(_DAY)))
    told.append(
        f"A tombstone is there for {_length(kept)} (delete.retention.ms): a reader that is slower keeps the key."
    )
    return told


def _length(milliseconds: int) -> str:
    for unit, size in (("day", _DAY), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if milliseconds >= size:
            count = milliseconds / size
            shown = f"{count:.1f}".removesuffix(".0")
            return f"{shown} {unit}{'' if shown == '1' else 's'}"
    return f"{milliseconds} ms"
