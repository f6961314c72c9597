"""JSON text to records: every record is kept, and one that is not wholly right carries its raw text.

The files are read as text and parsed by ``from_json``, not by Spark's JSON reader, because the reader
- takes ``{"id": 6}{"id": 7}`` (two files put together without a line end) for the first object alone;
- gives every record of a multi-line document the raw text of the whole file when one of them is wrong;
- judges only the columns that a query happens to select.

Expressions are SQL text: as columns, each of their parts costs a call to the JVM, every time that a source is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from lakewright.model.columns import FILE_COLUMN, HASH_COLUMN, RAW_COLUMN, VERSION_COLUMN
from lakewright.model.sql import quoted, text_literal

__all__ = ["decoded_utf8", "is_flat", "one_json_value", "parse_json_records", "read_json_records", "utf8_texts"]

_BLANKS = " \t\r\n"
_BYTE_ORDER_MARK = "\ufeff"
_REPLACEMENT = "\ufffd"
_WIDE = ("UTF-16LE", "UTF-16BE")
# Whether nothing follows the first value, which is all that from_json reads. In brackets, it and three more must be an
# array of four: a text that closes the bracket itself has another number, unless it brings three values of its own.
# That scan costs a quarter of the parse, which flat records are spared.
_ONE_VALUE = "json_array_length(concat('[', {text}, ', 0, 0, 0]')) <=> 4"


def read_json_records(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    schema: StructType,
    place: Sequence[Column],
    multiline: bool,
    encoding: str,
    options: Mapping[str, str],
) -> DataFrame:
    """The declared columns, the raw text of what is not right, and the record columns; lazy."""
    reader = spark.read.format("text").option("recursiveFileLookup", "true").option("wholetext", str(multiline))
    if encoding in _WIDE:
        reader = reader.option("encoding", encoding).option("lineSep", "\n")
    lines = reader.load(list(paths)).select(*map(F.expr, _decoded(encoding)), *place)
    # A blank line is no record (JSON Lines allows it). To trim a set of signs is slow: few lines need it.
    records = lines.where(f"startswith(text, '{{') OR length(btrim(text, '{_BLANKS}')) > 0")
    if multiline:
        records = _split_documents(records)
    # The record's own text tells it: cheaper than its columns, and the same whatever the schema declares.
    hashed = records.withColumn(HASH_COLUMN, F.xxhash64("text"))
    return parse_json_records(hashed, schema=schema, options=options, place=(FILE_COLUMN, VERSION_COLUMN, HASH_COLUMN))


def parse_json_records(
    records: DataFrame, *, schema: StructType, options: Mapping[str, str], place: Sequence[str]
) -> DataFrame:
    """A ``text`` per record to columns, raw text and ``place``; lazy.

    ``flawed`` says that its bytes were wrong, ``flat`` what `is_flat` says of it.
    """
    parsing = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": RAW_COLUMN}
    with_raw = StructType([*schema.fields, StructField(RAW_COLUMN, StringType())])
    parsed = records.withColumn("record", F.from_json("text", with_raw, parsing))
    one_value = _ONE_VALUE.format(text="text")
    right = f"NOT flawed AND record IS NOT NULL AND record.{RAW_COLUMN} IS NULL AND (flat OR {one_value})"
    columns = [f"record.{quoted(name)} AS {quoted(name)}" for name in schema.names]
    return parsed.selectExpr(*columns, f"CASE WHEN {right} THEN NULL ELSE text END AS {RAW_COLUMN}", *place)


def one_json_value(text: str, kind: DataType) -> str:
    """SQL for a nested value from SQL for its text; NULL where a part of it does not fit, or something follows it.

    Read by itself, what does not fit would come back as a value of NULLs. In a record of its own it is told.
    """
    record = StructType([StructField("value", kind), StructField("wrong", StringType())])
    wrapped = f"concat('{{\"value\":', {text}, '}}')"
    read = f"from_json({wrapped}, {text_literal(record.json())}, map('columnNameOfCorruptRecord', 'wrong'))"
    return f"CASE WHEN {_ONE_VALUE.format(text=text)} AND {read}.wrong IS NULL THEN {read}.value END"


def utf8_texts(value: str) -> list[str]:
    """SQL for the columns that `parse_json_records` reads, from SQL for bytes or text that should be UTF-8."""
    flat = is_flat(f"CAST({value} AS STRING)")
    text, flawed = decoded_utf8(value, told=flat)
    return [f"{text} AS text", f"coalesce({flawed}, false) AS flawed", f"{flat} AS flat"]


def is_flat(text: str) -> str:
    """SQL for whether a text is valid UTF-8 and ends with its only closing brace: then nothing follows its record.

    ``split`` searches by Java's own means, many bytes at a time, and what it gives is always valid: one look answers
    both questions. ``contains`` and ``is_valid_utf8`` look at each byte, which together costs a third of a parse.
    """
    return f"concat(split({text}, '}}', 2)[0], '}}') = {text}"


def decoded_utf8(value: str, *, told: str = "false") -> tuple[str, str]:
    """SQL for the text of bytes, or of text as Spark read it, that should be UTF-8, and for whether they are not.

    ``told`` is SQL that is true only where they are known to be right.
    """
    # from_json would put U+FFFD in the place of each wrong byte, silently. Read byte by byte nothing is lost:
    # the text is right if the file is Latin-1, and the bytes can be had back in any case. To look for U+FFFD is quick
    # (see `is_flat`): only a text that has it, of its own or in the place of wrong bytes, is looked at byte by byte.
    text = f"CAST({value} AS STRING)"
    without = f"split({text}, '{_REPLACEMENT}', 2)[0] = {text}"
    # In a CASE, not by OR: Spark would work out all of an OR that stands twice, also where its first part is true.
    valid = f"CASE WHEN {told} THEN true WHEN {without} THEN true ELSE is_valid_utf8({text}) END"
    as_bytes = f"decode(CAST({value} AS BINARY), 'ISO-8859-1')"
    return f"CASE WHEN {valid} THEN {_without_mark(text)} ELSE {as_bytes} END", f"NOT {valid}"


def _decoded(encoding: str) -> list[str]:
    """As `utf8_texts`, for a line of any encoding."""
    if encoding == "UTF-8":
        return utf8_texts("value")
    data = "CAST(value AS BINARY)"
    if encoding in _WIDE:
        # Decoding half a character would fail the whole read: a cut record keeps what is whole, and a flag.
        odd = f"octet_length({data}) % 2 = 1"
        whole = f"CASE WHEN {odd} THEN substring({data}, 1, octet_length({data}) - 1) ELSE {data} END"
        text, flawed = _without_mark(f"decode({whole}, '{encoding}')"), odd
    else:
        text, flawed = f"decode({data}, 'ISO-8859-1')", "false"
    return [f"{text} AS text", f"{flawed} AS flawed", f"{is_flat(text)} AS flat"]


def _without_mark(text: str) -> str:
    return f"CASE WHEN startswith({text}, '{_BYTE_ORDER_MARK}') THEN substr({text}, 2) ELSE {text} END"


def _split_documents(documents: DataFrame) -> DataFrame:
    """One row per element of a document that is an array; any other document is one record."""
    is_array = f"startswith(btrim(text, '{_BLANKS}'), '[') AND {_ONE_VALUE.format(text='text')}"
    elements = f"CASE WHEN {is_array} THEN from_json(text, 'array<string>') END"
    rows = documents.selectExpr(
        f"explode(coalesce({elements}, array(text))) AS text", "flawed", FILE_COLUMN, VERSION_COLUMN
    )
    return rows.withColumn("text", F.coalesce("text", F.lit("null"))).selectExpr("*", f"{is_flat('text')} AS flat")
