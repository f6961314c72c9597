"""A batch of changes onto a table of millions: ours against the MERGE that people write by hand, and what comes after.

Both begin with the same rows in the same number of files, each time on a fresh copy, and read the same changes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Comparison, bytes_written, compare, jvm_of, keep, linked_copies, measure, spread
from lakewright import apply_change_events, compact_table, read_latest_values
from lakewright.errors import ConfigurationError
from lakewright.lake.log import DeltaLog
from lakewright.lake.tables import AttemptTable
from lakewright.model.identity import Identity
from lakewright.model.protocols import WriteContext
from lakewright.model.runs import Run
from lakewright.model.slices import WHOLE
from lakewright.model.times import utc_now
from lakewright.patterns.idempotency.merger import merge_changes
from lakewright.patterns.ingestion.latest_value import LatestValue

ROWS = 2_000_000
FILES = 16
SHOPS = 20
"""The partitions of the second table; the changes are of a quarter of them."""
FIRST_LSN = 1_000_000_000
WARMUPS = 2
DELETION_VECTORS = {"delta.enableDeletionVectors": "true"}
BUSINESS = ("page", "user_id", "country", "seconds", "note", "written_at")


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    try:
        (folder / "pipelines").mkdir()
        (folder / "pipelines" / "none.py").write_text("")
        (folder / "lakewright.toml").write_text('name = "bench"\n')
        with Project(folder) as project:
            bench = Bench(project.lake, folder, min(size, ROWS), pairs)
            moved(bench)
            keep("cdc_apply", {"scattered": scattered(bench), "pruned": pruned(bench)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Bench:
    lake: Any
    folder: Path
    rows: int
    pairs: int

    @property
    def spark(self) -> Any:
        return self.lake.session()

    @property
    def changes(self) -> int:
        return self.rows // 20

    def compare(self, name: str, ours: Callable[[], None], baseline: Callable[[], None], **more: Any) -> Comparison:
        return compare(name, ours, baseline, jvm=jvm_of(self.spark), pairs=self.pairs, **more)

    def apply(self, changes: Any, path: Path, keys: tuple[str, ...], by: tuple[str, ...] = ()) -> None:
        """What a micro-batch of a pipeline does: one commit with its identity, by the writer of the dataset."""
        identity = Identity("visits", WHOLE.id, 1, "bench")
        log = DeltaLog(str(path), self.spark)
        table = AttemptTable(str(path), spark=self.spark, log=log, identity=identity, locks=self.lake.locks)
        run = Run(run_id="bench", pipeline="bench", time=utc_now())
        commit = LatestValue(keys).publish(changes, WriteContext("visits", WHOLE, table, run, partition_by=by))
        assert commit is not None

    def fresh(self, first: Path, name: str) -> Iterator[Path]:
        """Copies to begin from, enough for every round."""
        return iter(linked_copies(first, [self.folder / name / str(n) for n in range(self.pairs + WARMUPS)]))

    def table(self, name: str, marks: str, *, by: tuple[str, ...] = (), vectors: bool = True) -> Path:
        """The rows before the changes, as a first load would have left them; ``marks``: the position, and what else."""
        made = self.spark.range(self.rows, numPartitions=FILES).selectExpr(*_row("id"), *marks.split(";"))
        if by:
            made = made.repartition(FILES, *by)
        writer = made.write.format("delta").options(**(DELETION_VECTORS if vectors else {}))
        (writer.partitionBy(*by) if by else writer).save(str(self.folder / name))
        return self.folder / name

    def events(self, name: str, known: str, new: str) -> Any:
        """Changes, kept as files that both sides read; SQL tells the key of the nth, of a row that is known or new."""
        numbers = self.spark.range(self.changes, numPartitions=1).selectExpr(
            f"id + {FIRST_LSN} AS _lsn", "xxhash64(id) AS chance",
            # Of ten changes five are updates, three inserts, two deletes; no key has two.
            "CASE WHEN id % 10 < 5 THEN 'update' WHEN id % 10 < 8 THEN 'insert' ELSE 'delete' END AS _op",
            f"CASE WHEN id % 10 BETWEEN 5 AND 7 THEN {self.rows} + {new} ELSE {known} END AS id",
        )  # fmt: skip
        told = [f"CASE WHEN _op <> 'delete' THEN {sql} END AS {column}" for column, sql in _values("id + 1").items()]
        columns = [*_row("id")[:2], *told, "_op", "_lsn", "CAST(array() AS ARRAY<STRING>) AS _not_sent"]
        path = str(self.folder / name)
        numbers.orderBy("chance").selectExpr(*columns).repartition(2).write.parquet(path)
        return self.spark.read.parquet(path)


def _values(seed: str) -> dict[str, str]:
    return {
        "page": f"concat('/articles/', ({seed}) % 500)",
        "user_id": f"CAST(xxhash64({seed}) % 100000 AS INT)",
        "country": f"element_at(array('FR', 'PL', 'DE', 'IN', 'BR'), 1 + CAST(pmod(xxhash64({seed}), 5) AS INT))",
        "seconds": f"CAST(pmod(xxhash64({seed}, 1), 3600) AS INT)",
        "note": f"substr(sha1(CAST({seed} AS STRING)), 1, 24)",
        "written_at": f"timestamp_seconds(1767225600 + pmod(xxhash64({seed}, 2), 2592000))",
    }


def _row(seed: str) -> list[str]:
    """Key, the part of it that a table may be laid out by, and the values."""
    return [
        f"{seed} AS id",
        f"CAST({seed} % {SHOPS} AS INT) AS shop",
        *[f"{sql} AS {name}" for name, sql in _values(seed).items()],
    ]


OURS = "CAST(1 AS BIGINT) AS _lw_position;false AS _lw_deleted"
BY_HAND = "CAST(1 AS BIGINT) AS lsn"


def merge_by_hand(spark: Any, path: Path, changes: Any, keys: tuple[str, ...]) -> None:
    """The best that we can write by hand and call plain: the last change of each key, guarded by its position."""
    changes.createOrReplaceTempView("by_hand")
    values = ", ".join(f"t.{name} = s.{name}" for name in BUSINESS)
    columns = ", ".join(dict.fromkeys(("id", "shop", *BUSINESS)))
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING (SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY "
        f"{', '.join(keys)} ORDER BY _lsn DESC) AS nth FROM by_hand) WHERE nth = 1) s "
        f"ON {' AND '.join(f't.{key} = s.{key}' for key in keys)} "
        "WHEN MATCHED AND s._lsn > t.lsn AND s._op = 'delete' THEN DELETE "
        f"WHEN MATCHED AND s._lsn > t.lsn THEN UPDATE SET {values}, t.lsn = s._lsn "
        f"WHEN NOT MATCHED AND s._op <> 'delete' THEN INSERT ({columns}, lsn) VALUES "
        f"({', '.join(f's.{name}' for name in columns.split(', '))}, s._lsn)"
    )


def scattered(bench: Bench) -> dict[str, Any]:
    """Changes all over the table: our deletion vectors against files written anew, and against theirs."""
    spark, keys = bench.spark, ("id",)
    changes = bench.events("scattered", f"id * {bench.rows // bench.changes} + pmod(xxhash64(id), 7)", "id")
    ours = bench.table("ours", OURS)
    plain = bench.table("plain", BY_HAND, vectors=False)
    marking = bench.table("marking", BY_HAND)
    mine, theirs = Latest(bench.fresh(ours, "a_ours")), Latest(bench.fresh(plain, "a_plain"))
    found = bench.compare(
        f"{bench.changes:,} scattered changes onto {bench.rows:,} rows, against a plain MERGE",
        lambda: bench.apply(changes, mine.next(), keys),
        lambda: merge_by_hand(spark, theirs.next(), changes, keys),
        warmups=WARMUPS,
        limit=0.6,
    )
    written = {"ours": bytes_written(mine.last), "by_hand": bytes_written(theirs.last)}
    print(f"  written: ours {written['ours'] / 1e6:.1f} MB, by hand {written['by_hand'] / 1e6:.1f} MB", flush=True)
    _check(spark, mine.last, theirs.last)
    later = _later(bench, mine.last, theirs.last)
    again, vectors = Latest(bench.fresh(ours, "a_again")), Latest(bench.fresh(marking, "a_marking"))
    against_vectors = bench.compare(
        "the same, against a MERGE by hand into a table that has deletion vectors too",
        lambda: bench.apply(changes, again.next(), keys),
        lambda: merge_by_hand(spark, vectors.next(), changes, keys),
        warmups=WARMUPS,
    )
    return {"comparison": found, "bytes_written": written, "later": later, "against_vectors": against_vectors}


def pruned(bench: Bench) -> Comparison:
    """Changes of some partitions, by a key that tells the partition; both tables have deletion vectors."""
    spark, keys = bench.spark, ("shop", "id")
    few = SHOPS // 4
    changes = bench.events("of_some", f"(id DIV {few}) * {SHOPS} + id % {few}", f"id * {SHOPS} + id % {few}")
    assert changes.where(f"shop >= {few}").isEmpty()
    ours = bench.table("parted", OURS, by=("shop",))
    plain = bench.table("parted_plain", BY_HAND, by=("shop",))
    mine, theirs = Latest(bench.fresh(ours, "b_ours")), Latest(bench.fresh(plain, "b_plain"))
    found = bench.compare(
        f"changes of {few} of {SHOPS} partitions of {bench.rows:,} rows, both with deletion vectors",
        lambda: bench.apply(changes, mine.next(), keys, by=("shop",)),
        lambda: merge_by_hand(spark, theirs.next(), changes, keys),
        warmups=WARMUPS,
        limit=0.95,
    )
    _check(spark, mine.last, theirs.last)
    return found


def moved(bench: Bench) -> None:
    """A row that goes to another partition stays one row, by each way that is open; the unsafe one is refused."""
    spark, path = bench.spark, str(bench.folder / "moved")
    schema = "shop int, id int, page string, _op string, _lsn bigint"
    rows = spark.createDataFrame([(1, 7, "old", "insert", 1), (1, 8, "stays", "insert", 2)], schema)
    table = rows.limit(0).selectExpr("shop", "id", "page", "_lsn AS _lw_position", "true AS _lw_deleted")
    table.write.format("delta").partitionBy("shop").save(path)
    apply_change_events(rows, path, keys=["shop", "id"])
    # The partition is part of the key: the source tells a delete and an insert, at one place of its log.
    news = spark.createDataFrame([(1, 7, None, "delete", 9), (2, 7, "new", "insert", 9)], schema)
    apply_change_events(news, path, keys=["shop", "id"])
    found = sorted(tuple(row) for row in read_latest_values(spark, path).collect())
    assert found == [(1, 8, "stays"), (2, 7, "new")], found
    try:
        apply_change_events(news, path, keys=["id"])
    except ConfigurationError:
        pass
    else:
        raise AssertionError("a table laid out by a column that is no key was taken")
    # It is not: a merge then looks at every partition.
    other = str(bench.folder / "moved_by_merger")
    before = spark.createDataFrame([(1, 7, "old"), (1, 8, "stays")], "shop int, id int, page string")
    before.write.format("delta").partitionBy("shop").save(other)
    merge_changes(spark.createDataFrame([(2, 7, "new")], before.schema), other, keys=["id"])
    found = sorted(tuple(row) for row in spark.read.format("delta").load(other).collect())
    assert found == [(1, 8, "stays"), (2, 7, "new")], found
    print("  a row that moves between partitions stays one row", flush=True)


class Latest:
    """Copies, one after another; the last one is looked at afterwards."""

    def __init__(self, copies: Iterator[Path]) -> None:
        self._copies = copies
        self.last = Path()

    def next(self) -> Path:
        self.last = next(self._copies)
        return self.last


def _check(spark: Any, ours: Path, by_hand: Path) -> None:
    """Both hold the same rows."""
    columns = ["id", "shop", *BUSINESS]
    mine = read_latest_values(spark, str(ours)).select(*columns)
    theirs = spark.read.format("delta").load(str(by_hand)).select(*columns)
    sums = [
        frame.selectExpr("count(*)", f"bit_xor(xxhash64({', '.join(columns)}))").first() for frame in (mine, theirs)
    ]
    assert sums[0] == sums[1], f"the tables differ: {sums}"


def _later(bench: Bench, ours: Path, by_hand: Path) -> dict[str, Any]:
    """What the changes cost those who come after: reading, joining the files, and reading then."""
    spark = bench.spark

    def read(path: Path) -> None:
        rows = read_latest_values(spark, str(path))
        rows.selectExpr(f"bit_xor(xxhash64({', '.join(BUSINESS)}))").first()

    before = bench.compare("reading all afterwards", lambda: read(ours), lambda: read(by_hand))
    costs: dict[str, list[float]] = {"ours": [], "by_hand": []}
    for number in range(3):
        for name, path in (("ours", ours), ("by_hand", by_hand)):
            [copy] = linked_copies(path, [bench.folder / "joined" / name / str(number)])
            costs[name].append(measure(lambda c=copy: _join(spark, c), jvm_of(spark)).wall)  # type: ignore[misc]
    joining = {name: spread(values) for name, values in costs.items()}
    print(f"  joining the files: ours {joining['ours']} s, by hand {joining['by_hand']} s", flush=True)
    joined = [bench.folder / "joined" / name / "2" for name in ("ours", "by_hand")]
    after = bench.compare("reading all when the files are joined", lambda: read(joined[0]), lambda: read(joined[1]))
    return {"reading": before, "joining_seconds": joining, "reading_joined": after}


def _join(spark: Any, path: Path) -> None:
    assert compact_table(spark, str(path)).version is not None
