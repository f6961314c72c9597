"""Folders of JSON, CSV and Parquet files as sources.

Guarantee:
    A file is taken once per version (see ``listing``), and a recorded arrival reads exactly its files. No
    record is dropped or silently altered: one that does not parse, or only in part, is kept with what could
    be read, and its raw text is in ``_lw_raw``. ``look`` and ``read`` run no Spark job.
Consequences:
    - Producers write aside (a name with a leading ``.`` or ``_``, or the suffix ``.tmp``) and rename: a file
      that is still being written cannot be told from a finished one.
    - A deleted file is no arrival: its rows stay. A file replaced under its name supersedes the old version;
      a ``touch`` counts as a replacement.
    - A file that changes between ``read`` and the end of the write is seen afterwards: ``_lw_file_version``
      holds the version that Spark listed, and ``gone`` compares the files with what was recorded.
    - Folders such as ``date=2026-01-05`` give no columns: only what the files hold is read. With ``ready=`` the
      files of one are taken when it is complete, and not before.
    - Fields that the schema does not name are not read. Gained columns of CSV and Parquet are told by
      ``gained_columns``; those of JSON are not, for that would mean to parse each record twice.
    - Spark rounds a number to the scale of a declared DECIMAL. In JSON a number under a column that is
      declared as text, and every number of a ``multiline`` array, passes through a double (17 digits).
    - Above ``spark.sql.sources.parallelPartitionDiscovery.threshold`` files (32 by default) Spark lists the
      files of an arrival once more, by a job of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from lakewright.connectors.file_windows import (
    find_named_files,
    find_new_files,
    find_new_partitions,
    gone_files,
    left_files,
    refuse_gone_files,
    unready_folders,
    window_files,
    window_folder,
)
from lakewright.errors import ConfigurationError
from lakewright.model.arrivals import Arrival
from lakewright.model.protocols import Found, SourceContext
from lakewright.model.times import parse_duration
from lakewright.patterns.ingestion.folder_readiness import FlagFile, FolderReadiness, NextPartition

if TYPE_CHECKING:  # a project file names sources before Spark is there
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["CsvFiles", "Encoding", "FlagFile", "JsonFiles", "NextPartition", "ParquetFiles"]

Encoding = Literal["UTF-8", "ISO-8859-1", "UTF-16LE", "UTF-16BE"]
_OURS = {
    name.lower(): cure
    for name, cure in {
        "mode": "every record is kept",
        "columnNameOfCorruptRecord": "it is _lw_raw",
        "multiLine": "use multiline=",
        "encoding": "use encoding=",
        "charset": "use encoding=",
        "header": "use header=",
        "sep": "use delimiter=",
        "delimiter": "use delimiter=",
        "quote": "use quote=",
        "escape": "use escape=",
        "enforceSchema": "columns are found by their names",
        "columnPruning": "every column is judged",
        "pathGlobFilter": "use pattern=",
        "recursiveFileLookup": "folders are always searched",
        "mergeSchema": "declare a schema",
    }.items()
}


@dataclass(frozen=True, slots=True)
class _Folder:
    """What all three have in common: where the files lie and how many of them make one arrival."""

    path: str
    _: KW_ONLY
    pattern: str = "*"
    """A shell pattern for the file's name, or, with a ``/``, for its path below the folder."""
    max_files: int | None = None
    """At most so many files in one arrival; the rest is the next one."""
    max_bytes: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """More options for Spark's parser, such as ``timestampFormat``."""
    ready: FolderReadiness | None = None
    """When the files of a folder are complete: ``FlagFile("_SUCCESS")``, or ``NextPartition()``."""
    wait_at_most: str | None = None
    """So long after it was first seen a folder that is not complete is a failure."""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.ready is not None and not isinstance(self.ready, FolderReadiness):
            raise ConfigurationError(
                f'{kind}: ready is FlagFile("_SUCCESS") or NextPartition(), not {self.ready!r}.',
            )
        if self.wait_at_most is not None:
            parse_duration(self.wait_at_most)
            if self.ready is None:
                raise ConfigurationError(
                    f"{kind}: wait_at_most says how long a folder may be incomplete, but nothing says when it is.",
                    hint='Add ready=FlagFile("_SUCCESS") or ready=NextPartition().',
                )
        if not self.path:
            raise ConfigurationError(f"{kind}: the path is empty. Name a folder, such as 'landing/visits'.")
        for name, bound in (("max_files", self.max_files), ("max_bytes", self.max_bytes)):
            if bound is not None and bound < 1:
                raise ConfigurationError(f"{kind}: '{name}' is {bound}. It must be at least 1, or None for no limit.")
        for name in self.options:
            if name.lower() in _OURS:
                raise ConfigurationError(f"{kind}: the option '{name}' cannot be set here: {_OURS[name.lower()]}.")

    @property
    def repeatable(self) -> bool:
        """Yes: the versions of the files are recorded."""
        return True

    @property
    def takes_part(self) -> str | None:
        """Why an arrival may be only a part of what is there; None where it never is."""
        limit = next((name for name in ("max_files", "max_bytes") if getattr(self, name) is not None), None)
        return None if limit is None else f"{limit} takes only a part at a time"

    def look(self, ctx: SourceContext) -> Found | None:
        """The files that are new or replaced; None where there are none."""
        return find_new_files(
            self.path,
            ctx,
            pattern=self.pattern,
            max_files=self.max_files,
            max_bytes=self.max_bytes,
            ready=self.ready,
        )

    def look_for(self, names: Sequence[str], ctx: SourceContext) -> Found | None:
        """Those of the named files that are new or replaced; None where none of them is."""
        return find_named_files(self.path, names, ctx, pattern=self.pattern)

    def look_by_folder(self, key: str, ctx: SourceContext) -> Sequence[Found]:
        """The files that are new or replaced, an arrival per complete partition ``key=...``."""
        assert self.ready is not None, "asked for by `IncrementalLoader.check_source`"
        return find_new_partitions(self.path, key, ctx, pattern=self.pattern, ready=self.ready)

    def waiting(self, ctx: SourceContext) -> Mapping[str, str]:
        """The folders with new files that are not complete yet, each with the reason."""
        return {} if self.ready is None else unready_folders(self.path, ctx, pattern=self.pattern, ready=self.ready)

    def gone(self, arrival: Arrival, ctx: SourceContext) -> Sequence[str]:
        """The files of the arrival that vanished or changed since it was recorded."""
        return gone_files(arrival, ctx)

    @property
    def if_lost(self) -> None:
        """Nothing goes on by itself without files that are gone: they may come back."""
        return None

    def left(self, arrival: Arrival, ctx: SourceContext) -> Found:
        """The files of the arrival that are as they were recorded."""
        return left_files(arrival, ctx)


