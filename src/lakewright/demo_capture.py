"""The demo's legacy database: its producers change a table, and each of their changes is captured."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from lakewright.demo_project import load_part
from lakewright.errors import TargetError
from lakewright.pipelines.project import Project

if TYPE_CHECKING:
    from lakewright.connectors.cdc_feed import CaptureFeed

__all__ = ["HISTORY", "LATEST", "LegacyDatabase"]

HISTORY, LATEST = "visit_changes", "legacy_visits"


class LegacyDatabase:
    """A table that others change, and the capture of it that the project declares."""

    def __init__(self, project: Project, *, database: str, servers: str) -> None:
        self._project, self._database, self._servers = project, database, servers
        self._legacy: Any = load_part("services.legacy")
        self._producer: Any = load_part("services.producer")
        self._days = 0
        self.made: Counter[str] = Counter()
        """The truth: how many changes of each kind there were, and the rows that were there before (``snapshot``)."""

    def begin(self) -> None:
        """The table with its first rows, and a capture that knows nothing of an earlier demo."""
        feed = self._feed()
        feed.decommission()
        self._producer.fresh_topic(self._servers, self._topic(feed), partitions=1)
        self.made["snapshot"] = int(self._legacy.fresh_table(self._database))
        feed.register()

    def change(self) -> int:
        """Let the producers write, correct and delete rows for a day; returns how many changes that makes.

        What is in the table before its snapshot was taken would be no change: it is waited for.
        """
        self.wait()
        self._days += 1
        changes: Counter[str] = self._legacy.apply_changes(self._database, self._days)
        self.made += changes
        return changes.total()

    def wait(self) -> None:
        """Until every change so far is in the topic."""
        wanted, topic = self.made.total(), self._topic(self._feed())
        found = self._legacy.wait_for_messages(self._servers, topic, wanted)
        if found < wanted:
            why = self._feed().status()
            raise TargetError(
                f"Only {found:,} of {wanted:,} changes of the legacy visits were captured; the connector is "
                f"{why.state}. {why.problem or ''}".strip(),
                hint=why.hint,
            )

    def rows(self) -> list[tuple[str | None, ...]]:
        """The table as it stands in PostgreSQL."""
        found: list[tuple[str | None, ...]] = self._legacy.rows(self._database)
        return found

    def copied_rows(self) -> list[tuple[str | None, ...]]:
        """The same of the copy in the lake."""
        day = "date_format(visited_at, 'yyyy-MM-dd HH:mm:ss')"
        query = f"SELECT visit_id, {day}, user_id, page, string(seconds), note FROM {LATEST} ORDER BY visit_id"
        return [tuple(row) for row in self._project.sql(query).collect()]

    def told(self) -> Counter[str]:
        """How many changes of each kind the history in the lake tells."""
        query = f"SELECT _op, count(*) AS changes FROM {HISTORY} GROUP BY _op"
        return Counter({row["_op"]: row["changes"] for row in self._project.sql(query).collect()})

    def _feed(self) -> CaptureFeed:
        return cast("CaptureFeed", self._project.capture(HISTORY))

    def _topic(self, feed: CaptureFeed) -> str:
        (topic,) = feed.topics.values()
        return topic
