"""Tables are replaced and gain columns, whatever the cluster is set to and whoever does it at the same time."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql.types import StructType

from lakewright.lake.lake import Lake
from lakewright.lake.schemas import fit_to_table
from lakewright.lake.tables import AttemptTable
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


def test_two_slices_that_are_made_side_by_side_both_bring_a_column(spark, lake_folder, monkeypatch):
    lake = Lake(str(lake_folder), lambda: spark)
    lake.declare({"orders": "silver"})

    def opened(number: int):
        return lake.open("orders", Identity("orders", f"2026-01-0{number}", number, f"run-{number}"))

    def add(number: int):
        return opened(number).add_columns(StructType().add("note", "string").fields)

    opened(1).replace(lake.session().range(1), where="true")
    both, look = threading.Barrier(2, timeout=1), AttemptTable.schema

    def look_together(table):
        found = look(table)
        with contextlib.suppress(threading.BrokenBarrierError):  # never, where one of them waits for the other
            both.wait()
        return found

    monkeypatch.setattr(AttemptTable, "schema", look_together)
    with ThreadPoolExecutor(2) as pool:
        commits = list(pool.map(add, (2, 3)))
    assert [commit is None for commit in commits].count(True) == 1
    assert look(opened(4)).names == ["id", "note"]


def test_a_gained_column_may_hold_fields_of_any_name(spark, lake_folder):
    lake = Lake(str(lake_folder), lambda: spark)
    lake.declare({"orders": "silver"})

    def write(number: int, *columns: str):
        table = lake.open("orders", Identity("orders", "whole", number, f"run-{number}"))
        rows = lake.session().range(1).selectExpr(*columns, "id")
        return table.replace(fit_to_table(rows, table, dataset="orders"), where="true")

    write(1)
    parts = "array(named_struct('user-id', 1, 'a`b', map('k', named_struct('c.d', 2)))) AS `the-parts`"
    write(2, parts)
    write(3, parts)
    assert lake.read("orders").selectExpr("`the-parts`[0].`user-id`").collect() == [(1,)]