@dataclass(frozen=True, slots=True)
class JsonFiles(_Folder):
    """JSON Lines: a record per line; with ``multiline`` a document per file: a record or an array of them."""

    _: KW_ONLY
    multiline: bool = False
    encoding: Encoding = "UTF-8"

    def __post_init__(self) -> None:
        _Folder.__post_init__(self)
        _check_encoding(self.encoding)

    def read(
        self, arrival: Arrival, *, spark: SparkSession, schema: StructType | None, ctx: SourceContext
    ) -> DataFrame:
        """Every record of the arrival's files; lazy."""
        from lakewright.connectors.json_records import read_json_records
        from lakewright.connectors.records import file_columns, load_paths, refuse_system_columns

        declared = _declared(schema, ctx, "JsonFiles")
        refuse_system_columns(ctx.dataset, declared)
        refuse_gone_files(arrival, ctx)
        folder, files = window_folder(arrival, ctx), window_files(arrival)
        return read_json_records(
            spark,
            load_paths(folder, files),
            schema=declared,
            place=file_columns(folder, files),
            multiline=self.multiline,
            encoding=self.encoding,
            options=self.options,
        )

    def gained_columns(self, arrival: Arrival, *, schema: StructType, ctx: SourceContext) -> dict[str, str]:
        """Nothing: fields that the schema does not name are not seen."""
        return {}


