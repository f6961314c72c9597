"""A REST API as a source: a list of JSON records behind an address, page by page.

Guarantee:
    With ``load=IncrementalLoader(cursor="updated_at")`` an arrival is a half-open range of that field, recorded before
    it is read: ``since`` (and ``until``, where the server knows it) ask for it, and records beyond it are left to their
    own arrival. With ``load=FullLoader()`` an arrival is all of it, whenever anything has changed. A record is kept as
    it was sent; one that does not fit the schema stays with its text. Requests that may pass are tried again, and no
    more than ``per_second`` are sent.
Consequences:
    - Pages follow one another, so one task reads them; nothing of them passes the driver.
    - What an API answers changes, so an arrival that is in bronze is never read again: repeats begin at bronze.
    - If the server sorts by something that changes while it is read, a record may be on two pages or on none: sort by
      an id. De-duplicate below (Windowed Deduplicator, Merger).
    - Secrets in headers are references (``secret://env/TOKEN``); the address of a page is shown without its query.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from lakewright.connectors.http_calls import Caller, HttpFailure, mask_values, revealed_headers, secret_headers
from lakewright.connectors.rest_errors import as_text, unanswered
from lakewright.connectors.rest_pages import NumberedPages, Pages, read_pages
from lakewright.errors import ConfigurationError
from lakewright.model.arrivals import Arrival, JsonValue, Window
from lakewright.model.loads import CursorCut
from lakewright.model.protocols import Found, SourceContext
from lakewright.model.sql import quoted, text_literal
from lakewright.model.times import parse_time

if TYPE_CHECKING:  # a project file names sources before Spark is there
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["RestApi"]

_NUMBERED = NumberedPages()


@dataclass(frozen=True, slots=True)
class RestApi:
    """An address that answers with JSON; ``items`` is the path of the list in it (empty: the answer is the list)."""

    url: str
    items: str = ""
    pages: Pages = _NUMBERED
    since: str | None = None
    """The parameter that takes the beginning of what is asked for, as ISO time."""
    until: str | None = None
    """The parameter that takes its end, where the server knows one."""
    begin: str | None = None
    """The first time to ask for; everything, where none is given."""
    params: Mapping[str, str] = field(default_factory=dict, hash=False)
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    per_second: float = 10.0
    tries: int = 5
    timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
            raise ConfigurationError(
                "RestApi: the url is an address such as https://api.example/v1/visits, without a password."
            )
        if self.tries < 1 or self.per_second <= 0:
            raise ConfigurationError("RestApi: tries is at least 1, and per_second more than 0.")
        if self.until is not None and self.since is None:
            raise ConfigurationError("RestApi: until is given, and since is not.")
        if self.begin is not None:
            parse_time(self.begin)

    @property
    def repeatable(self) -> bool:
        """No: what an API answers changes."""
        return False

    @property
    def takes_part(self) -> str | None:
        """Why an arrival is only a part; None where it is the whole."""
        return None if self.since is None else f"'{self.since}' takes only what is new"

    def look(self, ctx: SourceContext) -> Found | None:
        """All of it, if it has changed: each page is read once, and only its hash is kept."""
        if self.since is not None:
            raise ConfigurationError(
                f"{ctx.dataset}: RestApi has since, but nothing tells by which field of the records.",
                hint='Say load=IncrementalLoader(cursor="updated_at").',
            )
        rows, hashed = 0, hashlib.sha256()
        for _, records in self._told(ctx, lambda: self._read({}, ctx)):
            rows += len(records)
            hashed.update("\n".join(records).encode())
        window: dict[str, JsonValue] = {"of": self.url, "rows": rows, "fingerprint": hashed.hexdigest()}
        last = ctx.last_window or {}
        if not rows or (last.get("rows"), last.get("fingerprint")) == (rows, window["fingerprint"]):
            return None
        return Found(window=window, summary=f"{rows:,} records")

    def look_by(self, cut: CursorCut, ctx: SourceContext) -> Sequence[Found]:
        """The ranges of time since the last one that have records: of each, the first page is asked for."""
        if self.since is None:
            raise ConfigurationError(
                f"{ctx.dataset}: to load what is new, RestApi needs the parameter that takes the beginning.",
                hint='Say since="updated_since", or load=FullLoader().',
            )
        assert ctx.run_time is not None
        found: list[Found] = []
        for start, end in _spans(ctx.last_window, self.begin, cut, ctx.run_time):
            window: dict[str, JsonValue] = {"of": self.url, "cursor": cut.cursor, "from": start, "to": end}
            if start is not None and ctx.last_window is not None and cut.overlap is not None and not found:
                low = (datetime.fromisoformat(start) - cut.overlap).isoformat()
                window |= {"low": low, "settled": start}
            if next(iter(self._told(ctx, lambda w=window: self._read(self._asked(w), ctx))), None) is not None:  # type: ignore[misc]
                found.append(Found(window=window, summary=f"{cut.cursor} from {start or 'the first'} to {end}"))
        return found

    def gone(self, arrival: Arrival, ctx: SourceContext) -> Sequence[str]:
        """Nothing: what was recorded and not yet read is read by its range."""
        return []

    def read(
        self, arrival: Arrival, *, spark: SparkSession, schema: StructType | None, ctx: SourceContext
    ) -> DataFrame:
        """Every record of the window; lazy."""
        from pyspark.sql import functions as F

        from lakewright.connectors.json_records import is_flat, parse_json_records
        from lakewright.connectors.records import refuse_system_columns
        from lakewright.model.columns import FILE_COLUMN, HASH_COLUMN, VERSION_COLUMN

        if schema is None:
            raise ConfigurationError(
                f"{ctx.dataset}: RestApi needs a schema.", hint="Declare it: schema='visit_id STRING, ...'."
            )
        refuse_system_columns(ctx.dataset, schema)
        asked, secret = self._asked(arrival.window), secret_headers(self.headers)
        fetch = _fetcher(self.url, asked, self.items, self.pages, self._settings(ctx), secret)
        sent = spark.range(0, 1, 1, 1).mapInArrow(fetch, "page string, text string")
        place = (FILE_COLUMN, VERSION_COLUMN, HASH_COLUMN)
        texts = sent.select(
            "text",
            F.lit(False).alias("flawed"),
            F.expr(is_flat("text")).alias("flat"),
            F.lit(self.url).alias(FILE_COLUMN),
            F.col("page").alias(VERSION_COLUMN),
            F.xxhash64("text").alias(HASH_COLUMN),
        )
        records = parse_json_records(texts, schema=schema, options={}, place=place)
        beyond = _beyond(arrival.window, schema)
        return records if beyond is None else records.where(f"NOT coalesce({beyond}, false)")

    def _asked(self, window: Window) -> dict[str, str]:
        low = window.get("low", window.get("from"))
        asked = dict(self.params)
        if self.since is not None and low is not None:
            asked[self.since] = str(low)
        if self.until is not None and "to" in window:
            asked[self.until] = str(window["to"])
        return asked

    def _settings(self, ctx: SourceContext) -> dict[str, Any]:
        return {
            "headers": revealed_headers(self.headers, ctx.project),
            "tries": self.tries,
            "timeout_seconds": self.timeout_seconds,
            "per_second": self.per_second,
        }

    def _read(self, asked: Mapping[str, str], ctx: SourceContext) -> Iterator[tuple[str, list[str]]]:
        caller = Caller(**self._settings(ctx))
        return read_pages(self.url, {**self.params, **asked}, items=self.items, pages=self.pages, caller=caller)

    def _told(
        self, ctx: SourceContext, read: Callable[[], Iterator[tuple[str, list[str]]]]
    ) -> Iterator[tuple[str, list[str]]]:
        try:
            yield from read()
        except HttpFailure as failure:
            raise unanswered(f"{ctx.dataset}: {failure}") from None


def _spans(
    last: Window | None, begin: str | None, cut: CursorCut, run_time: datetime
) -> Iterator[tuple[str | None, str]]:
    """The ranges to ask for: up to the run's time, or the intervals that are over by then."""
    start = None if begin is None else parse_time(begin)
    if last is not None:
        start = datetime.fromisoformat(cast(str, last["to"]))
    if cut.every is None:
        if start is None or start < run_time:
            yield (None if start is None else start.isoformat()), run_time.isoformat()
        return
    end = run_time - (run_time - parse_time("1970-01-01")) % cut.every
    if start is None:
        yield None, end.isoformat()
        return
    while start < end:
        after = start - (start - parse_time("1970-01-01")) % cut.every + cut.every
        yield start.isoformat(), after.isoformat()
        start = after


