"""A frame that tells how often its rows were computed: each one leaves a line in a file."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType


def count_computed(frame: DataFrame, column: str, file: Path) -> DataFrame:
    """The same rows; reading one adds a line to the file."""
    name = str(file)

    def seen(value: str) -> str:
        with open(name, "a") as lines:
            lines.write("1\n")
        return value

    watched = F.udf(seen, StringType()).asNondeterministic()
    return frame.withColumn(column, watched(F.col(column)))


def computed(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0