@dataclass(frozen=True, slots=True)
class CsvFiles(_Folder):
    """CSV as in RFC 4180: a quote within quotes is doubled. With ``header``, columns are found by name.

    ``multiline`` allows line ends within quotes; such a file is read by one task.
    """

    _: KW_ONLY
    header: bool = True
    delimiter: str = ","
    quote: str = '"'
    escape: str = '"'
    multiline: bool = False
    encoding: Encoding = "UTF-8"
    missing: Literal["refuse", "null"] = "refuse"
    """What a declared column is that the header does not name."""

    def __post_init__(self) -> None:
        _Folder.__post_init__(self)
        _check_encoding(self.encoding)
        for name, value in (("delimiter", self.delimiter), ("quote", self.quote), ("escape", self.escape)):
            if len(value) != 1:
                raise ConfigurationError(f"CsvFiles: '{name}' is '{value}'. It must be one character.")

    def read(
        self, arrival: Arrival, *, spark: SparkSession, schema: StructType | None, ctx: SourceContext
    ) -> DataFrame:
        """Every record of the arrival's files; lazy but for the headers."""
        from lakewright.connectors.csv_records import group_by_header, read_csv_records, refuse_lost_columns
        from lakewright.connectors.records import file_columns, load_paths, refuse_system_columns

        declared = _declared(schema, ctx, "CsvFiles")
        refuse_system_columns(ctx.dataset, declared)
        refuse_gone_files(arrival, ctx)
        folder, files = window_folder(arrival, ctx), window_files(arrival)
        groups = (
            group_by_header(folder, files, delimiter=self.delimiter, quote=self.quote, encoding=self.encoding)
            if self.header
            else {}
        ) or {None: list(files)}
        for header, group in groups.items():
            if header is not None and self.missing == "refuse":
                refuse_lost_columns(ctx.dataset, declared.names, header, group[0].path)
        return read_csv_records(
            spark,
            {header: load_paths(folder, group) for header, group in groups.items()},
            schema=declared,
            place=file_columns(folder, files),
            options=self._parsing(),
        )

    def gained_columns(self, arrival: Arrival, *, schema: StructType, ctx: SourceContext) -> dict[str, str]:
        """The columns that headers of the arrival name and the schema does not, all as text."""
        from lakewright.connectors.csv_records import group_by_header

        if not self.header:
            return {}
        groups = group_by_header(
            window_folder(arrival, ctx),
            window_files(arrival),
            delimiter=self.delimiter,
            quote=self.quote,
            encoding=self.encoding,
        )
        names = [name for header in groups for name in header or ()]
        return {name: "string" for name in dict.fromkeys(names) if name not in schema.names}

    def _parsing(self) -> dict[str, str]:
        # Only in multi-line mode does Spark decode UTF-16 before it looks for line ends.
        multiline = self.multiline or self.encoding.startswith("UTF-16")
        return {
            **self.options,
            "mode": "PERMISSIVE",
            "header": str(self.header),
            "sep": self.delimiter,
            "quote": self.quote,
            "escape": self.escape,
            "multiLine": str(multiline),
            "encoding": self.encoding,
            "enforceSchema": "false",
            "columnPruning": "false",
            "recursiveFileLookup": "true",
        }


@dataclass(frozen=True, slots=True)
class ParquetFiles(_Folder):
    """Parquet files; without a schema, the first file of an arrival tells it and the others must agree."""

    _: KW_ONLY
    missing: Literal["refuse", "null"] = "refuse"
    """What a declared column is that a file does not hold."""

    def read(
        self, arrival: Arrival, *, spark: SparkSession, schema: StructType | None, ctx: SourceContext
    ) -> DataFrame:
        """Every record of the arrival's files; lazy but for the footers."""
        from pyspark.sql import functions as F

        from lakewright.connectors.column_types import refuse_changed_columns
        from lakewright.connectors.parquet_schemas import as_struct, footer_schemas
        from lakewright.connectors.records import (
            file_columns,
            hash_column,
            load_paths,
            refuse_system_columns,
        )
        from lakewright.model.columns import RAW_COLUMN

        refuse_gone_files(arrival, ctx)
        folder, files = window_folder(arrival, ctx), window_files(arrival)
        declared = schema
        for file, found in footer_schemas(folder, files):
            declared = declared if declared is not None else as_struct(found, file)
            refuse_changed_columns(ctx.dataset, declared, file, found, missing_is_null=self.missing == "null")
        assert declared is not None, "an arrival holds at least one file"
        refuse_system_columns(ctx.dataset, declared)
        frame = (
            spark.read.format("parquet")
            .options(**self.options)
            .option("recursiveFileLookup", "true")
            .schema(declared)
            .load(load_paths(folder, files))
        )
        raw = F.lit(None).cast("string").alias(RAW_COLUMN)
        return frame.select("*", raw, *file_columns(folder, files)).select("*", hash_column(declared))

    def gained_columns(self, arrival: Arrival, *, schema: StructType, ctx: SourceContext) -> dict[str, str]:
        """The columns that files of the arrival hold and the schema does not name, with their types."""
        from lakewright.connectors.parquet_schemas import footer_schemas

        gained: dict[str, str] = {}
        for _, found in footer_schemas(window_folder(arrival, ctx), window_files(arrival)):
            for name, kind in found.items():
                if name not in schema.names and kind is not None:
                    gained.setdefault(name, kind.simpleString())
        return gained


def _check_encoding(encoding: str) -> None:
    if encoding not in get_args(Encoding):
        raise ConfigurationError(
            f"The encoding '{encoding}' is not known. Use one of {', '.join(get_args(Encoding))}.",
            hint="Spark reads no other encodings: convert the files first.",
        )


def _declared(schema: StructType | None, ctx: SourceContext, kind: str) -> StructType:
    if schema is None:
        raise ConfigurationError(
            f"{ctx.dataset}: {kind} needs a schema; text files do not tell their types reliably.",
            hint="Declare it: schema='visit_id STRING, event_time TIMESTAMP'.",
        )
    return schema
