"""The record columns: which file and version a record came from, and a hash of what it holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from lakewright.errors import ConfigurationError
from lakewright.model.arrivals import FileVersion
from lakewright.model.columns import FILE_COLUMN, HASH_COLUMN, RAW_COLUMN, SYSTEM_PREFIX, VERSION_COLUMN
from lakewright.model.sql import quoted

__all__ = ["file_columns", "hash_column", "load_paths", "refuse_system_columns"]

_PLAIN = re.compile(r"[A-Za-z0-9/._=-]*")
_GLOB = re.compile(r"([\\{}\[\]*?,])")


def load_paths(folder: Path, files: Sequence[FileVersion]) -> list[str]:
    """The paths to give to Spark's reader: with their scheme, and so that no name is taken for a pattern."""
    return [_GLOB.sub(r"\\\1", f"file://{folder.as_posix()}/{file.path}") for file in files]


def file_columns(folder: Path, files: Sequence[FileVersion]) -> list[Column]:
    """``_lw_file`` and ``_lw_file_version`` from Spark's ``_metadata``: no join, however many files."""
    path: Column = F.col("_metadata.file_path")
    if not all(_PLAIN.fullmatch(name) for name in (folder.as_posix(), *(file.path for file in files))):
        # The path is a URI. url_decode reads form encoding, in which '+' is a blank; in a URI it is itself.
        path = F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))
    modified = F.unix_millis(F.col("_metadata.file_modification_time"))
    version = F.concat(F.col("_metadata.file_size").cast("string"), F.lit("-"), modified.cast("string"))
    return [_after(path, folder).alias(FILE_COLUMN), version.alias(VERSION_COLUMN)]


def hash_column(schema: StructType) -> Column:
    """``_lw_hash`` over the declared columns and the raw text.

    xxhash64 skips NULL, in arrays too, and knows neither maps nor variants: so each column is led by its
    place (NULL, 'a' differs from 'a', NULL), and nested ones are hashed as JSON.
    """
    parts: list[Column] = []
    for place, field in enumerate(schema.fields):
        column = F.col(quoted(field.name))
        parts += [F.lit(place), F.to_json(column) if _is_nested(field.dataType) else column]
    return F.xxhash64(*parts, F.lit(len(schema.fields)), F.col(RAW_COLUMN)).alias(HASH_COLUMN)


def refuse_system_columns(dataset: str, schema: StructType) -> None:
    """Refuse a schema without columns or with names that the lake keeps for itself."""
    taken = [name for name in schema.names if name.lower().startswith(SYSTEM_PREFIX)]
    if taken or not schema.names:
        problem = f"declares {', '.join(taken)}; names with '{SYSTEM_PREFIX}' are the system's" if taken else "is empty"
        raise ConfigurationError(f"{dataset}: the schema {problem}.", hint="Correct the columns of the schema.")


def _after(path: Column, folder: Path) -> Column:
    """The part below the folder; readers write the scheme as ``file:/`` or as ``file:///``."""
    prefix = folder.as_posix().rstrip("/") + "/"
    return F.substr(path, F.instr(path, prefix) + F.lit(len(prefix)))


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, (StructType, ArrayType, MapType, VariantType))
