"""Scattered changes by Merger against the MERGE that people write first; and the last change of each key.

Both tables have the same rows in the same number of files, each round begins on a fresh copy, and both are compared row
by row at the end. What is different: ours marks changed rows in their files (deletion vectors), and looks at the keys
of the batch before it writes.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cdc_apply import BUSINESS, DELETION_VECTORS, FILES, Latest, _row, _values
from benchmarks.harness import bytes_written, compare, jvm_of, keep, linked_copies
from lakewright import Merger
from lakewright.lake.log import DeltaLog
from lakewright.lake.tables import AttemptTable
from lakewright.model.identity import Identity
from lakewright.model.protocols import WriteContext
from lakewright.model.runs import Run
from lakewright.model.slices import WHOLE
from lakewright.model.times import utc_now
from lakewright.patterns.idempotency.merger import keep_last_change

ROWS = 2_000_000
WARMUPS = 2
COLUMNS = ("id", "shop", *BUSINESS)


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    try:
        (folder / "pipelines").mkdir()
        (folder / "pipelines" / "none.py").write_text("")
        (folder / "lakewright.toml").write_text('name = "bench"\n')
        with Project(folder) as project:
            tables = sorted({min(size, ROWS), size})
            merged = {f"{rows:,} rows": merge(project, folder / str(rows), rows, pairs) for rows in tables}
            keep("merger", {"merge": merged, "last": last(project, folder, size, pairs)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def merge(project: Any, folder: Path, rows: int, pairs: int) -> dict[str, Any]:
    """A twentieth of the rows change and as many again, all over the table."""
    spark = project.lake.session()
    changes = _changes(spark, folder / "changes", rows)
    ours = _table(spark, folder / "ours", rows, DELETION_VECTORS)
    naive = _table(spark, folder / "naive", rows, {})
    copies = pairs + WARMUPS
    mine = Latest(iter(linked_copies(ours, [folder / "a" / str(n) for n in range(copies)])))
    theirs = Latest(iter(linked_copies(naive, [folder / "b" / str(n) for n in range(copies)])))
    found = compare(
        f"{rows // 20:,} scattered changes onto {rows:,} rows: Merger against a naive MERGE",
        lambda: _ours(project, mine.next(), changes),
        lambda: _naive(spark, theirs.next(), changes),
        jvm=jvm_of(spark),
        pairs=pairs,
        warmups=WARMUPS,
        limit=0.6,
    )
    _same(spark, mine.last, theirs.last)
    written = {"ours": bytes_written(mine.last), "naive": bytes_written(theirs.last)}
    print(f"  written: ours {written['ours'] / 1e6:.1f} MB, naive {written['naive'] / 1e6:.1f} MB", flush=True)
    return {"comparison": found, "bytes_written": written}


def last(project: Any, folder: Path, size: int, pairs: int) -> Any:
    """Five changes of each key on average; both sides read the same files and hand the rows to no one."""
    spark = project.lake.session()
    path = str(folder / "repeated")
    made = spark.range(size, numPartitions=4).withColumnRenamed("id", "nth")
    values = [f"{sql} AS {name}" for name, sql in _values("nth").items()]
    made.selectExpr(f"pmod(xxhash64(nth), {size // 5}) AS id", "nth AS sequence", *values).write.parquet(path)
    rows = spark.read.parquet(path)

    def by_hand() -> None:
        rows.createOrReplaceTempView("repeated")
        ranked = "SELECT *, row_number() OVER (PARTITION BY id ORDER BY sequence DESC) AS nth FROM repeated"
        spark.sql(f"SELECT * EXCEPT (nth) FROM ({ranked}) WHERE nth = 1").write.format("noop").mode("overwrite").save()

    def ours() -> None:
        kept = keep_last_change(rows, keys=["id"], sequence="sequence")
        kept.write.format("noop").mode("overwrite").save()

    name = f"the last of {size:,} changes of {size // 5:,} keys, against row_number by hand"
    return compare(name, ours, by_hand, jvm=jvm_of(spark), pairs=pairs, warmups=WARMUPS, limit=1.05)


def _changes(spark: Any, path: Path, rows: int) -> Any:
    """Half of them of rows that are there, half of new ones."""
    many = rows // 20
    key = f"CASE WHEN id % 2 = 0 THEN id * 20 + pmod(xxhash64(id), 7) ELSE {rows} + id END AS id"
    made = spark.range(many, numPartitions=1).selectExpr(key, "xxhash64(id) AS chance").orderBy("chance")
    values = [f"{sql} AS {name}" for name, sql in _values("id + 1").items()]
    made.selectExpr(*_row("id")[:2], *values).repartition(2).write.parquet(str(path))
    return spark.read.parquet(str(path))


def _table(spark: Any, path: Path, rows: int, properties: dict[str, str]) -> Path:
    made = spark.range(rows, numPartitions=FILES).selectExpr(*_row("id"))
    made.write.format("delta").options(**properties).save(str(path))
    return path


def _ours(project: Any, path: Path, changes: Any) -> None:
    """What a step of a pipeline does: one commit with its identity, by the writer of the dataset."""
    spark = project.lake.session()
    log = DeltaLog(str(path), spark)
    identity = Identity("visits", WHOLE.id, 1, "bench")
    table = AttemptTable(str(path), spark=spark, log=log, identity=identity, locks=project.lake.locks)
    run = Run(run_id="bench", pipeline="bench", time=utc_now())
    assert Merger(["id"]).publish(changes, WriteContext("visits", WHOLE, table, run)) is not None


def _naive(spark: Any, path: Path, changes: Any) -> None:
    changes.createOrReplaceTempView("naive_changes")
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING naive_changes s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def _same(spark: Any, *paths: Path) -> None:
    sums = [
        spark.read.format("delta").load(str(path)).selectExpr("count(*)", f"bit_xor(xxhash64({', '.join(COLUMNS)}))")
        for path in paths
    ]
    one, other = (frame.first() for frame in sums)
    assert one == other, f"the tables differ: {one}, {other}"
