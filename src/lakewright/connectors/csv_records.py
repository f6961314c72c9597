"""CSV files to records, by the names in each file's header; a record that is wrong keeps its raw text."""

from __future__ import annotations

import bz2
import csv
import gzip
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from lakewright.errors import InputError, SchemaChangeError, did_you_mean
from lakewright.model.arrivals import FileVersion
from lakewright.model.columns import FILE_COLUMN, RAW_COLUMN, VERSION_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Header", "group_by_header", "read_csv_records", "refuse_lost_columns"]

Header = tuple[str, ...]
_UNSEEN = (".zst", ".lz4", ".snappy", ".deflate")


def group_by_header(
    folder: Path, files: Sequence[FileVersion], *, delimiter: str, quote: str, encoding: str
) -> dict[Header | None, list[FileVersion]]:
    """The files by their header line; under None those whose header cannot be looked at from here.

    A file without a single line has no header and no records, and is left out.
    """
    groups: dict[Header | None, list[FileVersion]] = {}
    for file in files:
        if file.path.endswith(_UNSEEN):
            groups.setdefault(None, []).append(file)
        elif header := _read_header(folder / file.path, delimiter, quote, encoding):
            groups.setdefault(header, []).append(file)
    return groups


def refuse_lost_columns(dataset: str, declared: Sequence[str], header: Header, file: str) -> None:
    """Refuse a header without a column that the schema declares."""
    lost = [name for name in declared if name not in header]
    if lost:
        hints = [hint for name in lost if (hint := did_you_mean(name, set(header) - set(declared)))]
        cure = "Correct the file, rename the column in the schema, or set missing='null' to read it as NULL."
        raise SchemaChangeError(
            f"{dataset}: the header of {file} has no column {', '.join(lost)}. It has {', '.join(header)}. "
            "Nothing was read.",
            hint=" ".join([*hints, cure]),
        )


def read_csv_records(
    spark: SparkSession,
    groups: Mapping[Header | None, Sequence[str]],
    *,
    schema: StructType,
    place: Sequence[Column],
    options: Mapping[str, str],
) -> DataFrame:
    """The declared columns, the raw text of what is not right, and the record columns; lazy.

    ``groups`` holds the paths of the files by the names of their columns; None: the declared ones, in order.
    """
    from pyspark.sql import DataFrame

    frames = [
        _read_group(spark, paths, header or tuple(schema.names), schema, place, options)
        for header, paths in groups.items()
    ]
    return reduce(DataFrame.unionByName, frames)


def _read_group(
    spark: SparkSession,
    paths: Sequence[str],
    names: Header,
    schema: StructType,
    place: Sequence[Column],
    options: Mapping[str, str],
) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    from lakewright.connectors.records import hash_column

    declared = {field.name: field for field in schema.fields}
    in_file = [declared.get(name, StructField(name, StringType())) for name in names]
    frame = (
        spark.read.format("csv")
        .schema(StructType([*in_file, StructField(RAW_COLUMN, StringType())]))
        .options(**options)
        .option("columnNameOfCorruptRecord", RAW_COLUMN)
        .load(list(paths))
    )
    columns = [
        F.col(f"`{name}`") if name in names else F.lit(None).cast(field.dataType).alias(name)
        for name, field in declared.items()
    ]
    texts = [F.col(f"`{f.name}`") for f in in_file if f.name in declared and isinstance(f.dataType, StringType)]
    # The decoder puts U+FFFD in the place of bytes that are wrong for the encoding, and says nothing.
    replaced = [F.coalesce(text.contains("\ufffd"), F.lit(False)) for text in texts]
    as_read = F.to_csv(F.struct(*[F.col(f"`{field.name}`") for field in in_file]))
    damaged = F.when(reduce(lambda a, b: a | b, replaced, F.lit(False)), as_read)
    raw = F.coalesce(F.col(RAW_COLUMN), damaged).alias(RAW_COLUMN)
    record = frame.select(*columns, raw, *place)
    return record.select(*[f"`{name}`" for name in schema.names], RAW_COLUMN, FILE_COLUMN, VERSION_COLUMN).select(
        "*", hash_column(schema)
    )


def _read_header(path: Path, delimiter: str, quote: str, encoding: str) -> Header:
    try:
        with _open_text(path, encoding) as lines:
            header = tuple(next((row for row in csv.reader(lines, delimiter=delimiter, quotechar=quote) if row), ()))
    except (OSError, EOFError, csv.Error) as error:
        raise InputError(
            f"The header of {path} cannot be read: {error}. Nothing was read.",
            hint="Deliver the file again, whole; its name must tell how it is compressed.",
        ) from error
    # Only the header is judged: decoding runs ahead of it, and records are judged one by one.
    if any("\ufffd" in name or "\x00" in name for name in header):
        raise InputError(
            f"The header of {path} is not {encoding}. Nothing was read.",
            hint="Set the source's 'encoding' (UTF-8, ISO-8859-1, UTF-16LE, UTF-16BE) to that of the file.",
        )
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(
            f"The header of {path} names {', '.join(twice)} more than once. Nothing was read.",
            hint="Correct the header: columns are told apart by their names.",
        )
    return header


def _open_text(path: Path, encoding: str) -> TextIO:
    codec = {"UTF-8": "utf-8-sig", "UTF-16LE": "utf-16-le", "UTF-16BE": "utf-16-be"}.get(encoding, encoding)
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding=codec, errors="replace", newline="")
    if path.suffix == ".bz2":
        return bz2.open(path, "rt", encoding=codec, errors="replace", newline="")
    return path.open(encoding=codec, errors="replace", newline="")
