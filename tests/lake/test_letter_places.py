from __future__ import annotations

from pyspark.sql import SparkSession

from lakewright.lake.letter_places import RECORD_ID


def test_the_short_name_of_a_record_is_its_hash_in_sixteen_small_digits(spark: SparkSession) -> None:
    # Letters that were closed or corrected are known by it: it must not change.
    columns = ("'raw' AS input", "'a.json' AS file", "'1' AS file_version", "id AS record_hash")
    rows = spark.range(200).selectExpr(*columns, "if(id = 199, 7L, CAST(NULL AS bigint)) AS offset")
    taken = "CASE WHEN offset IS NULL THEN record_hash ELSE 0 END"
    found = rows.selectExpr(f"{RECORD_ID} AS id", f"xxhash64(input, file, file_version, {taken}) AS number").collect()
    assert [row["id"] for row in found] == [f"{row['number'] % 2**64:016x}" for row in found]
    assert any(row["id"].startswith("0") for row in found), "no digit is left out"
