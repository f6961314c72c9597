"""The places of a topic that streams ask for: where to begin, how far behind, where to read again, and what is gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lakewright.connectors.kafka_client import Isolation, KafkaClient, TopicState
from lakewright.connectors.kafka_errors import says_lost
from lakewright.connectors.kafka_records import read_ranges
from lakewright.connectors.kafka_rewind import (
    batch_after,
    batch_since,
    first_offsets,
    lost_rows,
    next_offsets,
    starts_of,
)
from lakewright.connectors.kafka_windows import (
    IfLost,
    began_at,
    go_on,
    listed,
    lost_of,
    origin_of,
    ranges_of,
    refuse_anew,
    window_of,
)
from lakewright.model.arrivals import Window
from lakewright.model.protocols import SourceContext
from lakewright.model.streams import LostRows
from lakewright.model.times import parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["TopicPlaces"]


class TopicPlaces:
    """A topic as its streams see it; what is asked of the broker is quick, and reads no message unless it says so."""

    __slots__ = ()

    if TYPE_CHECKING:
        # Given by the source.
        @property
        def connection(self) -> str: ...
        @property
        def topic(self) -> str: ...
        @property
        def start(self) -> str | datetime: ...
        @property
        def isolation(self) -> Isolation: ...
        @property
        def if_lost(self) -> IfLost: ...
        @property
        def headers(self) -> str | None: ...

    def position_at(self, ctx: SourceContext, time: str | datetime) -> Window:
        """Where a moment begins, by the messages' timestamps; the end of a partition that has nothing since."""
        client = self._client(ctx)
        state = client.state(self.topic, self.isolation)
        places = client.at_time(state, parse_time(time), self.isolation)
        return window_of(state, {p: (at, at) for p, at in places.items()})

    def beginning(self, ctx: SourceContext) -> Window:
        """Where a stream that has read nothing yet begins, and of which topic: one made anew is another."""
        client = self._client(ctx)
        state = client.state(self.topic, self.isolation)
        return window_of(state, {p: (at, at) for p, at in self._first(client, state).items()})

    def beginning_again(self, ctx: SourceContext, rows: DataFrame | None, start: Window | None) -> Window:
        """Where a stream begins to read everything again: where ``self.start`` says, or before that where it began.

        ``rows`` are those that it has, and ``start`` is what its generation began with. Runs a job where the rows must
        be asked.
        """
        client = self._client(ctx)
        state = client.state(self.topic, self.isolation)
        places = self._first(client, state)
        if self.start != "earliest" and start is not None and start["topic_id"] == state.id:
            read = {} if rows is None else first_offsets(rows)
            began = began_at(start)
            for p, at in places.items():
                known = [one[p] for one in (began, read) if p in one]
                # A partition that came later is read from its beginning, as it was then.
                unknown = [state.low[p]] if self.start == "latest" and not known else []
                places[p] = max(state.low[p], min(at, *known, *unknown))
        return window_of(state, {p: (at, at) for p, at in places.items()})

    def origin(self, start: Window) -> Window:
        """Of which topic a stream's beginning is: what each of its commits tells, should the store be lost."""
        return origin_of(start, began=self.start != "earliest")

    def refuse_anew(self, ctx: SourceContext, start: Window) -> None:
        """Refuse where the topic was made anew since ``start`` was noted."""
        refuse_anew(ctx.dataset, start["topic_id"], self._client(ctx).state(self.topic, self.isolation), stream=True)

    def end(self, ctx: SourceContext) -> Window:
        """Where the topic ends now."""
        state = self._client(ctx).state(self.topic, self.isolation)
        return window_of(state, {p: (at, at) for p, at in state.high.items()})

    def behind(self, ctx: SourceContext, offsets: str, start: Window | None = None) -> int:
        """How many records lie beyond a position in the words of Spark's source; what is lost counts, too.

        Refused where the topic has lost its end, or was made anew since ``start`` was noted.
        """
        read, client = self._offsets(offsets), self._client(ctx)
        state = client.state(self.topic, self.isolation)
        # What is recorded may be older than what was read: whether something is lost is decided when the stream starts.
        self._go_on(client, state, read, start or {"topic_id": state.id}, ctx, stream=True, if_lost="go on")
        return sum(max(0, end - read.get(p, state.low[p])) for p, end in state.high.items())

    def first_batch_since(
        self, ctx: SourceContext, rows: DataFrame, time: datetime, start: Window | None, reached: str | None = None
    ) -> tuple[int, Window] | None:
        """The first arrival with a record since a moment, and where it began; None: there is none. Runs two jobs.

        ``start`` and ``reached`` are those of the generation that has read the rows, as far as is recorded.
        """
        return self._batch(ctx, rows, batch_since(rows, self.position_at(ctx, time)), start, reached)

    def batch_after(
        self, ctx: SourceContext, rows: DataFrame, arrival: int, start: Window | None, reached: str | None = None
    ) -> tuple[int, Window] | None:
        """The arrival that follows another one, and where it began; None: there is none. Runs two jobs."""
        return self._batch(ctx, rows, batch_after(rows, arrival), start, reached)

    def position_after(self, ctx: SourceContext, rows: DataFrame, start: Window | None = None) -> Window:
        """Where the topic goes on after the last of some rows. Runs a job.

        A partition without rows goes on where the stream began, which the ``start`` of its generation tells.
        """
        state, began = self._client(ctx).state(self.topic, self.isolation), began_at(start)
        places = began | next_offsets(rows)
        return window_of(state, {p: (at, at) for p, at in places.items()}, began=began)

    def lost_rows(self, ctx: SourceContext, rows: DataFrame, start: Window | None) -> LostRows | None:
        """Which of some rows the topic could not give again, by ``start``'s topic; None: it holds all. Runs a job."""
        client = self._client(ctx)
        state = client.state(self.topic, self.isolation)
        if start is not None and start["topic_id"] != state.id:
            count = rows.count()
            why = f"the topic '{self.topic}' was deleted and made anew, and the {count:,} rows came from the old one"
            return LostRows(count, why) if count else None
        return lost_rows(rows, state, client.ends(self.topic, state.high, "read_uncommitted"))

    def moment_of(self, ctx: SourceContext, rows: DataFrame, arrival: int, begin: Window) -> datetime | None:
        """A time since which reading again begins with this arrival; None: the messages' times do not tell one."""
        from pyspark.sql import functions as F

        state = self._client(ctx).state(self.topic, self.isolation)
        places = {p: at for p, (at, _) in ranges_of(begin).items() if p in state.low}
        before = {p: (at - 1, at) for p, at in places.items() if at > state.low[p]}
        asked = before or {p: (at, at + 1) for p, at in places.items() if at < state.high[p]}
        messages = read_ranges(rows.sparkSession, self.topic, asked, self._spark_options(ctx))
        millis = F.unix_millis("timestamp")
        try:
            found = messages.agg(F.max(millis) + 1 if before else F.min(millis)).first()
        except Exception as error:
            if says_lost(error):
                return None  # deleted just now: a time that is told would not hold
            raise
        if found is None or found[0] is None:
            return None
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(found[0]))
        # Producers may give times in any order: it is said only where it is so.
        return moment if batch_since(rows, self.position_at(ctx, moment)) == arrival else None

    def lost(self, ctx: SourceContext, start: Window, reached: str | None = None) -> dict[int, tuple[int, int]]:
        """The offsets that a stream has not read, as far as its generation's record tells, and that are gone."""
        client = self._client(ctx)
        state = client.state(self.topic, self.isolation)
        positions = {p: first for p, (first, _) in ranges_of(start).items()} | self._offsets(reached)
        return go_on(ctx.dataset, positions, start["topic_id"], state, positions, "go on", stream=True)[1]

    def past_lost(self, ctx: SourceContext, rows: DataFrame | None, start: Window, reached: str | None) -> Window:
        """Where a stream goes on after the rows that it has, and in ``lost`` the offsets that are gone before it.

        Runs a job: what is recorded of a stream may be older than its rows.
        """
        client = self._client(ctx)
        state = client.state(self.topic, self.isolation)
        positions = began_at(start) | {p: first for p, (first, _) in ranges_of(start).items()} | self._offsets(reached)
        taken = {} if rows is None else next_offsets(rows)
        for p, at in taken.items():
            positions[p] = max(at, positions.get(p, at))
        starts, lost = go_on(ctx.dataset, positions, start["topic_id"], state, positions, "go on", stream=True)
        return window_of(state, {p: (at, at) for p, at in starts.items()}, lost, began=began_at(start))

    def lost_words(self, start: Window) -> str:
        """Which offsets were gone when a stream went on from here; empty: none."""
        return listed(lost_of(start))

    def refuse_lost(self, ctx: SourceContext, begin: Window) -> None:
        """Refuse to go on past what ``past_lost`` found to be gone."""
        state = self._client(ctx).state(self.topic, self.isolation)
        positions = {p: first for p, (first, _) in lost_of(begin).items()}
        way_on = self._way_on(ctx)
        go_on(ctx.dataset, positions, begin["topic_id"], state, positions, "fail", stream=True, way_on=way_on)

    def goes_on_after(self, error: BaseException) -> bool:
        """Whether a stream that failed so is to be started again: records that were lost are then told."""
        return self.if_lost == "go on" and says_lost(error)

    def _batch(
        self, ctx: SourceContext, rows: DataFrame, arrival: int | None, start: Window | None, reached: str | None
    ) -> tuple[int, Window] | None:
        if arrival is None:
            return None
        state, began = self._client(ctx).state(self.topic, self.isolation), began_at(start)
        begins = {} if start is None else {p: first for p, (first, _) in ranges_of(start).items()}
        starts = starts_of(rows, arrival, low=state.low, began=began, read=begins | self._offsets(reached))
        return arrival, window_of(state, {p: (at, at) for p, at in starts.items()}, began=began)

    def _offsets(self, told: str | None) -> dict[int, int]:
        """Positions by partition, from Spark's words for them."""
        found = {} if told is None else json.loads(told) or {}
        return {int(p): int(at) for p, at in found.get(self.topic, {}).items()}

    def _client(self, ctx: SourceContext) -> KafkaClient:
        return KafkaClient.connect(ctx.connections, self.connection, asked_by=ctx.dataset)

    def _first(self, client: KafkaClient, state: TopicState) -> dict[int, int]:
        if isinstance(self.start, datetime):
            return client.at_time(state, self.start, self.isolation)
        return dict(state.low if self.start == "earliest" else state.high)

    def _go_on(
        self,
        client: KafkaClient,
        state: TopicState,
        positions: Mapping[int, int],
        window: Window,
        ctx: SourceContext,
        *,
        stream: bool = False,
        if_lost: IfLost | None = None,
    ) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
        ends = state.high
        if any(position > ends.get(p, position) for p, position in positions.items()):
            ends = client.ends(self.topic, state.high, "read_uncommitted")
        return go_on(
            ctx.dataset, positions, window["topic_id"], state, ends, if_lost or self.if_lost,
            stream=stream, way_on=self._way_on(ctx),
        )  # fmt: skip

    def _way_on(self, ctx: SourceContext) -> str | None:
        """How to go on after records that are lost, where ``if_lost`` is not for the user to say."""
        return None

    def _spark_options(self, ctx: SourceContext) -> dict[str, str]:
        own = {"kafka.isolation.level": self.isolation, "includeHeaders": str(self.headers is not None).lower()}
        return {**self._client(ctx).spark_options(), **own}
