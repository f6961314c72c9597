"""JSON text to records: every record is kept, and one that is not wholly right carries its raw text.

The files are read as text and parsed by ``from_json``, not by Spark's JSON reader, because the reader
- takes ``{"id": 6}{"id": 7}`` (two files put together without a line end) for the first object alone;
- gives every record of a multi-line document the raw text of the whole file when one of them is wrong;
- judges only the columns that a query happens to select.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from lakewright.model.columns import FILE_COLUMN, HASH_COLUMN, RAW_COLUMN, VERSION_COLUMN

__all__ = ["decoded_utf8", "parse_json_records", "read_json_records"]

_BLANKS = " \t\r\n"
_BYTE_ORDER_MARK = "\ufeff"
_WIDE = ("UTF-16LE", "UTF-16BE")


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
    text, flawed = _decoded(encoding)
    lines = reader.load(list(paths)).select(text.alias("text"), flawed.alias("flawed"), *place)
    # A blank line is no record (JSON Lines allows it). To trim a set of signs is slow: few lines need it.
    first = F.col("text").startswith("{")
    records = lines.where(first | (F.length(F.btrim("text", F.lit(_BLANKS))) > 0))
    if multiline:
        records = _split_documents(records)
    # The record's own text tells it: cheaper than its columns, and the same whatever the schema declares.
    hashed = records.withColumn(HASH_COLUMN, F.xxhash64("text"))
    return parse_json_records(hashed, schema=schema, options=options, place=(FILE_COLUMN, VERSION_COLUMN, HASH_COLUMN))


def parse_json_records(
    records: DataFrame, *, schema: StructType, options: Mapping[str, str], place: Sequence[str]
) -> DataFrame:
    """A ``text`` per record (``flawed``: its bytes were wrong) to columns, raw text and ``place``; lazy."""
    parsing = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": RAW_COLUMN}
    with_raw = StructType([*schema.fields, StructField(RAW_COLUMN, StringType())])
    parsed = records.withColumn("record", F.from_json("text", with_raw, parsing))
    wrong = (
        F.col("flawed")
        | F.col("record").isNull()
        | F.col("record").getField(RAW_COLUMN).isNotNull()
        | _holds_more_than_one_value(F.col("text"))
    )
    columns = [F.col("record").getField(name).alias(name) for name in schema.names]
    raw = F.when(wrong, F.col("text")).alias(RAW_COLUMN)
    return parsed.select(*columns, raw, *place)


def _decoded(encoding: str) -> tuple[Column, Column]:
    """The text of a line, and whether its bytes are wrong for the encoding."""
    value = F.col("value")
    if encoding in _WIDE:
        # Decoding half a character would fail the whole read: a cut record keeps what is whole, and a flag.
        data = value.cast("binary")
        odd = F.octet_length(data) % 2 == 1
        whole = F.when(odd, F.substring(data, F.lit(1), F.octet_length(data) - 1)).otherwise(data)
        return _without_mark(F.decode(whole, encoding)), odd
    if encoding != "UTF-8":
        return F.decode(value.cast("binary"), "ISO-8859-1"), F.lit(False)
    return decoded_utf8(value)


def decoded_utf8(value: Column) -> tuple[Column, Column]:
    """The text of bytes, or of text as Spark read it, that should be UTF-8, and whether they are not."""
    as_bytes = F.decode(value.cast("binary"), "ISO-8859-1")
    value = value.cast("string")
    # from_json would put U+FFFD in the place of each wrong byte, silently. Read byte by byte nothing is lost:
    # the text is right if the file is Latin-1, and the bytes can be had back in any case. Asked first and once: each
    # look at all bytes is a tenth of the parse.
    valid = F.is_valid_utf8(value)
    return F.when(valid, _without_mark(value)).otherwise(as_bytes), ~valid


def _without_mark(text: Column) -> Column:
    return F.when(text.startswith(_BYTE_ORDER_MARK), F.substr(text, F.lit(2))).otherwise(text)


def _split_documents(documents: DataFrame) -> DataFrame:
    """One row per element of a document that is an array; any other document is one record."""
    text = F.col("text")
    is_array = F.btrim(text, F.lit(_BLANKS)).startswith("[") & ~_holds_more_than_one_value(text)
    elements = F.when(is_array, F.from_json(text, "array<string>"))
    element = F.explode(F.coalesce(elements, F.array(text))).alias("text")
    rows = documents.select(element, "flawed", FILE_COLUMN, VERSION_COLUMN)
    return rows.withColumn("text", F.coalesce("text", F.lit("null")))


def _holds_more_than_one_value(text: Column) -> Column:
    """Whether anything follows the first JSON value; only asked where the first '}' is not the last sign.

    In brackets the text must be an array of one element; that scan costs a quarter of the parse, which flat
    records are spared. Bytes are looked at: to count signs (``instr``, ``length``) costs more than the parse.
    """
    data = text.cast("binary")
    but_last = F.substring(data, F.lit(1), F.octet_length(data) - 1).cast("string")
    is_flat = text.endswith("}") & ~but_last.contains("}")
    count = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    return F.when(is_flat, F.lit(False)).otherwise(~count.eqNullSafe(F.lit(1)))
