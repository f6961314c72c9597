"""DDL without a session: the same as Spark's own parser, with kinder words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from lakewright.errors import ConfigurationError
from lakewright.model.ddl import data_type, schema_from_ddl

SIMPLE = ["int", "INTEGER", "bigint", "LONG", "smallint", "tinyint", "float", "real", "double", "boolean",
          "string", "binary", "date", "timestamp", "timestamp_ntz", "timestamp_ltz", "variant", "decimal",
          "decimal(7)", "DECIMAL( 10 , 2 )", "numeric(38,38)", "char(3)", "varchar(9)"]  # fmt: skip
NAMES = ["a", "Name", "`with blank`", "`tick``s`", "`é_1`", "_x", "timestamp"]


def types() -> st.SearchStrategy[str]:
    def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        fields = st.lists(
            st.tuples(st.sampled_from(NAMES), inner, st.sampled_from(["", " NOT NULL", " COMMENT 'it''s'"])),
            min_size=1,
            max_size=3,
            unique_by=lambda field: field[0],
        )
        return st.one_of(
            inner.map(lambda kind: f"array<{kind}>"),
            inner.map(lambda kind: f"MAP<string, {kind}>"),
            fields.map(lambda all_: f"struct<{', '.join(f'{name}: {kind}{more}' for name, kind, more in all_)}>"),
        )

    return st.recursive(st.sampled_from(SIMPLE), nested, max_leaves=5)


@settings(deadline=None, max_examples=150)
@given(kind=types())
def test_a_type_reads_as_spark_reads_it(spark: SparkSession, kind: str) -> None:
    assert data_type(kind) == DataType.fromDDL(kind)


@pytest.mark.parametrize(
    "ddl",
    ["id INT", "id: int, name STRING NOT NULL COMMENT 'a name'", " `a b` array<int> , c map<int,string>\n"],
)
def test_a_schema_reads_as_spark_reads_it(spark: SparkSession, ddl: str) -> None:
    assert schema_from_ddl(ddl) == StructType.fromDDL(ddl)


@pytest.mark.parametrize(
    ("ddl", "word"),
    [
        ("strng", "Did you mean 'string'"),
        ("", "ends"),
        ("array<int", "ends"),
        ("array<int>>", "follows"),
        ("decimal(39, 2)", "too wide"),
        ("decimal(x)", "not a number"),
        ("struct<>", "no column"),
        ("varchar", "ends"),
        ("int!", "not understood"),
        ("struct<é: int>", "backquotes"),
    ],
)
def test_a_wrong_type_is_refused_in_words(ddl: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        data_type(ddl)


@pytest.mark.parametrize(
    ("ddl", "word"),
    [
        ("id INT, id STRING", "twice"),
        ("id", "ends"),
        ("id INT,", "ends"),
        ("id INT name STRING", "'name' is where ','"),
        ("id INT NOT", "ends"),
        ("id INT NOT nul", "followed by NULL"),
        ("id INT COMMENT x", "quotes"),
        ("", "no column"),
    ],
)
def test_a_wrong_schema_is_refused_in_words(ddl: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        schema_from_ddl(ddl)
