"""A small shop of two clocks: orders land in files, days of event time are made of them. For tests only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import Row

from lakewright.pipelines.project import Project

ORDERS = """
    from lakewright import (AsOf, Capture, DataOverwrite, DeadLetter, Fail, JsonFiles, Merger, Pipeline, PrivateOutput,
                            Repair, Scd2, WindowedDeduplicator, join_as_of)
    from pyspark.sql import functions as F

    shop = Pipeline("shop", schedule="@daily", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at", {options})
    def clean(orders):
        '''Orders that can be trusted.'''
        return orders.select("order_id", "at", "customer", "amount")

    shop.sql("daily", "SELECT to_date(at) AS day, sum(amount) AS amount, count(*) AS orders FROM clean GROUP BY 1",
             event_time="day", rows="reduce")
"""

GUARDED = """
    rows="preserve",
    guards_in={"orders": [DeadLetter(rules={"has_id": "order_id IS NOT NULL"}),
                          WindowedDeduplicator(keys=["order_id"])]},
"""


def orders_project(options: str = 'rows="preserve"') -> dict[str, str]:
    """The files of the shop; ``options`` are those of the silver dataset."""
    return {"pipelines/shop.py": ORDERS.replace("{options}", " ".join(options.split()))}


def order(order_id: str | None, at: str, amount: int = 1, customer: int = 1) -> dict[str, object]:
    return {"order_id": order_id, "at": at, "customer": customer, "amount": amount}


def land(project: Path, name: str, rows: Iterable[dict[str, object] | str], *, folder: str = "orders") -> Path:
    """Put a file of JSON lines into the landing folder, whole at once as a good producer does."""
    file = project / "landing" / folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    draft = file.with_name(f".{file.name}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)
    return file


def rows_of(project: Project, name: str, *columns: str) -> list[Row]:
    """A dataset's business rows in a fixed order."""
    frame = project.lake.read(name)
    chosen = frame.select(*columns) if columns else frame
    return sorted(chosen.collect(), key=str)


def made(summary: object) -> set[tuple[str, str]]:
    """What a run made: dataset and slice."""
    return {(outcome.dataset, outcome.slice_id) for outcome in summary.made}  # type: ignore[attr-defined]


def ok(summary: object) -> object:
    """The summary, or the run's own error."""
    for error in summary.errors:  # type: ignore[attr-defined]
        raise error
    assert summary.state == "ok"  # type: ignore[attr-defined]
    return summary


def cut_before(shop: Project, name: str, *, arrival: int) -> Path:
    """Take the next arrival behind a checkpoint, and the log before it away, as its retention would do."""
    spark, log = shop.lake.session(), Path(shop.lake.resolve(name)) / "_delta_log"
    spark.sql(f"ALTER TABLE delta.`{shop.lake.resolve(name)}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    ok(shop.run(at="2026-01-03"))
    assert shop.store.receipts.live(name, f"arrival-{arrival}") is not None
    last = shop.lake.log(name).latest()
    assert (log / f"{last:020d}.checkpoint.parquet").exists()
    for version in range(last):
        (log / f"{version:020d}.json").unlink()
    return log
