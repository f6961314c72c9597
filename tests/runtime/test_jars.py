"""The real Ivy is run by ``make setup``; here a stand-in for ``java`` shows what we make of its answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakewright.errors import TargetError
from lakewright.runtime import jars
from lakewright.runtime.jars import ensure_jars, jar_folder, packages, present_jars

DOWNLOADS = """
echo started >> "$LAKEWRIGHT_HOME/calls"
for word in "$@"; do last="$word"; done
names="delta-spark_4.2_2.13-4.4.0 spark-sql-kafka-0-10_2.13-4.2.0 postgresql-42.7.11 delta-storage-4.4.0"
for name in $names; do
    echo "downloading x/$name.jar ..."
    echo jar > "$(dirname "$last")/$name.jar"
done
"""
UNREACHABLE = "echo ':: UNRESOLVED DEPENDENCIES ::'; exit 1"
HALF = """
for word in "$@"; do last="$word"; done
echo jar > "$(dirname "$last")/postgresql-42.7.11.jar"
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAKEWRIGHT_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return tmp_path / "cache"


def java_that(cache: Path, script: str) -> None:
    command = cache.parent / "jdk" / "bin" / "java"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    (cache.parent / "jdk" / "release").write_text('JAVA_VERSION="17.0.1"')


def calls(cache: Path) -> int:
    return len((cache / "calls").read_text().splitlines())


def test_the_jars_are_fetched_once_with_progress(cache: Path) -> None:
    java_that(cache, DOWNLOADS)
    said: list[str] = []
    fetched = ensure_jars(said.append)
    assert [jar.name for jar in fetched] == sorted(jar.name for jar in fetched)
    assert len(fetched) == 4
    assert "  postgresql-42.7.11.jar" in said
    said.clear()
    assert ensure_jars(said.append) == fetched
    assert (said, calls(cache)) == ([], 1)


def test_a_jar_that_was_lost_is_fetched_again(cache: Path) -> None:
    java_that(cache, DOWNLOADS)
    ensure_jars()[0].unlink()
    assert present_jars() == []
    assert all(jar.is_file() for jar in ensure_jars())
    assert calls(cache) == 2


@pytest.mark.parametrize("script", [UNREACHABLE, HALF])
def test_when_nothing_can_be_reached_the_coordinates_and_the_place_are_told(cache: Path, script: str) -> None:
    java_that(cache, script)
    with pytest.raises(TargetError) as error:
        ensure_jars()
    for word in [*packages(), str(jar_folder()), "LAKEWRIGHT_IVY_SETTINGS", f"{jar_folder()}.log"]:
        assert word in str(error.value)
    assert present_jars() == []
    assert not list(jar_folder().parent.glob("*.part-*"))


def test_two_processes_at_once_fetch_once(cache: Path) -> None:
    java_that(cache, DOWNLOADS)
    source = Path(jars.__file__).parents[2]
    both = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from lakewright.runtime.jars import ensure_jars; print(len(ensure_jars()))",
            ],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == ["4", "4"]
    assert calls(cache) == 1


def test_what_a_killed_process_left_is_removed(cache: Path) -> None:
    java_that(cache, DOWNLOADS)
    left = jar_folder().parent / f"{jar_folder().name}.part-dead"
    left.mkdir(parents=True)
    ensure_jars()
    assert not left.exists()


def test_a_cache_that_takes_no_files_is_told_with_the_cure(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LAKEWRIGHT_HOME", str(tmp_path / "file" / "below"))
    with pytest.raises(TargetError, match="LAKEWRIGHT_HOME"):
        ensure_jars()


def test_the_coordinates_are_those_of_the_descriptor() -> None:
    assert packages() == [
        "io.delta:delta-spark_4.2_2.13:4.4.0",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.postgresql:postgresql:42.7.11",
    ]


def test_another_set_of_jars_has_its_own_place_and_is_named_when_it_cannot_be_fetched(cache: Path) -> None:
    from lakewright.runtime.services.kafka import KAFKA_JARS

    assert packages(KAFKA_JARS)[0] == "org.apache.kafka:kafka_2.13:4.1.1"
    assert jar_folder(KAFKA_JARS) != jar_folder()
    java_that(cache, UNREACHABLE)
    with pytest.raises(TargetError, match="a Kafka broker needs could not be fetched"):
        ensure_jars(jars=KAFKA_JARS)
