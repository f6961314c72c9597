"""What the footers of Parquet files promise, before Spark reads a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from lakewright.errors import InputError, first_words
from lakewright.model.arrivals import FileVersion

__all__ = ["as_struct", "footer_schemas"]


def footer_schemas(folder: Path, files: Sequence[FileVersion]) -> Iterator[tuple[str, dict[str, DataType | None]]]:
    """Per file its columns; the type is None where Arrow's has no counterpart and Spark must judge."""
    for file in files:
        try:
            schema = pyarrow.parquet.read_schema(folder / file.path)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(
                f"{folder / file.path} is no whole Parquet file. Nothing was read. Arrow says: {first_words(error)}",
                hint="Deliver the file again, whole. Producers write aside and rename when they are done.",
            ) from error
        yield file.path, {field.name: _spark_type(field.type) for field in schema}


def _spark_type(kind: pyarrow.DataType) -> DataType | None:
    try:
        return from_arrow_type(kind, prefer_timestamp_ntz=True)
    except PySparkException:
        return None


def as_struct(columns: dict[str, DataType | None], file: str) -> StructType:
    """The schema of one file, for a source that declares none."""
    unknown = [name for name, kind in columns.items() if kind is None]
    if unknown:
        raise InputError(
            f"The type of {', '.join(unknown)} in {file} has no counterpart in Spark. Nothing was read.",
            hint="Declare a schema for the source.",
        )
    return StructType([StructField(name, kind) for name, kind in columns.items() if kind is not None])
