"""Files of JSON lines as a stream of micro-batches, one file each. For tests only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def land_batches(folder: Path, batches: Sequence[Iterable[dict[str, Any]]]) -> None:
    """One file per micro-batch, after those that are there, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = len(list(folder.iterdir()))
    for number, rows in enumerate(batches, start=taken):
        file = folder / f"{number:04d}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def stream_of(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    folder.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))


def run_to_end(frame: DataFrame, checkpoint: Path, *, into: Path) -> list[dict[str, Any]]:
    """Run the stream into a Delta table until all is read; what Spark tells of each micro-batch."""
    writer = frame.writeStream.format("delta").option("checkpointLocation", str(checkpoint)).option("path", str(into))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [json.loads(told.json) for told in query.recentProgress]


def state_of(told: Sequence[dict[str, Any]], figure: str) -> list[int]:
    """A figure of the one stateful operator, by micro-batch."""
    found = [one["stateOperators"][0] for one in told]
    return [one[figure] if figure in one else one["customMetrics"][figure] for one in found]
