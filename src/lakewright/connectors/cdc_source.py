"""A captured table as a source of streams: every change of it, with its place in the database's log, once.

Guarantee:
    Before a stream starts, everything that the capture needs is looked at, its connector is registered (again without
    effect) and runs; where something is missing, the error names it and nothing is started. From then on each change is
    a record of the stream as of any topic: read once, whatever is killed, and told by its place. A message that is no
    change of the table is kept with its text, in the dead letters, and the stream goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lakewright.connectors.cdc_changes import CHANGE_COLUMNS, complete_schema, unwrap_changes
from lakewright.connectors.cdc_settings import PLACEHOLDER
from lakewright.connectors.kafka import KafkaTopic
from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_errors import explain_kafka_error
from lakewright.connectors.kafka_windows import listed, lost_of, origin_of
from lakewright.errors import ConfigurationError, InputError, LakewrightError
from lakewright.model.arrivals import Arrival, Window
from lakewright.model.protocols import Found, SourceContext
from lakewright.model.streams import LostRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakewright.connectors.cdc_connector import ChangeDataCapture
    from lakewright.connectors.cdc_feed import CaptureFeed

__all__ = ["CapturedTable"]

_TOPIC_SECONDS = 10.0
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _ChangeTopic(KafkaTopic):
    """The topic of a table, whose records are changes."""

    full_before: bool = False
    placeholder: str = PLACEHOLDER
    millis: tuple[str, ...] = ()

    def _way_on(self, ctx: SourceContext) -> str | None:
        return (
            f"`lakewright stream rewind {ctx.dataset} --all --lost delete`, which deletes for good what the topic no "
            "longer holds. A new snapshot (decommission the capture, then run) brings all rows as they are"
        )

    def _records(self, messages: DataFrame, schema: StructType | None, ctx: SourceContext) -> DataFrame:
        if schema is None:
            raise ConfigurationError(
                f"{ctx.dataset}: a captured table needs a schema.",
                hint="Declare its columns: schema='id INT, page STRING'; docs/cdc.md tells which types.",
            )
        own = type(schema)([field for field in schema.fields if field.name not in CHANGE_COLUMNS])
        return unwrap_changes(
            messages, schema=own, full_before=self.full_before, placeholder=self.placeholder, millis=self.millis
        )


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """One table of a capture: ``ChangeDataCapture("blog_db", ["visits"]).of("visits")``."""

    capture: ChangeDataCapture
    table: str
    full_before: bool = False
    """The table has REPLICA IDENTITY FULL: a deleted row is known in all its columns."""
    placeholder: str = PLACEHOLDER
    """What stands for a value that was not sent."""
    millis: tuple[str, ...] = ()
    """The columns whose times come in milliseconds."""

    @property
    def repeatable(self) -> bool:
        """Yes, as long as the topic holds the offsets."""
        return True

    @property
    def streams_only(self) -> bool:
        """It is registered when its stream starts; to look for something new must change nothing."""
        return True

    @property
    def place_columns(self) -> tuple[str, str]:
        """The columns that tell a record's partition, and its place there."""
        return KafkaTopic("broker", self.table).place_columns

    def feed(self, ctx: SourceContext) -> CaptureFeed:
        """The capture behind it; asks nobody yet."""
        return self.capture.feed(ctx.connections, project=ctx.project_name, dataset=ctx.dataset)

    def beginning(self, ctx: SourceContext) -> Window:
        """Registers the capture, and tells where its topic begins."""
        self._register(ctx)
        return self._topic(ctx).beginning(ctx)

    def beginning_again(self, ctx: SourceContext, rows: DataFrame | None, start: Window | None) -> Window:
        """Registers the capture, and tells where its topic begins."""
        self._register(ctx)
        return self._topic(ctx).beginning_again(ctx, rows, start)

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
        """Registers the capture; then the changes as a streaming frame, from ``start`` on or where it is."""
        self._register(ctx)
        return self._topic(ctx).stream(
            spark=spark, schema=schema, ctx=ctx, start=start, reached=reached, max_records=max_records
        )

    def complete_schema(self, schema: StructType | None) -> StructType | None:
        """The declared columns, and those that tell of the change."""
        return complete_schema(schema)

    def look(self, ctx: SourceContext) -> Found | None:
        """The offsets since the last arrival; registers nothing."""
        return self._topic(ctx).look(ctx)

    def gone(self, arrival: Arrival, ctx: SourceContext) -> Sequence[str]:
        return self._topic(ctx).gone(arrival, ctx)

    def read(
        self, arrival: Arrival, *, spark: SparkSession, schema: StructType | None, ctx: SourceContext
    ) -> DataFrame:
        """Every change of the arrival's offsets; lazy."""
        return self._topic(ctx).read(arrival, spark=spark, schema=schema, ctx=ctx)

    def gained_columns(self, arrival: Arrival, *, schema: StructType, ctx: SourceContext) -> dict[str, str]:
        """Nothing: fields that the schema does not name are not seen."""
        return {}

    def position_at(self, ctx: SourceContext, time: str | datetime) -> Window:
        return self._topic(ctx).position_at(ctx, time)

    def origin(self, start: Window) -> Window:
        return origin_of(start)

    def refuse_anew(self, ctx: SourceContext, start: Window) -> None:
        self._topic(ctx).refuse_anew(ctx, start)

    def end(self, ctx: SourceContext) -> Window:
        return self._topic(ctx).end(ctx)

    def behind(self, ctx: SourceContext, offsets: str, start: Window | None = None) -> int:
        """How many records the topic holds beyond a position."""
        return self._topic(ctx).behind(ctx, offsets, start)

    def first_batch_since(
        self, ctx: SourceContext, rows: DataFrame, time: datetime, start: Window | None, reached: str | None = None
    ) -> tuple[int, Window] | None:
        return self._topic(ctx).first_batch_since(ctx, rows, time, start, reached)

    def batch_after(
        self, ctx: SourceContext, rows: DataFrame, arrival: int, start: Window | None, reached: str | None = None
    ) -> tuple[int, Window] | None:
        return self._topic(ctx).batch_after(ctx, rows, arrival, start, reached)

    def position_after(self, ctx: SourceContext, rows: DataFrame, start: Window | None = None) -> Window:
        return self._topic(ctx).position_after(ctx, rows, start)

    def lost_rows(self, ctx: SourceContext, rows: DataFrame, start: Window | None) -> LostRows | None:
        return self._topic(ctx).lost_rows(ctx, rows, start)

    def moment_of(self, ctx: SourceContext, rows: DataFrame, arrival: int, begin: Window) -> datetime | None:
        return self._topic(ctx).moment_of(ctx, rows, arrival, begin)

    def lost(self, ctx: SourceContext, start: Window, reached: str | None = None) -> dict[int, tuple[int, int]]:
        """The changes that are gone before they were read."""
        return self._topic(ctx).lost(ctx, start, reached)

    def past_lost(self, ctx: SourceContext, rows: DataFrame | None, start: Window, reached: str | None) -> Window:
        return self._topic(ctx).past_lost(ctx, rows, start, reached)

    def lost_words(self, start: Window) -> str:
        return listed(lost_of(start))

    def refuse_lost(self, ctx: SourceContext, begin: Window) -> None:
        self._topic(ctx).refuse_lost(ctx, begin)

    def explain(self, error: BaseException, dataset: str) -> LakewrightError | None:
        """What a failed stream of this table means to people; None where it has nothing to do with Kafka."""
        return explain_kafka_error(error, who=dataset, effect="Nothing of this micro-batch was written.")

    def _topic(self, ctx: SourceContext) -> _ChangeTopic:
        feed = self.feed(ctx)
        return _ChangeTopic(
            feed.reach.broker(),
            feed.names.topic(self.table),
            full_before=self.full_before,
            placeholder=self.placeholder,
            millis=self.millis,
        )

    def _register(self, ctx: SourceContext) -> None:
        """Let the connector run; a table without rows gets its topic here, as its first change would make it."""
        if not self.capture.registers:
            return
        self.feed(ctx).register()
        topic = self._topic(ctx)
        client = KafkaClient.connect(ctx.connections, topic.connection, asked_by=ctx.dataset)
        client.create(topic.topic, {}, partitions=self.capture.partitions)
        until = time.monotonic() + _TOPIC_SECONDS
        while True:
            try:
                client.state(topic.topic, topic.isolation)
                return
            except InputError:  # a topic that was just made is not known everywhere at once
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE_SECONDS)
