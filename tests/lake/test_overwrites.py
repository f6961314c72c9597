"""A cluster that overwrites only the partitions that a frame has rows of: tables are replaced all the same."""

from __future__ import annotations

from lakewright.lake.lake import Lake
from lakewright.model.identity import Identity


def test_a_table_is_replaced_laid_out_anew_and_freed_of_a_column_whatever_the_session_says(spark, lake_folder):
    lake = Lake(str(lake_folder), lambda: spark)
    lake.declare({"orders": "silver"})

    def opened(number: int):
        return lake.open("orders", Identity("orders", "whole", number, f"run-{number}"))

    session = lake.session()
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        for number, day in enumerate(("d1", "d2"), 1):
            frame = session.createDataFrame([(day, "x", number)], "day string, other string, n int")
            opened(number).replace(frame, where="true", partition_by=["day"])
        assert [tuple(row) for row in lake.read("orders").collect()] == [("d2", "x", 2)]
        opened(3).rewrite(frame.limit(0), partition_by=["other"])
        assert lake.read("orders").collect() == []
        opened(4).drop_columns(["n"])
        assert lake.read("orders").columns == ["day", "other"]
    finally:
        session.conf.unset("spark.sql.sources.partitionOverwriteMode")
