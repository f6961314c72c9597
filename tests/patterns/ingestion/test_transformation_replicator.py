"""Transformation Replicator: what must not leave does not, and everything else arrives as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from tests.patterns.delta import rows, table, version
from tests.patterns.error_management.streams import land_batches, run_to_end, stream_of

from lakewright.errors import ConfigurationError, MissingColumnsError, SchemaChangeError
from lakewright.model.contracts import Contract, ContractColumn
from lakewright.patterns.ingestion.transformation_replicator import (
    RowRule,
    TransformationReplicator,
    as_text,
    replicate_transformed,
    transform_copy,
)

USERS = "user_id string, country string, ip string, latitude double, longitude double, day string"
PRIVATE = ("ip", "latitude", "longitude")


def contract(*private: str, names: str = USERS) -> Contract:
    columns = [column.split() for column in names.split(", ")]
    return Contract("users", tuple(ContractColumn(n, t, tags=("pii",) if n in private else ()) for n, t in columns))


@pytest.fixture
def users(spark):
    return spark.createDataFrame(
        [("u1", "FR", "10.0.0.1", 48.8, 2.3, "d1"), ("u2", None, "10.9.9.9", None, 2.4, "d2")], USERS
    )


@pytest.mark.shows("02.transformation-replicator", 1)
@pytest.mark.shows("02.transformation-replicator", 3)
@pytest.mark.shows("02.transformation-replicator", 4)
def test_what_the_contract_tags_never_reaches_the_target(spark, users, tmp_path):
    target = str(tmp_path / "users")
    how = TransformationReplicator(contract=contract(*PRIVATE))
    assert replicate_transformed(users, target, how).rows == 2
    assert table(spark, target) == [("u1", "FR", "d1"), ("u2", None, "d2")]
    stored = b"".join(file.read_bytes() for file in Path(target).rglob("*") if file.is_file())
    for private in (b"latitude", b"longitude", b'"ip"', b"10.0.0.1", b"10.9.9.9"):
        assert private not in stored

    tagged = replace(how, contract=contract(*PRIVATE, "country"))
    replicate_transformed(users, target, tagged)
    assert table(spark, target) == [("u1", "d1"), ("u2", "d2")]
    altered = replace(tagged, tags={"pii": "sha2(CAST({column} AS STRING), 256)"})
    assert [len(row["ip"]) for row in transform_copy(users, altered).collect()] == [64, 64]

    before = version(target)
    gained = users.withColumn("phone", F.lit("0123"))
    with pytest.raises(SchemaChangeError, match="does not know phone"):
        replicate_transformed(gained, target, how)
    assert version(target) == before
    replicate_transformed(gained, target, replace(how, unknown="drop"))
    assert table(spark, target) == [("u1", "FR", "d1"), ("u2", None, "d2")]


@pytest.mark.shows("02.transformation-replicator", 6)
def test_a_rule_for_rows_changes_only_those_that_it_means(spark):
    devices = spark.createDataFrame(
        [("phone", "Galaxy", "1.0"), ("tablet", "Slate", "2.1"), ("watch", "Tick", None)],
        "type string, full_name string, version string",
    )
    rule = RowRule("version LIKE '1.%'", {"full_name": "substring(full_name, 2)", "version": "'invalid'"})
    safe = rows(transform_copy(devices, TransformationReplicator(rows=[rule])))
    # Of a row without a version nobody can tell, so that it is altered, too: nothing leaks.
    assert safe == [("phone", "alaxy", "invalid"), ("tablet", "Slate", "2.1"), ("watch", "ick", "invalid")]
    kept = rows(transform_copy(devices, TransformationReplicator(rows=[replace(rule, unknown="keep")])))
    assert kept[2] == ("watch", "Tick", None)
    both = TransformationReplicator(
        drop=["type"], transform={"version": "concat(version, full_name)"}, function=lambda df: df.orderBy("version")
    )
    assert transform_copy(devices, both).columns == ["full_name", "version"]
    with pytest.raises(MissingColumnsError, match="colour"):
        transform_copy(devices, TransformationReplicator(drop=["colour"]))
    with pytest.raises(ConfigurationError, match="unknown is 'refuse' or 'drop'"):
        TransformationReplicator(unknown="keep")


@pytest.mark.shows("02.transformation-replicator", 2)
@pytest.mark.shows("02.transformation-replicator", 7)
def test_odd_values_stay_as_they_are_and_a_failed_run_leaves_the_target(spark, users, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"at": "05/Jan/2026:10:00", "ip": "10.0.0.1", "n": "007"}\n')
    declared = spark.createDataFrame([], "at timestamp, ip string, n int").schema
    odd = spark.read.schema(as_text(declared)).json(str(tmp_path / "in"))
    replicate_transformed(odd, str(tmp_path / "odd"), TransformationReplicator(drop=["ip"]))
    assert table(spark, tmp_path / "odd") == [("05/Jan/2026:10:00", "007")]
    assert as_text(declared, keep={"n": "int"})["n"].dataType.simpleString() == "int"

    target, how = str(tmp_path / "users"), TransformationReplicator(drop=list(PRIVATE))
    replicate_transformed(users, target, how, partition_by=["day"])
    once = table(spark, target)
    broken = users.withColumn("country", F.when(F.col("user_id") == "u2", F.raise_error(F.lit("boom"))))
    with pytest.raises(Exception, match="boom"):
        replicate_transformed(broken, target, how, where="day = 'd2'")
    assert table(spark, target) == once
    for _ in range(2):
        replicate_transformed(users, target, how, where="day = 'd2'")
        assert table(spark, target) == once


def test_a_stream_is_reduced_by_the_same_rules(spark, tmp_path):
    land_batches(tmp_path / "landing", [[{"user_id": "u1", "ip": "10.0.0.1"}, {"user_id": "u2", "ip": None}]])
    users = stream_of(spark, tmp_path / "landing", "user_id string, ip string")
    how = TransformationReplicator(contract=contract("ip", names="user_id string, ip string"))
    run_to_end(transform_copy(users, how), tmp_path / "checkpoint", into=tmp_path / "copy")
    assert table(spark, tmp_path / "copy") == [("u1",), ("u2",)]
