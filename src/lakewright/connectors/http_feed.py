"""An address as the destination of a dataset: each slice is posted in order, and recorded in a ledger of the project.

Guarantee:
    Rows are posted by the tasks that hold them, in the order that ``order`` says, whatever fails in between; a slice
    counts as sent when all of it is acknowledged, and its ledger record is written after that. A repeat posts the slice
    again: each record has the same id, each request tells dataset, slice and the number of the sending (``dataset``,
    ``slice``, ``number``): of each slice the highest number counts. An attempt that was overtaken before it began posts
    nothing.
Consequences:
    - An address cannot take records back, and knows no fence: a run that was overtaken half-way may still post. Its
      number is lower, by which the target leaves it out.
    - The ledger is a folder of the project (``ledger``): keep it with the lake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lakewright.connectors.folder_ledger import FolderAttempt, FolderLog, recorded
from lakewright.connectors.http_ordered import HttpSink
from lakewright.errors import ConfigurationError, TargetError
from lakewright.failpoints import failpoint
from lakewright.model.connections import Connections
from lakewright.model.identity import Identity
from lakewright.model.protocols import Writer
from lakewright.patterns.data_value.bin_pack_orderer import BinPackOrderer, send_in_bins
from lakewright.patterns.data_value.fifo_orderer import FifoOrderer, send_in_order
from lakewright.patterns.data_value.ordered_sinks import Commits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakewright.model.receipts import Commit

__all__ = ["HttpFeed"]


@dataclass(frozen=True, slots=True)
class HttpFeed:
    """An address to post to: ``into=HttpFeed("https://partner.example/visits", order=BinPackOrderer(...))``."""

    url: str
    _: KW_ONLY
    order: BinPackOrderer | FifoOrderer
    value: str | None = None
    """A column that is the record's value as it is; without it: all columns."""
    record: Sequence[str] = ()
    """The columns that tell a record; without them: its content."""
    commits: Commits = "partial"
    """What the target makes of a request of several records: see Bin Pack Orderer."""
    bulk_limit: int = 100
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    timeout_seconds: float = 30.0
    per_second: float = 100.0
    ledger: str = "feeds"
    """The folder of the ledger, relative to the project."""
    home: str = ""
    """Where the project is; filled in when it is opened."""

    def __post_init__(self) -> None:
        if not isinstance(self.order, BinPackOrderer | FifoOrderer):
            raise ConfigurationError(f"HttpFeed: order is a BinPackOrderer or a FifoOrderer, not {self.order!r}.")
        object.__setattr__(self, "record", tuple(self.record))
        self.order.check_sink(self.sink({}))

    @property
    def connection(self) -> str:
        """None is needed."""
        return ""

    @property
    def shown(self) -> str:
        return self.url.partition("?")[0]

    @property
    def resends(self) -> bool:
        """A repeat posts again: what was posted before stays at the target, and no longer counts."""
        return True

    def within(self, project: Path) -> HttpFeed:
        """The same, with a ledger that begins at the project's folder."""
        return replace(self, ledger=str((project / self.ledger).resolve()), home=str(project))

    def check_writer(self, dataset: str, writer: Writer) -> None:
        """Only a writer that replaces a slice as a whole can be repeated at an address."""
        from lakewright.patterns.idempotency.data_overwrite import DataOverwrite

        if not isinstance(writer, DataOverwrite):
            raise ConfigurationError(
                f"{dataset}: {type(writer).__name__} cannot write to {self.shown}, which knows no rows to merge.",
                hint="Use writer=DataOverwrite(): each slice is posted as a whole.",
            )

    def log(self, dataset: str, *, connections: Connections) -> FolderLog:
        """What the ledger says of a dataset."""
        return FolderLog(Path(self.ledger), dataset)

    def open(
        self,
        dataset: str,
        identity: Identity,
        *,
        connections: Connections,
        spark: SparkSession,
        still_mine: Callable[[], bool] = lambda: True,
    ) -> OpenedAddress:
        """The address, to be posted to by one attempt."""
        return OpenedAddress(self, identity, spark, still_mine)

    def sink(self, tells: Mapping[str, str]) -> HttpSink:
        """How records get there."""
        return HttpSink(
            self.url,
            commits=self.commits,
            bulk_limit=self.bulk_limit,
            headers=self.headers,
            tells=tells,
            timeout_seconds=self.timeout_seconds,
            per_second=self.per_second,
        )


class OpenedAddress(FolderAttempt):
    """An address opened for one attempt: fulfils ``model.outside.OutsideTable``."""

    def __init__(self, feed: HttpFeed, identity: Identity, spark: SparkSession, still_mine: Callable[[], bool]) -> None:
        super().__init__(Path(feed.ledger), identity, spark, still_mine)
        self._feed = feed

    @property
    def path(self) -> str:
        return self._feed.shown

    def schema(self) -> StructType:
        self._refuse("has no columns of its own")

    def read(self) -> DataFrame:
        self._refuse("cannot be read back as a table")

    def merge(self, frame: DataFrame, *, on: str, clauses: str, partition_by: Sequence[str] = ()) -> Commit | None:
        self._refuse("takes no MERGE")

    def replace(
        self, frame: DataFrame, *, where: str, partition_by: Sequence[str] = (), within: bool = False
    ) -> Commit | None:
        """Runs the jobs that post the slice in order; None where a newer attempt was first."""
        self._refuse_lost_lease()
        if self._is_overtaken():
            return None
        one, feed = self._identity, self._feed
        told = {"dataset": one.dataset, "slice": one.slice_id, "number": str(one.number)}
        sink = feed.sink(told).prepared({}, Path(feed.home) if feed.home else None)
        how = {"value": feed.value, "record": feed.record}
        if isinstance(feed.order, BinPackOrderer):
            done = send_in_bins(frame, sink, orderer=feed.order, **how)  # type: ignore[arg-type]
        else:
            done = send_in_order(frame, sink, orderer=feed.order, **how)  # type: ignore[arg-type]
        failpoint("http.sent")
        self._refuse_lost_lease()
        commit = recorded(self._folder, one, lambda: None, rows=done.records)
        failpoint(f"committed.{one.part}")
        return commit

    def _is_overtaken(self) -> bool:
        known = [Identity.from_json(one.metadata) for one in FolderLog(self._folder, self._identity.dataset).commits()]
        mine = self._identity
        return any(one is not None and one.app_id == mine.app_id and one.number >= mine.number for one in known)

    def _refuse(self, why: str) -> NoReturn:
        raise TargetError(f"{self._identity.dataset}: {self._feed.shown} {why}.")
