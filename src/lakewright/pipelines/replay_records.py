"""The records of a replay: fetched from their source, edited or read again, and laid out as corrections. All lazy.

A record is taken as it counts now: as it arrived, or as an earlier correction has it. One that did not parse is parsed
anew by the source's current schema, from its own text or from the one that was given for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.lake.corrections import (
    MARK_COLUMNS,
    OCCURRENCE_COLUMN,
    PART_COLUMN,
    apply_corrections,
    identity_columns,
    of_records,
    read_corrections,
    with_record_names,
)
from lakewright.lake.letter_places import letter_columns
from lakewright.model.cell_spans import CellSpan
from lakewright.model.columns import RAW_COLUMN, business_columns
from lakewright.model.references import Lookback, SameSlice
from lakewright.model.slices import ARRIVAL_COLUMN, EVENT_COLUMN, Slice
from lakewright.model.sql import quoted, text_literal
from lakewright.model.times import Interval, parse_duration
from lakewright.pipelines.corrections import as_out_rows
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.events import with_event_cell
from lakewright.pipelines.take import as_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from lakewright.pipelines.workshop import Workshop

__all__ = ["Edits", "RecordEdit", "Records", "find_records", "load_edits"]

_PLACE = "_lw_place"
# Bytes that were wrong for UTF-8 are kept one by one, as signs of Latin-1: read again as text they would only look
# right. A text that may have come about so counts as damaged until somebody writes it anew.
_MAY_BE_BYTES = "(_lw_text RLIKE '[\\\\x80-\\\\xff]' AND NOT _lw_text RLIKE '[^\\\\x00-\\\\xff]')"


@dataclass(frozen=True, slots=True)
class RecordEdit:
    """What one record should have been: its whole text, or some of its columns."""

    record: str
    raw: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edits:
    """How records are changed before they are read again; without any they are read again as they are."""

    columns: Mapping[str, str | None] = field(default_factory=dict)
    """Column -> value, for all of them."""
    records: tuple[RecordEdit, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.columns or self.records)


@dataclass(frozen=True, slots=True)
class Records:
    """What a replay makes of the records of one source."""

    source: str
    corrected: DataFrame
    """Those that can be used now, and the cells that their originals leave: rows of the corrections."""
    failed: DataFrame
    """Those that still cannot be read, or have no usable time."""
    earlier: DataFrame | None
    """The corrections that those which can be used now take the place of; None where there were none."""
    unchanged: DataFrame
    """Letters that a replay leaves as they are. ``usable`` is NULL where their record is nowhere, and false where it
    was corrected before, and what is given for it now cannot be used."""


def load_edits(file: Path) -> tuple[RecordEdit, ...]:
    """The edits of a file of JSON lines: ``{"record": "...", "raw": "..."}`` or ``{"record": "...", "fields": {...}}``.

    Refused as a whole where a line is wrong.
    """
    found: dict[str, RecordEdit] = {}
    for place, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
            edit = RecordEdit(told["record"].lower(), told.get("raw"), told.get("fields") or {})
            wrong = set(told) - {"record", "raw", "fields"} or (edit.raw is None) == (not edit.fields)
        except (ValueError, KeyError, AttributeError, TypeError):
            wrong = True
        if wrong:
            raise ConfigurationError(
                f"{file}, line {place}: this is no edit of a dead letter. Nothing was changed.",
                hint='Write {"record": "9f86d081884c7d65", "fields": {"page": "/home"}}, or "raw" with the whole text.',
            )
        if edit.record in found:
            raise ConfigurationError(f"{file}, line {place}: {edit.record} is edited twice. Nothing was changed.")
        found[edit.record] = edit
    return tuple(found.values())


def find_records(
    shop: Workshop, source: Dataset, letters: DataFrame, slices: Sequence[str], edits: Edits, *, job: str
) -> Records:
    """What a replay of letters of a source makes; ``job`` is the dataset that had set them aside."""
    from pyspark.sql import functions as F

    lake = shop.lake
    bronze = lake.read(source.name, version=shop.store.receipts.last_version(source.name), system_columns=True)
    keys = identity_columns(bronze.columns)
    corrections = read_corrections(lake, source.name)
    told = letter_columns(keys)
    columns = [*keys, ARRIVAL_COLUMN, EVENT_COLUMN, RAW_COLUMN, *business_columns(bronze.columns)]
    # What has been corrected may lie anywhere: only the originals lie where their letters say.
    near = _near(shop, source.name, job, slices)
    arrived = bronze.where(near)
    view = arrived if corrections is None else apply_corrections(arrived, corrections)
    names = letters.withColumnRenamed("id", "_lw_id")
    now = with_record_names(view.select(*map(quoted, columns)), names, told, name="_lw_id")
    schema = as_schema(shop, source)
    edited = _edited(shop, source, now, edits, schema)
    end = (shop.now() + timedelta(days=1)).replace(microsecond=0)
    cells = with_event_cell(edited, source, shop.graph.cell_grid(source.name), end=end)
    marks = {
        "_lw_replayed_at": F.lit(shop.now()).cast("timestamp"),
        "_lw_replay_job": F.lit(job),
        "_lw_replay_version": F.lit(shop.codes.get(job)).cast("string"),
        "_lw_replay_run": F.lit(shop.run.run_id),
    }
    assert marks.keys() == MARK_COLUMNS.keys()
    same = ", ".join(keys)
    number = F.expr(f"row_number() OVER (PARTITION BY {same} ORDER BY {EVENT_COLUMN})")
    usable = cells.where(f"{EVENT_COLUMN} IS NOT NULL").drop("_lw_id")
    coming = usable.select(
        "*", F.lit("in").alias(PART_COLUMN), number.alias(OCCURRENCE_COLUMN), *[c.alias(n) for n, c in marks.items()]
    )
    originals = of_records(arrived.where(f"{EVENT_COLUMN} IS NOT NULL"), usable, how="left_semi")
    corrected = coming.unionByName(as_out_rows(originals), allowMissingColumns=True)
    earlier = None
    if corrections is not None:
        earlier = of_records(corrections.where(f"{PART_COLUMN} = 'in'"), usable, how="left_semi")
    judged = cells.groupBy(F.col("_lw_id").alias("id")).agg(F.expr(f"max({EVENT_COLUMN} IS NOT NULL)").alias("usable"))
    stays = "usable IS NULL OR (NOT usable AND state = 'corrected')"
    unchanged = letters.select("id", "state").join(judged, "id", "left").where(stays)
    return Records(source.name, corrected, cells.where(f"{EVENT_COLUMN} IS NULL"), earlier, unchanged)


def _near(shop: Workshop, source: str, job: str, slices: Sequence[str]) -> str:
    """Where in bronze the originals of letters lie, as SQL: by arrival, or by the event cells of the slices."""
    found = []
    grids = shop.graph.cell_grids(source)
    read = [shop.graph.reference(shop.graph[job], one) for one in shop.graph[job].inputs if one.dataset == source]
    if not all(isinstance(one, SameSlice | Lookback) for one in read):
        return "true"  # a slice that reads all of it sets rows of any time aside
    reach = max((parse_duration(one.reach) for one in read if isinstance(one, Lookback)), default=timedelta(0))
    for one in map(Slice.parse, slices):
        if one.kind == "arrival":
            found.append(one.predicate())
        elif one.kind == "event" and grids:
            span = Interval(one.interval.start - reach, one.interval.end)
            found.append(f"({CellSpan.of(span, grids).overlapping()})")
        else:
            return "true"
    return " OR ".join(found) or "true"


def _edited(shop: Workshop, source: Dataset, now: DataFrame, edits: Edits, schema: StructType | None) -> DataFrame:
    """The records with what is to be different in them; one that cannot be so keeps a text in ``_lw_raw``."""
    from lakewright.connectors.json_records import is_flat

    types = {f.name: f.dataType for f in now.schema.fields}
    given = _given(shop, edits)
    rows = now.selectExpr("*", f"CAST(NULL AS STRING) AS {_PLACE}", "CAST(NULL AS MAP<STRING, STRING>) AS _lw_fields")
    if given is not None:
        rows = now.join(given, "_lw_id", "left")
    # With columns given, what could be read of a record counts; without, its own text is read again.
    text = _PLACE if edits.columns else f"coalesce({_PLACE}, CASE WHEN _lw_fields IS NULL THEN {RAW_COLUMN} END)"
    rows = rows.selectExpr("*", f"{text} AS _lw_text")
    plain = _with_columns(rows.where("_lw_text IS NULL"), types, edits)
    parse = _parser(source)
    texts = rows.where("_lw_text IS NOT NULL")
    if parse is None:
        return plain.unionByName(texts.select(*map(quoted, plain.columns)))
    keys = [*identity_columns(types), ARRIVAL_COLUMN, "_lw_id"]
    assert schema is not None
    # Key, headers and time of a message are no part of its text.
    aside = [name for name in _beside(source) if name in types]
    body = type(schema)([f for f in schema.fields if f.name not in aside])
    place = [*keys, *map(quoted, aside)]
    damaged = f"({_PLACE} IS NULL AND {_MAY_BE_BYTES}) AS flawed"
    parsed = parse(texts.selectExpr("_lw_text AS text", damaged, f"{is_flat('_lw_text')} AS flat", *place), body, place)
    return plain.unionByName(parsed, allowMissingColumns=True)


def _given(shop: Workshop, edits: Edits) -> DataFrame | None:
    if not edits.records:
        return None
    rows = [
        (edit.record, edit.raw, {name: _as_text(value) for name, value in edit.fields.items()} or None)
        for edit in edits.records
    ]
    schema = f"_lw_id string, {_PLACE} string, _lw_fields map<string, string>"
    return shop.lake.session().createDataFrame(rows, schema)


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _with_columns(rows: DataFrame, types: Mapping[str, DataType], edits: Edits) -> DataFrame:
    from lakewright.connectors.json_records import one_json_value

    own = business_columns(types)
    named = {*edits.columns, *(name for edit in edits.records for name in edit.fields)}
    for name in named:
        if name not in own:
            raise UnknownNameError("column", name, own)
    wrong, columns = ["false"], []
    for name in own:
        column = quoted(name)
        if name in named:
            asked, value = _value(name, edits)
            kind = types[name].simpleString()
            nested = kind.startswith(("struct", "array", "map"))
            read = one_json_value(value, types[name]) if nested else f"try_cast({value} AS {kind})"
            wrong.append(f"({asked} AND {value} IS NOT NULL AND {read} IS NULL)")
            column = f"CASE WHEN {asked} THEN {read} ELSE {column} END AS {column}"
        columns.append(column)
    system = [name for name in types if name not in own and name not in (RAW_COLUMN, EVENT_COLUMN)]
    flag = f"CASE WHEN {' OR '.join(wrong)} THEN 'a value that was given cannot be read as the type of its column' END"
    return rows.selectExpr(*columns, *system, f"{flag} AS {RAW_COLUMN}")


def _value(name: str, edits: Edits) -> tuple[str, str]:
    """SQL for whether a column of a row is given, and for the text that is given."""
    if name in edits.columns:
        constant = edits.columns[name]
        return "true", "CAST(NULL AS STRING)" if constant is None else text_literal(constant)
    key = text_literal(name)
    return f"coalesce(map_contains_key(_lw_fields, {key}), false)", f"_lw_fields[{key}]"


def _beside(source: Dataset) -> list[str]:
    """The columns of a topic's messages that are not in their value."""
    if not hasattr(source.source, "topic"):
        return []
    named = (getattr(source.source, part, None) for part in ("key", "headers", "timestamp"))
    return [name for name in named if name is not None]


def _parser(source: Dataset) -> Any:
    """How texts become records of a source, as a function of texts, schema and the columns to carry along.

    None where its records are no JSON: then only columns can be given.
    """
    from lakewright.connectors.json_records import parse_json_records

    kind: Any = source.source
    is_json = getattr(kind, "value", None) == "json" or type(kind).__name__ in ("JsonFiles", "RestApi")
    if not is_json:
        return None

    def parse(texts: DataFrame, schema: StructType, place: Sequence[str]) -> DataFrame:
        return parse_json_records(texts, schema=schema, options=getattr(kind, "options", {}), place=place)

    return parse
