"""Wrapper: raw stays raw in each form, the computed part is the same for every record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewright.errors import ConfigurationError, InputError, MissingColumnsError
from lakewright.patterns.data_value.wrapper import (
    Wrapper,
    unwrap_records,
    wrap_apart,
    wrap_as_json,
    wrap_providers,
    wrap_records,
)

COMPUTED = {"is_connected": "since IS NOT NULL", "page_referral_key": "concat_ws('-', page, referral)"}
VISITS = "visit string, page string, referral string, since string"
ROWS = [("v1", "/home", "search", "2026-01-01"), ("v2", "/a b", None, None)]
MADE = [(True, "/home-search"), (False, "/a b")]


@pytest.mark.shows("05.wrapper", 1, 5, 6, 7)
def test_raw_is_the_same_in_all_forms_and_hidden_from_who_asks_for_computed_alone(
    spark: SparkSession, lake_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    visits = spark.createDataFrame(ROWS, VISITS)
    wrapped = {}
    for form in ("raw_nested", "computed_nested", "flat"):
        wrapper = Wrapper(COMPUTED, form=form, context=["job_version"])
        frame = wrap_records(visits, wrapper=wrapper, context={"job_version": "v1"})
        kind = "delta" if form == "raw_nested" else "parquet"
        frame.coalesce(1).write.format(kind).save(f"{lake_folder}/{form}")
        wrapped[form] = (wrapper, spark.read.format(kind).load(f"{lake_folder}/{form}"))
    apart = Wrapper(COMPUTED, form="two_tables", keys=["visit"], context=["job_version"])
    both = wrap_apart(visits, wrapper=apart, context={"job_version": "v1"})
    both.raw.coalesce(1).write.parquet(f"{lake_folder}/raw")
    both.computed.coalesce(1).write.parquet(f"{lake_folder}/computed")
    raw_table, computed_table = (spark.read.parquet(f"{lake_folder}/{name}") for name in ("raw", "computed"))
    assert wrapped["raw_nested"][1].columns == ["is_connected", "page_referral_key", "job_version", "raw"]
    assert wrapped["computed_nested"][1].columns == ["visit", "page", "referral", "since", "computed"]
    assert wrapped["flat"][1].columns[4:] == [f"computed_{n}" for n in (*COMPUTED, "job_version")]
    shown = {form: unwrap_records(frame, wrapper=wrapper) for form, (wrapper, frame) in wrapped.items()}
    shown["two_tables"] = unwrap_records(computed_table, wrapper=apart, raw=raw_table)
    for form, frame in shown.items():
        rows = sorted(frame.select(*visits.columns, *COMPUTED, "job_version").collect())
        assert [tuple(row) for row in rows] == [(*r, *c, "v1") for r, c in zip(ROWS, MADE, strict=True)], form

    wrapper, silver = wrapped["raw_nested"]
    unwrap_records(silver, wrapper=wrapper).createOrReplaceTempView("gold_visits")
    described = {row["col_name"]: row["data_type"] for row in spark.sql("DESCRIBE gold_visits").collect()}
    assert list(described) == ["visit", "page", "referral", "since", *COMPUTED, "job_version"]
    assert not [kind for kind in described.values() if "struct" in kind]
    assert unwrap_records(silver, wrapper=wrapper, columns=["visit", "is_connected"]).columns == [
        "visit", "is_connected",
    ]  # fmt: skip
    silver.select("page_referral_key").explain()
    assert "ReadSchema: struct<page_referral_key:string>" in capsys.readouterr().out

    again = wrap_records(visits, wrapper=wrapper, context={"job_version": "v2"})
    before, after = (sorted(one.collect(), key=str) for one in (silver, again))
    assert [row["raw"] for row in before] == [row["raw"] for row in after]
    assert [row["page_referral_key"] for row in before] == [row["page_referral_key"] for row in after]
    assert [row["job_version"] for row in (*before, *after)] == ["v1", "v1", "v2", "v2"]


@pytest.mark.shows("05.wrapper", 2, 3)
def test_text_that_cannot_be_parsed_stays_to_the_byte_and_providers_share_one_computed_schema(
    spark: SparkSession,
) -> None:
    good, bad = '{"id": 7,  "url": "/home"}', '{"id": 7, "url": '
    messages = spark.createDataFrame([("k1", good), ("k2", bad), ("k3", None)], "key string, value string")
    read = Wrapper({"page": "parsed.url", "twice": "parsed.id * 2"}, text="value", parse="id INT, url STRING")
    rows = {row["raw"]["key"]: row for row in wrap_records(messages, wrapper=read).collect()}
    assert [rows[key]["raw"]["value"] for key in ("k1", "k2", "k3")] == [good, bad, None]
    assert [(rows[k]["page"], rows[k]["twice"], rows[k]["error"]) for k in ("k1", "k2", "k3")] == [
        ("/home", 14, None), (None, None, "it is no JSON of these fields"), (None, None, "there is no text"),
    ]  # fmt: skip
    sent = [json.loads(row["value"]) for row in wrap_as_json(messages, wrapper=read).sort("key").collect()]
    assert [one["raw"] for one in sent] == [good, bad, None]
    assert sent[0]["computed"] == {"page": "/home", "twice": 14, "error": None}

    bytes_of = spark.createDataFrame([("k1", bytearray(b"\xff\xfe{"))], "key string, value binary")
    assert bytes(wrap_records(bytes_of, wrapper=read).first()["raw"]["value"]) == b"\xff\xfe{"  # type: ignore[index]

    csv = spark.sql("SELECT '/b' AS path, CAST(NULL AS STRING) AS who, TIMESTAMP'2026-01-01 10:00:00.000001' AS at")
    old = spark.createDataFrame([('{"p": "/c"}',)], "value string")
    both = wrap_providers(
        {"a": messages.where("key = 'k1'"), "b": csv, "c": old},
        wrappers={
            "a": Wrapper({"page": "parsed.url"}, text="value", parse="url STRING"),
            "b": Wrapper({"page": "path", "error": "CAST(NULL AS STRING)"}),
            "c": Wrapper({"page": "parsed.p"}, text="value", parse="p STRING"),
        },
    )
    assert both.schema.simpleString() == (
        "struct<provider:string,page:string,error:string,raw:struct<record:string>>"
    )  # fmt: skip
    assert [(row[0], row[1], row[3][0]) for row in both.sort("provider").collect()] == [
        ("a", "/home", good), ("b", "/b", '{"path":"/b","who":null,"at":"2026-01-01T10:00:00.000001Z"}'),
        ("c", "/c", '{"p": "/c"}'),
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="the records of 'b' would be"):
        wrap_providers({"c": old, "b": csv}, wrappers={"c": Wrapper({"n": "1"}), "b": Wrapper({"n": "'1'"})})


@pytest.mark.shows("05.wrapper", 4)
def test_two_tables_need_a_key_that_is_there_once(spark: SparkSession) -> None:
    wrapper = Wrapper({"n": "1"}, form="two_tables", keys=["visit"])
    with pytest.raises(InputError, match=r"more than once: \('v1',\). Nothing was written"):
        wrap_apart(spark.createDataFrame([("v1",), ("v1",), ("v2",)], "visit string"), wrapper=wrapper)
    with pytest.raises(MissingColumnsError, match="Did you mean 'visitt'"):
        wrap_apart(spark.createDataFrame([("v1",)], "visitt string"), wrapper=wrapper)


def test_what_cannot_be_wrapped_is_refused_before_any_job(spark: SparkSession) -> None:
    for wrong, word in (
        ({"computed": {}}, "nothing is computed"),
        ({"computed": {"n": "1"}, "form": "nested"}, "form is one of"),
        ({"computed": {"n": "1"}, "text": "value"}, "both or neither"),
        ({"computed": {"n": "1"}, "form": "two_tables"}, "'keys'"),
        ({"computed": {"n": "1"}, "form": "flat", "prefix": ""}, "prefix"),
        ({"computed": {"n": "1"}, "context": ["address"]}, "no technical fact"),
        ({"computed": {"batch": "1"}, "context": ["batch"]}, "both computed and of the context"),
        ({"computed": {"error": "1"}, "text": "value", "parse": "a INT"}, "Choose another name"),
    ):
        with pytest.raises(ConfigurationError, match=word):
            Wrapper(**wrong)  # type: ignore[arg-type]
    frame = spark.createDataFrame([("v1", 1)], "visit string, computed_n int")
    for wrapper, call, word in (
        (Wrapper({"N": "1"}, form="flat"), wrap_records, "already has a column 'computed_n'"),
        (Wrapper({"n": "1"}, context=["batch"]), wrap_records, "wants 'batch'"),
        (Wrapper({"n": "1"}, form="two_tables", keys=["visit"]), wrap_records, "wrap_apart"),
        (Wrapper({"n": "1"}, form="two_tables", keys=["visit"]), unwrap_records, "raw"),
    ):
        with pytest.raises(ConfigurationError, match=word):
            call(frame, wrapper=wrapper)
    with pytest.raises(MissingColumnsError, match="raw"):
        unwrap_records(frame, wrapper=Wrapper({"computed_n": "1"}))
