"""Fixtures come from the package's own pytest plug-in (``lakewright.testing.plugin``); the session is tuned here."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from lakewright import masking
from lakewright.runtime.session import SHORT_WORK
from lakewright.testing.connect import connected_session, engine_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The longest first: with several workers, the file that is started last decides when the run ends.
LONG = (
    "platforms/test_demo_services.py",
    "pipelines/test_kills.py",
    "chaos/test_stream_kills.py",
    "pipelines/test_replay.py",
    "pipelines/test_sessions.py",
    "pipelines/airflow/test_on_airflow.py",
    "patterns/data_flow/test_concurrent_runner.py",
    "cli/test_end_to_end.py",
    "pipelines/test_scenarios.py",
    "runtime/test_cluster.py",
    "pipelines/test_computes.py",
    "pipelines/test_computes_changes.py",
    "pipelines/test_computes_stop.py",
    "pipelines/test_computes_streams.py",
    "docs/test_snippets.py",
    "pipelines/test_stateful_merger.py",
    "patterns/idempotency/test_merger.py",
    "patterns/data_flow/test_aligned_fan_in.py",
    "pipelines/test_streams.py",
    "pipelines/test_stream_command.py",
    "pipelines/test_stream_images.py",
    "pipelines/test_joiners.py",
    "pipelines/test_outside_kills.py",
    "pipelines/test_replay_streams.py",
    "pipelines/test_skew_buffer.py",
    "patterns/idempotency/test_stateful_merger.py",
    "patterns/data_flow/test_single_runner.py",
    "connectors/test_kafka.py",
    "connectors/test_kafka_destination.py",
    "connectors/test_postgres_table.py",
    "pipelines/test_on_postgres.py",
    "pipelines/test_bad_input.py",
    "pipelines/test_disk.py",
    "pipelines/test_upstream.py",
    "cli/test_going_on.py",
    "patterns/data_flow/test_parallel_split.py",
    "patterns/ingestion/test_compactor.py",
    "patterns/data_flow/test_local_sequencer.py",
    "pipelines/test_runner.py",
    "pipelines/test_neighbours.py",
    "pipelines/test_zombies.py",
    "patterns/error_management/test_dead_letter.py",
    "connectors/test_delta.py",
    "pipelines/test_rebuild.py",
)


# A worker lives for half an hour: Java's second compiler, which `fast_start` leaves out, pays for itself, but only for
# what is called very often: it took a third of all time. What is compiled stays: Java threw it away between two tests
# of a subject, and compiled all of it four times. The heap has its whole size at once: growing it collects all garbage.
COMPILING = (
    "-XX:Tier4InvocationThreshold=60000 -XX:Tier4MinInvocationThreshold=7200 -XX:Tier4CompileThreshold=180000 "
    "-XX:Tier4BackEdgeThreshold=480000 -XX:ReservedCodeCacheSize=512m -XX:-UseCodeCacheFlushing -Xms3g -Xmn1600m"
)
# Without Hadoop's native library each new file and folder starts a `chmod`: so by one process instead of two.
STARTING = "-Djdk.lang.Process.launchMechanism=VFORK" if sys.platform == "linux" else ""
# As the plug-in's own session, and tuned further for the thousands of commits of one run.
THRIFTY = {
    **SHORT_WORK,
    "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -XX:MetaspaceSize=256m {COMPILING} {STARTING}",
    # Without Hadoop's native library a file that appears by Spark's own way starts processes, most of them `readlink`.
    # The processes that tests start do as they do for everybody.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    # What depends on the order of rows, or on their being in one place, is to be seen on small frames too.
    "spark.sql.leafNodeDefaultParallelism": "2",
    # Delta remembers every table of the last hour, with its state: those of the tests before fill the heap.
    "spark.databricks.delta.delta.log.cacheSize": "200",
}


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session with Delta, in UTC, for all tests of this process; of a Connect server with that engine."""
    from lakewright.runtime.session import local_session, stop_session
    from lakewright.runtime.settings import Target

    if engine_of(request.config) == "connect":
        session = connected_session(request.getfixturevalue("connect_url"))
    else:
        folder = tmp_path_factory.mktemp("spark")
        session = local_session(Target.at(folder, master="local[2]", driver_memory="3g", spark=THRIFTY), "tests")
    yield session
    stop_session(session)


@pytest.fixture(autouse=True)
def known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password that one test has used, such as the word "secret", is not masked in the next one."""
    for name in ("_forms", "_pattern"):
        monkeypatch.setattr(masking, name, getattr(masking, name))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What pytest makes of the tests' assertions is kept, also where Python is told to keep nothing: else each worker
    makes it anew, which takes 7 of the 9 seconds before the first test."""
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = kept


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}

    def place(item: pytest.Item) -> int:
        return places.get(item.path.as_posix().rpartition("/tests/")[2], len(places))

    items.sort(key=place)