def _beyond(window: Window, schema: StructType) -> str | None:
    """SQL for a record that belongs to another arrival; None where the window has no end."""
    if "cursor" not in window:
        return None
    cursor = str(window["cursor"])
    if cursor not in schema.names or schema[cursor].dataType.typeName() != "timestamp":
        raise ConfigurationError(
            f"The delta column '{cursor}' has to be a TIMESTAMP of the schema ({', '.join(schema.names)})."
        )
    low = window.get("low", window.get("from"))
    parts = [f"{quoted(cursor)} >= CAST({text_literal(str(window['to']))} AS TIMESTAMP)"]
    if low is not None:
        parts.append(f"{quoted(cursor)} < CAST({text_literal(str(low))} AS TIMESTAMP)")
    return f"({' OR '.join(parts)})"


def _fetcher(
    url: str, asked: Mapping[str, str], items: str, pages: Pages, settings: Mapping[str, Any], secret: Sequence[str]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What the worker does: one page at a time, as a batch of texts."""

    def fetch(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        mask_values(settings["headers"], secret)
        for batch in batches:
            if not batch.num_rows:
                continue
            try:
                for name, records in read_pages(url, asked, items=items, pages=pages, caller=Caller(**settings)):
                    yield pa.RecordBatch.from_pydict({"page": [name] * len(records), "text": records})
            except HttpFailure as failure:
                raise as_text(failure) from None

    return fetch
