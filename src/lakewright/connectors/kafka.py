"""A Kafka topic as a source: in batch by recorded offsets, or as a stream.

Guarantee:
    An arrival is a range of offsets per partition, recorded before it is read: every repeat reads the same messages,
    and together the arrivals hold each message once. Where the topic cannot keep that promise (records deleted before
    they were read, the topic made anew), nothing is read and the error says which records are lost; nothing is ever
    skipped silently. To go on is to read all that is left, also of an arrival that was recorded. A record tells its
    topic, partition and offset, also in the dead letters.
Consequences:
    - A message that does not parse is kept with its raw text (``_lw_raw``). One without a value (a tombstone) is, for
      JSON, a record without a value: raw text empty, in the dead letters under ``record without a value``, its key
      beside it. For ``text`` and ``bytes`` it is a row whose value is NULL.
    - With ``isolation="read_committed"`` messages of a transaction arrive when it is committed; an open transaction
      holds back what came after it in its partition.
    - An arrival can be read again as long as the topic holds it (``retention.ms``), after that from bronze. A
      compacted topic may have dropped messages that a newer one of the same key replaced.
    - ``start="latest"`` records an arrival without rows, which is where the next one begins.
    - To look asks the broker a few quick questions; one that is down is told within seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, get_args

from lakewright.connectors.kafka_append_time import ProducerTimes, check_append_time
from lakewright.connectors.kafka_client import Isolation
from lakewright.connectors.kafka_errors import explain_kafka_error
from lakewright.connectors.kafka_places import TopicPlaces
from lakewright.connectors.kafka_records import MessageShape, ValueKind, offsets_json, read_ranges
from lakewright.connectors.kafka_windows import (
    IfLost,
    after,
    gone_of,
    left_of,
    listed,
    ranges_of,
    share,
    window_of,
)
from lakewright.errors import ConfigurationError, InputError, LakewrightError
from lakewright.model.arrivals import Arrival, Window
from lakewright.model.columns import OFFSET_COLUMN, PARTITION_COLUMN, SYSTEM_PREFIX
from lakewright.model.protocols import Found, SourceContext
from lakewright.model.times import parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["KafkaTopic", "after"]

_EARLIEST = -2
_OURS = {"mode": "every record is kept", "columnnameofcorruptrecord": "it is _lw_raw"}


@dataclass(frozen=True, slots=True)
class KafkaTopic(TopicPlaces):
    """A topic of the broker that a connection names: ``KafkaTopic("broker", "visits")``."""

    connection: str
    topic: str
    _: KW_ONLY
    start: str | datetime = "earliest"
    """Where the first arrival begins: ``"earliest"``, ``"latest"`` or a time (UTC), by the messages' timestamps."""
    value: ValueKind = "json"
    key: str | None = None
    """A column for the message's key: text, or bytes where the schema declares it as BINARY."""
    headers: str | None = None
    """A column for the headers: a map of texts, or the schema declares ARRAY<STRUCT<key: STRING, value: BINARY>>."""
    timestamp: str | None = None
    """A column for the message's own time."""
    max_records: int | None = None
    """At most so many offsets in one arrival, in proportion to what the partitions have, and at least one of each."""
    isolation: Isolation = "read_committed"
    if_lost: IfLost = "fail"
    """What to do when records were deleted before they were read: refuse, or go on and note the gap."""
    producer_times: ProducerTimes = "allow"
    """What to do where the producer gives messages their time, not the broker: see Keyed Idempotency."""
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """More options for the JSON parser, such as ``timestampFormat``."""

    def __post_init__(self) -> None:
        for name in ("connection", "topic"):
            if not getattr(self, name):
                raise ConfigurationError(f"KafkaTopic: the {name} is empty. Write KafkaTopic('broker', 'visits').")
        choices = {"value": ValueKind, "isolation": Isolation, "if_lost": IfLost, "producer_times": ProducerTimes}
        for name, kind in choices.items():
            if getattr(self, name) not in get_args(kind):
                allowed = ", ".join(repr(one) for one in get_args(kind))
                raise ConfigurationError(f"KafkaTopic: {name} is one of {allowed}, not {getattr(self, name)!r}.")
        if self.max_records is not None and self.max_records < 1:
            raise ConfigurationError(f"KafkaTopic: max_records is {self.max_records}. It must be at least 1, or None.")
        if self.start not in ("earliest", "latest"):
            object.__setattr__(self, "start", parse_time(self.start))
        own = [name for name in (self.key, self.headers, self.timestamp) if name is not None]
        if len(set(own)) < len(own) or any(name.lower().startswith(SYSTEM_PREFIX) for name in own):
            raise ConfigurationError(f"KafkaTopic: {', '.join(own)}: each part needs a column name of its own.")
        for name in self.options:
            if name.lower() in _OURS:
                raise ConfigurationError(f"KafkaTopic: '{name}' cannot be set here: {_OURS[name.lower()]}.")

    @property
    def repeatable(self) -> bool:
        """Yes, as long as the topic holds the offsets."""
        return True

    @property
    def place_columns(self) -> tuple[str, str]:
        """The columns that tell a record's partition, and its place there."""
        return PARTITION_COLUMN, OFFSET_COLUMN

    def look(self, ctx: SourceContext) -> Found | None:
        """The offsets since the last arrival; None where there are none. Reads no message."""
        client = self._client(ctx)
        check_append_time(client, self.topic, producer_times=self.producer_times)
        state = client.state(self.topic, self.isolation)
        last = ctx.last_window
        if last is None:
            starts, lost = self._first(client, state), dict[int, tuple[int, int]]()
        else:
            positions = {p: end for p, (_, end) in ranges_of(last).items()}
            starts, lost = self._go_on(client, state, positions, last, ctx)
        # The end may lie before the position, where this source used to read open transactions too.
        available = {p: (first, max(first, state.high[p])) for p, first in starts.items()}
        ranges = share(available, self.max_records)
        count = sum(end - first for first, end in ranges.values())
        if not count and not lost and not (last is None and self.start == "latest"):
            return None
        return Found(window=window_of(state, ranges, lost), summary=_summary(ranges, count, lost))

    def gone(self, arrival: Arrival, ctx: SourceContext) -> Sequence[str]:
        """The offsets of the arrival that the topic no longer holds, or that it was made anew."""
        client = self._client(ctx)
        try:
            state = client.state(self.topic, self.isolation)
        except InputError as error:
            return [error.message]
        return gone_of(arrival.window, state, client.ends(self.topic, state.high, "read_uncommitted"))

    def left(self, arrival: Arrival, ctx: SourceContext) -> Found:
        """The offsets of the arrival that the topic still holds, and of which the window notes that they are lost."""
        client = self._client(ctx)
        state = client.state(self.topic, self.isolation)
        ends = client.ends(self.topic, state.high, "read_uncommitted")
        ranges, lost = left_of(ctx.dataset, arrival.window, state, ends)
        count = sum(end - first for first, end in ranges.values())
        return Found(window=window_of(state, ranges, lost), summary=_summary(ranges, count, lost))

    def read(
        self, arrival: Arrival, *, spark: SparkSession, schema: StructType | None, ctx: SourceContext
    ) -> DataFrame:
        """Every message of the arrival's offsets; lazy."""
        ranges = ranges_of(arrival.window)
        return self._records(read_ranges(spark, self.topic, ranges, self._spark_options(ctx)), schema, ctx)

    def stream(
        self,
        *,
        spark: SparkSession,
        schema: StructType | None,
        ctx: SourceContext,
        start: Window | None = None,
        reached: str | None = None,
        max_records: int | None = None,
    ) -> DataFrame:
        """The same columns as a streaming frame that begins where ``start`` begins (without it: at ``self.start``).

        Once the stream has a checkpoint, that tells where it goes on; ``reached`` is how far it was at least, in the
        words of Spark's source. New partitions are read from their beginning. Refused where the topic was made anew
        since ``start`` was noted, or has lost what comes next: Spark alone would not notice, or read on in silence.
        """
        client = self._client(ctx)
        check_append_time(client, self.topic, producer_times=self.producer_times)
        state = client.state(self.topic, self.isolation)
        if start is None:
            starts = self._first(client, state)
        else:
            positions = {p: first for p, (first, _) in ranges_of(start).items()} | self._offsets(reached)
            known, lost = self._go_on(client, state, positions, start, ctx, stream=True)
            if lost:  # a gap was told before, where there was one: these are more
                raise InputError(
                    f"{ctx.dataset}: records of the topic '{self.topic}' were deleted while the stream was starting "
                    f"({listed(lost)}). Nothing was read.",
                    hint="Run again: it goes on after them, and tells the gap.",
                )
            starts = {p: known[p] if p in positions else _EARLIEST for p in known}
        most = max_records or self.max_records
        reader = (
            spark.readStream.format("kafka")
            .options(**self._spark_options(ctx))
            .option("subscribe", self.topic)
            .option("failOnDataLoss", "true")
            .option("startingOffsets", offsets_json(self.topic, starts))
        )
        messages = (reader if most is None else reader.option("maxOffsetsPerTrigger", most)).load()
        return self._records(messages, schema, ctx)

    def explain(self, error: BaseException, dataset: str) -> LakewrightError | None:
        """What a failed stream of this topic means to people; None where it has nothing to do with Kafka."""
        effect = "Nothing of this micro-batch was written."
        return explain_kafka_error(error, who=dataset, topic=self.topic, effect=effect)

    def complete_schema(self, schema: StructType | None) -> StructType | None:
        """The declared columns, and those of key, headers and timestamp where the schema does not name them."""
        return self._shape().complete(schema)

    def gained_columns(self, arrival: Arrival, *, schema: StructType, ctx: SourceContext) -> dict[str, str]:
        """Nothing: fields that the schema does not name are not seen."""
        return {}

    def _shape(self) -> MessageShape:
        return MessageShape(self.value, self.key, self.headers, self.timestamp)

    def _records(self, messages: DataFrame, schema: StructType | None, ctx: SourceContext) -> DataFrame:
        from lakewright.connectors.records import refuse_system_columns

        shape = self._shape()
        declared = shape.complete(schema)
        if declared is None:
            raise ConfigurationError(
                f"{ctx.dataset}: KafkaTopic needs a schema for JSON values.",
                hint="Declare it: schema='visit_id STRING, event_time TIMESTAMP'; or read them as value='text'.",
            )
        refuse_system_columns(ctx.dataset, declared)
        return shape.records(messages, dataset=ctx.dataset, schema=declared, options=self.options)


def _summary(ranges: Mapping[int, tuple[int, int]], count: int, lost: Mapping[int, tuple[int, int]]) -> str:
    partitions = sum(end > first for first, end in ranges.values())
    said = f"{count:,} offsets in {partitions} partition{'' if partitions == 1 else 's'}"
    missing = sum(end - first for first, end in lost.values())
    return f"{said}; {missing:,} offsets before them are lost" if missing else said
