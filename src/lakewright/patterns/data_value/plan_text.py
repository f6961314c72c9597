"""Plan text: the physical plan that Spark made for a frame, as text, asked for by any number of threads at once."""

from __future__ import annotations

import sys
import threading
import uuid
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["plan_text"]

_ONE_AT_A_TIME = threading.Lock()


def plan_text(df: DataFrame) -> str:
    """The plan of a frame, or of a stream; no job runs."""
    told = getattr(df, "_explain_string", None)  # over Connect the text comes as such
    if told is not None:
        return str(told())
    if df.isStreaming:  # EXPLAIN in SQL refuses one
        return _printed(df)
    spark, name = df.sparkSession, f"_lw_plan_{uuid.uuid4().hex}"
    df.createOrReplaceTempView(name)
    try:
        return str(spark.sql(f"EXPLAIN SELECT * FROM {name}").collect()[0][0])
    finally:
        spark.catalog.dropTempView(name)


def _printed(df: DataFrame) -> str:
    """What `explain` prints. Standard output belongs to the whole process: other threads go on printing there."""
    with _ONE_AT_A_TIME:
        before = sys.stdout
        ours: Any = _OwnPrints(before)
        sys.stdout = ours
        try:
            df.explain()
        finally:
            if sys.stdout is ours:  # else somebody has put another one there, and will put ours back
                sys.stdout = before
            ours.over = True
    return "".join(ours.kept)


class _OwnPrints:
    """Keeps what the thread that made it prints, until that is over; everything else goes where it would have gone."""

    def __init__(self, beyond: TextIO) -> None:
        self._beyond = beyond
        self._thread = threading.get_ident()
        self.kept: list[str] = []
        self.over = False

    def write(self, text: str) -> int:
        if self.over or threading.get_ident() != self._thread:
            return self._beyond.write(text)
        self.kept.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beyond, name)
