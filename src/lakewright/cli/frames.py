"""Rows for people and programs: a table, CSV or JSON, with times in UTC as Spark tells them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Format", "FormatOption", "show_frame"]

Format: TypeAlias = Literal["table", "csv", "json"]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="How to print rows (default: a table on a terminal, else csv).")
]
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


@dataclass(frozen=True, slots=True)
class _Rows:
    names: list[str]
    types: list[str]
    values: list[list[str | None]]
    more: bool


def show_frame(screen: Screen, frame: DataFrame, *, limit: int, form: Format | None) -> None:
    """Runs the job that brings the first rows, and shows them."""
    if screen.as_json or form == "json":
        screen.show_json(_as_json(frame, limit), exact=True)
        return
    rows = _as_text(frame, limit)
    if form == "table" or (form is None and screen.out_is_terminal):
        shown = [["NULL" if value is None else value for value in row] for row in rows.values]
        right = [name for name, kind in zip(rows.names, rows.types, strict=True) if kind.startswith(_NUMBERS)]
        screen.show(plain_table(rows.names, shown, right=right, exact=True), exact=True)
    else:
        screen.write(_as_csv(rows))
    if rows.more:
        screen.say(f"Only the first {limit:,} rows are shown; --limit N shows more.")


def _as_text(frame: DataFrame, limit: int) -> _Rows:
    """Every value as Spark prints it: a collected timestamp would come in this machine's time zone."""
    from pyspark.sql import functions as F

    names, types = list(frame.columns), [field.dataType.simpleString() for field in frame.schema.fields]
    numbered = frame.toDF(*[f"c{i}" for i in range(len(names))])  # two columns may share a name
    texts = numbered.select(*[F.col(column).cast("string") for column in numbered.columns])
    found = texts.limit(limit + 1).collect()
    return _Rows(names, types, [list(row) for row in found[:limit]], len(found) > limit)


def _as_csv(rows: _Rows) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows.names)
    writer.writerows(rows.values)
    return text.getvalue()


def _as_json(frame: DataFrame, limit: int) -> dict[str, Any]:
    from pyspark.sql import functions as F

    columns = [{"name": field.name, "type": field.dataType.simpleString()} for field in frame.schema.fields]
    whole = F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("row")
    found = [json.loads(row[0]) for row in frame.limit(limit + 1).select(whole).collect()]
    return {"columns": columns, "rows": found[:limit], "truncated": len(found) > limit, "error": None}
