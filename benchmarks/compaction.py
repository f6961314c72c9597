"""What `maintain` costs beyond Delta's own OPTIMIZE: 2,000 small files joined, each time on a fresh equal copy."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import compare, jvm_of, keep, linked_copies, measure, spread
from lakewright.patterns.ingestion.compactor import optimize_settings
from lakewright.patterns.ingestion.table_files import read_files

FILES = 2_000
ROWS_PER_FILE = 1_000
WARMUPS = 1
PIPELINE = """
from lakewright import Compactor, JsonFiles, Pipeline
visits = Pipeline("visits", start="2026-01-01")
for i in range(%d):
    visits.source(f"v{i}", JsonFiles("landing"), schema="n bigint", maintenance=Compactor(min_files=2))
"""


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    rounds, files = pairs + WARMUPS, min(FILES, size // ROWS_PER_FILE)
    try:
        for name in ("pipelines", "landing"):
            (folder / name).mkdir()
        (folder / "pipelines" / "visits.py").write_text(PIPELINE % rounds)
        (folder / "lakewright.toml").write_text('name = "bench"\n')
        with Project(folder) as project:
            names = [f"v{i}" for i in range(rounds)]
            first = _make(project, folder / "first", files)
            ours = linked_copies(first, [Path(_path(project, name)) for name in names])
            theirs = iter(linked_copies(first, [folder / "by_hand" / name for name in names]))
            left = iter(names)
            by_hand = _tuned(project)
            found = compare(
                f"{files:,} files joined",
                lambda: _maintain(project, next(left), files),
                lambda: _optimize(by_hand, next(theirs)),
                jvm=jvm_of(project.spark()),
                pairs=pairs,
                warmups=WARMUPS,
                limit=1.0,
            )
            looking = spread([measure(lambda: _look(first, files), None).wall * 1000 for _ in range(pairs)])
            print(f"  deciding alone: {looking} ms", flush=True)
            assert all((read_files(str(path)) or _gone()).files == 1 for path in ours)
            keep("compaction", {"comparison": found, "deciding_ms": looking})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make(project: Any, path: Path, files: int) -> Path:
    rows = project.spark().range(files * ROWS_PER_FILE, numPartitions=files)
    rows.selectExpr("id AS n", "uuid() AS visit", "id % 97 AS page").write.format("delta").save(str(path))
    assert len(list(path.glob("*.parquet"))) == files
    return path


def _path(project: Any, name: str) -> str:
    project.graph  # noqa: B018  (declares the names, as any command does)
    return str(project.lake.resolve(name))


def _tuned(project: Any) -> Any:
    session = project.spark().newSession()
    for name, value in optimize_settings(128 << 20).items():
        session.conf.set(name, value)
    return session


def _maintain(project: Any, name: str, files: int) -> None:
    done = project.maintain([name], vacuum=False).outcomes[0]
    assert (done.state, done.files_before, done.files_after) == ("done", files, 1), done


def _optimize(session: Any, path: Path) -> None:
    assert session.sql(f"OPTIMIZE delta.`{path}`").first()["metrics"]["numFilesAdded"] == 1


def _look(path: Path, files: int) -> None:
    assert (read_files(str(path)) or _gone()).files == files


def _gone() -> Any:
    raise AssertionError("the log cannot be read")
