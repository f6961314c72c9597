"""Class archive: Spark's classes as Java has once read them, so that a session starts in half the time.

A session reads some 20,000 classes; to parse and to check them anew is a third of what a short run costs. Java can keep
them in a file (class data sharing), which `make setup` has it make once, as does `lakewright spark archive`.

Guarantee:
    An archive is used only by the Java and with the jars that it was made with: Java compares both, and works without
    one where they differ. It lies in the cache, appears by one rename when it is complete and was seen to fit, and
    goes when the PySpark that it belongs to is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, LakewrightError, TargetError
from lakewright.runtime.jars import Progress, cache_folder, ensure_jars, jar_folder, only_one, pyspark_folder
from lakewright.runtime.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["archive_file", "archive_options", "ensure_archive"]

_EXIT_SECONDS = 300
"""Java writes the file when it ends: half a minute on a quiet machine."""


def archive_file() -> Path:
    """Where the archive of this Java, this PySpark and these jars is, or would be."""
    java = find_java()
    release = java.home / "release"
    told = [str(java.home), str(release.stat().st_mtime_ns if release.exists() else java.version)]
    told += [str(pyspark_folder()), version("pyspark"), str(jar_folder())]
    return cache_folder() / "classes" / f"{hashlib.sha256('|'.join(told).encode()).hexdigest()[:16]}.jsa"


def archive_options() -> list[str]:
    """What to tell Java so that it uses the archive; nothing where there is none."""
    file = archive_file()
    return [f"-XX:SharedArchiveFile={file}"] if file.exists() else []


def ensure_archive(progress: Progress | None = None) -> Path:
    """The archive, made first if it is not there: about a minute; ``progress`` receives lines for people."""
    say = progress or (lambda line: None)
    file = archive_file()
    ensure_jars(say)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with only_one(file.parent / "make.lock", say, "making the class archive"):
            if not file.exists():
                say("Keeping Spark's classes for faster starts (once, about a minute) ...")
                _clear_away(file.parent)
                _make(file)
                say(f"{file.stat().st_size / 1e6:.0f} MB are in {file}")
    except OSError as error:
        raise TargetError(
            f"The class archive cannot be made in {file.parent}: {error.strerror or error}.",
            hint="Set LAKEWRIGHT_HOME to a folder that you may write to. Without it sessions only start slower.",
        ) from error
    return file


def _clear_away(folder: Path) -> None:
    """Archives whose PySpark is gone or was another version, and what a killed process left."""
    for file in folder.glob("*.jsa"):
        note = file.with_suffix(".txt")
        made_for = note.read_text(encoding="utf-8") if note.exists() else ""
        if made_for == _made_for() or not made_for or not Path(made_for.split("\n")[0]).exists():
            file.unlink()
            note.unlink(missing_ok=True)
    for part in folder.glob("*.part"):
        part.unlink()


def _made_for() -> str:
    """The PySpark and the Java that an archive belongs to, whichever versions they were."""
    return f"{pyspark_folder()}\n{find_java().home}"


def _make(file: Path) -> None:
    part = file.with_suffix(".part")
    try:
        class_path = _fill(part)
        _check(part, class_path)
        file.with_suffix(".txt").write_text(_made_for(), encoding="utf-8")
        part.rename(file)
    finally:
        part.unlink(missing_ok=True)


def _fill(part: Path) -> str:
    """Let a session do a little of everything and end; its class path."""
    from pyspark import SparkContext

    from lakewright.runtime.session import local_session, stop_session
    from lakewright.runtime.settings import Target

    with tempfile.TemporaryDirectory(prefix="lakewright-classes-") as folder:
        options = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={part}"}
        spark = local_session(Target.at(Path(folder), fast_start=True, spark=options), "lakewright classes")
        jvm, gateway = SparkContext._jvm, SparkContext._gateway
        assert jvm is not None
        assert gateway is not None
        class_path = str(jvm.java.lang.System.getProperty("java.class.path"))
        _use(spark, Path(folder))
        stop_session(spark)
        gateway.proc.stdin.close()  # its JVM ends with its input
        ended = time.monotonic() + _EXIT_SECONDS
        while gateway.proc.poll() is None and time.monotonic() < ended:
            time.sleep(0.1)
    return class_path


def _use(spark: SparkSession, folder: Path) -> None:
    """What most runs do: read JSON, join, count and rank rows, write, replace and merge Delta tables, follow one."""
    (folder / "rows.json").write_text('{"id": 1, "at": "2026-01-01T10:00:00Z", "tags": ["a"]}\nno JSON\n')
    lines = spark.read.text(str(folder / "rows.json"))
    lines.selectExpr("from_json(value, 'id bigint, at timestamp, tags array<string>') AS row").selectExpr(
        "coalesce(row.id, 0) AS id", "row.at AS at", "coalesce(to_date(row.at), date'2026-01-02') AS day"
    ).createOrReplaceTempView("rows")
    table = folder / "table"
    ranked = spark.sql(
        "SELECT rows.*, row_number() OVER (PARTITION BY rows.id ORDER BY rows.at DESC) AS nth, last "
        "FROM rows LEFT JOIN (SELECT id, max(at) AS last FROM rows GROUP BY id) o ON rows.id = o.id"
    )
    for _ in range(2):
        writer = ranked.write.format("delta").mode("overwrite").partitionBy("day")
        writer.option("replaceWhere", "day >= '2026-01-01'").option("delta.enableDeletionVectors", "true").save(
            str(table)
        )
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING (SELECT id + 1 AS id, day FROM delta.`{table}`) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET nth = 2 WHEN NOT MATCHED THEN INSERT (id, day) VALUES (s.id, s.day)"
    )
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 2")
    spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    follower = spark.readStream.format("delta").option("ignoreChanges", "true").load(str(table))
    query = follower.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start(str(folder / "followed")).awaitTermination()
    spark.read.format("delta").load(str(table)).groupBy("day").count().collect()


def _check(part: Path, class_path: str) -> None:
    """Java refuses to start with an archive that does not fit, where it is told that it must use it."""
    command = [str(find_java().command), "-Xshare:on", f"-XX:SharedArchiveFile={part}", "-cp", class_path, "-version"]
    seen = subprocess.run(command, capture_output=True, text=True, check=False)
    if seen.returncode != 0:
        said = (seen.stdout + seen.stderr).strip().splitlines()
        raise TargetError(
            f"Java does not take the class archive that it has made: {said[0] if said else 'it says nothing'}.",
            hint="Sessions work without one; they only start slower.",
        )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            ensure_archive(lambda line: print(line, file=sys.stderr))  # noqa: T201
        except ConfigurationError as error:
            sys.exit(f"error: {error.message}\n{error.hint}")
        except LakewrightError as error:  # nothing depends on it
            print(f"warning: {error.message}\n{error.hint or ''}", file=sys.stderr)  # noqa: T201
