"""Checkpointer: a stream that dies goes on where it was, and says what it cannot go on from."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.pipelines.streaming import send, until

from lakewright.connectors import kafka_consumer
from lakewright.connectors.kafka_consumer import consume_topic
from lakewright.connectors.kafka_groups import begin_at_end
from lakewright.errors import ConfigurationError, InputError
from lakewright.patterns.data_value.plan_text import plan_text
from lakewright.patterns.error_management import checkpoint_files
from lakewright.patterns.error_management.checkpoint_files import (
    CheckpointState,
    copy_checkpoint,
    read_checkpoint,
    starting_offsets,
)
from lakewright.patterns.error_management.checkpointer import (
    BatchId,
    CheckpointedStream,
    Checkpointer,
    Delivery,
    checkpointed,
    keep_progress,
)
from lakewright.patterns.error_management.progress_report import ProgressReport, progress_report, report_of
from lakewright.patterns.error_management.stateful_plans import state_keys
from lakewright.patterns.ingestion.own_session import own_session
from lakewright.testing.kafka import Kafka

SCHEMA = "id int, at timestamp"


def visits(spark: SparkSession, folder: Path, *, files: int = 1) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).json(str(folder))


def windows(rows: DataFrame) -> DataFrame:
    counted = rows.withWatermark("at", "1 hour").groupBy(F.window("at", "10 minutes")).count()
    return counted.select(F.col("window.start").alias("start"), "count")


def land(folder: Path, number: int, *minutes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"id": number, "at": f"2026-01-01T10:{minute:02}:00Z"} for minute in minutes]
    (folder / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


class FailingWrite:
    """Adds to a Delta table; fails once before or after some micro-batches. Marks are files: it may run elsewhere."""

    def __init__(self, path: Path, *, before: set[int], after: set[int], named: bool) -> None:
        self.path, self.before, self.after, self.named = path, before, after, named

    def __call__(self, rows: DataFrame, batch: BatchId) -> None:
        self._fail(batch.number, "before", self.before)
        options = batch.options if self.named else {}
        rows.write.format("delta").options(**options).mode("append").save(str(self.path))
        self._fail(batch.number, "after", self.after)

    def _fail(self, number: int, word: str, numbers: set[int]) -> None:
        mark = self.path.with_name(f"{self.path.name}-{word}-{number}")
        if number in numbers and not mark.exists():
            mark.touch()
            raise RuntimeError(f"killed {word} the write of micro-batch {number}")


def names_in(path: Path) -> list[tuple[str, int]]:
    """The names of the micro-batches in the newest commit of a table."""
    newest = max((path / "_delta_log").glob("*.json"))
    told = [json.loads(line).get("txn") for line in newest.read_text().splitlines()]
    return [(one["appId"], one["version"]) for one in told if one]


def run_to_the_end(frame: DataFrame, write: FailingWrite, checkpoint: Checkpointer) -> int:
    """Start it again whenever it dies; tells how often it did."""
    deaths = 0
    while True:
        try:
            keep_progress(frame, write, checkpoint=checkpoint).wait()
        except Exception as error:
            deaths += 1
            if "killed" not in str(error) or deaths > 9:
                raise
        else:
            return deaths


VICTIM = """
import os
import random
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark.sql import functions as F

from lakewright.patterns.error_management.checkpointer import Checkpointer, keep_progress
from lakewright.runtime.session import local_session
from lakewright.runtime.settings import Target

home, *dies = sys.argv[1:]
spark = local_session(Target.at(Path(home) / "state", master="local[2]", fast_start=True,
                                spark={"spark.sql.shuffle.partitions": "2"}))

def die(place):
    mark = Path(home) / f"died {place}"
    if place in dies and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def write(rows, batch):
    die(f"before {batch.number}")
    rows.write.format("delta").options(**batch.options).mode("append").save(f"{home}/counts")
    die(f"after {batch.number}")

visits = spark.readStream.schema("id int, at timestamp").option("maxFilesPerTrigger", 1).json(f"{home}/in")
counted = visits.withWatermark("at", "1 hour").groupBy(F.window("at", "10 minutes")).count()
checkpoint = Checkpointer(f"{home}/checkpoint", "visits", delivery="exactly once", output_mode="update")
keep_progress(counted.select(F.col("window.start").alias("start"), "count"), write, checkpoint=checkpoint).wait()
"""


@pytest.mark.shows("03.checkpointer", 1)
def test_a_windowed_stream_that_is_killed_at_random_counts_as_one_that_never_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    seed = int(os.environ.get("LAKEWRIGHT_SEED") or time.time_ns() % 1_000_000)
    sys.stdout.write(f"LAKEWRIGHT_SEED={seed}\n")
    chance, batches = random.Random(seed), 6
    for number in range(batches):
        land(tmp_path / "in", number, *[chance.randrange(60) for _ in range(5)])
        os.utime(tmp_path / "in" / f"{number}.json", (1_700_000_000 + number,) * 2)
    places = [f"{word} {number}" for word in ("before", "after") for number in range(batches)]
    dies = chance.sample(places, 2)

    ended = []
    for _ in range(len(dies) + 1):
        done = subprocess.run(
            [sys.executable, "-c", VICTIM, str(tmp_path), *dies],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode in (0, -signal.SIGKILL), f"{seed}: {done.stdout} {done.stderr}"
        ended.append(done.returncode)
    assert ended == [-signal.SIGKILL, -signal.SIGKILL, 0], f"{seed}: {dies}"
    assert all((tmp_path / f"died {place}").exists() for place in dies)

    # The same stream that nobody killed. Each micro-batch tells the windows that it changed, so that a repeat shows.
    target = str(tmp_path / "never killed")
    keep_progress(
        windows(visits(spark, tmp_path / "in")),
        lambda rows, batch: rows.write.format("delta").options(**batch.options).mode("append").save(target),
        checkpoint=Checkpointer(str(tmp_path / "own"), "own", delivery="exactly once", output_mode="update"),
    ).wait()
    whole, cut = ([tuple(row) for row in spark.read.format("delta").load(path).orderBy("start", "count").collect()]
                  for path in (target, str(tmp_path / "counts")))  # fmt: skip
    assert cut == whole, f"{seed}: {dies}"
    counted: dict[object, int] = {}
    for start, count in cut:
        counted[start] = max(count, counted.get(start, 0))
    assert sum(counted.values()) == 5 * batches


@pytest.mark.classic_only("the function that fails remembers how often, and the server gets a new one each time")
@pytest.mark.shows("03.checkpointer", 2)
def test_a_stream_that_dies_again_and_again_counts_as_one_that_never_did(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(4):
        land(tmp_path / "in", number, *[chance.randrange(60) for _ in range(5)])
    before, after = ({chance.randrange(4)} for _ in range(2))

    checkpoint = Checkpointer(str(tmp_path / "checkpoint"), "visits", delivery="exactly once", output_mode="update")
    write = FailingWrite(tmp_path / "counts", before=before, after=after, named=True)
    assert run_to_the_end(windows(visits(spark, tmp_path / "in")), write, checkpoint) == 2

    plain = spark.read.schema(SCHEMA).json(str(tmp_path / "in")).groupBy(F.window("at", "10 minutes")).count()
    wanted = sorted((row["window"]["start"], row["count"]) for row in plain.collect())
    told = spark.read.format("delta").load(str(tmp_path / "counts")).groupBy("start").agg(F.max("count"))
    assert sorted(tuple(row) for row in told.collect()) == wanted

    # The same without state: what was written before the crash is skipped by its name, or is there twice without one.
    rows = visits(spark, tmp_path / "in", files=4)
    for named, count in ((True, 20), (False, 40)):
        delivery: Delivery = "exactly once" if named else "at least once"
        place = Checkpointer(str(tmp_path / f"plain-{named}"), "plain", delivery=delivery)
        write = FailingWrite(tmp_path / f"rows-{named}", before=set(), after={0}, named=named)
        assert run_to_the_end(rows, write, place) == 1
        assert spark.read.format("delta").load(str(write.path)).count() == count
        state = read_checkpoint(spark, place.path)
        assert state is not None
        assert (state.batch, state.committed, state.is_pending) == (0, 0, False)  # the same micro-batch, repeated

    # At most once: what had begun is left out. The rows of a crash before the write are lost, and none is there twice.
    rarely = Checkpointer(str(tmp_path / "rarely"), "rarely", delivery="at most once")
    write = FailingWrite(tmp_path / "rows-rarely", before={1}, after={2}, named=False)
    assert run_to_the_end(visits(spark, tmp_path / "in"), write, rarely) == 2
    assert spark.read.format("delta").load(str(write.path)).count() == 15
    assert not [*Path(rarely.path).glob("lakewright_*/**/*")], "nothing is left for each micro-batch"
    assert (Path(rarely.path) / "lakewright_newest").read_text().endswith(" 3")

    # A checkpoint of a release without ids goes on under its old name; one that was lost begins anew, and is never
    # taken for a repeat of the old one: everything comes once more, and nothing is skipped.
    lost = Checkpointer(str(tmp_path / "plain-True"), "plain", delivery="exactly once")
    write = FailingWrite(tmp_path / "rows-True", before=set(), after=set(), named=True)
    (Path(lost.path) / "lakewright_id").unlink()
    land(tmp_path / "in", 8, 1)
    run_to_the_end(rows, write, lost)
    assert [name for name, _ in names_in(write.path)] == ["checkpoint:plain:v1"]
    assert spark.read.format("delta").load(str(write.path)).count() == 21
    shutil.rmtree(lost.path)
    with pytest.raises(InputError, match=r"there is no progress of plain in .*Nothing was started") as gone:
        run_to_the_end(rows, write, replace(lost, if_missing="refuse"))
    assert "from a copy" in str(gone.value.hint)
    land(tmp_path / "in", 7, 1)
    run_to_the_end(rows, write, lost)
    copied_rows = spark.read.format("delta").load(str(write.path))
    assert (copied_rows.count(), copied_rows.where("id = 7").count()) == (21 + 22, 1)
    for left in ("offsets", "commits", "sources"):  # Spark's own files are lost, the note is not
        shutil.rmtree(Path(rarely.path) / left)
    write = FailingWrite(tmp_path / "rows-rarely", before=set(), after=set(), named=False)
    run_to_the_end(visits(spark, tmp_path / "in", files=9), write, rarely)
    assert spark.read.format("delta").load(str(write.path)).count() == 15 + 22

    # What is kept survives another sink and other columns, and says why it cannot survive another grouping.
    land(tmp_path / "in", 9, 1)
    grouped = visits(spark, tmp_path / "in").withWatermark("at", "1 hour").groupBy(F.window("at", "10 minutes"), "id")
    other = (
        r"kept by other columns: StateStoreSave \[window\]; this stream would use it as StateStoreSave \[window, id\]"
    )
    with pytest.raises(ConfigurationError, match=other) as refused:
        run_to_the_end(grouped.count(), write, checkpoint)
    assert "next version of the checkpoint" in str(refused.value.hint)
    note = Path(checkpoint.path) / "lakewright_state"
    kept = note.read_text()
    note.unlink()  # of a release that noted nothing: then it is Spark that refuses
    with pytest.raises(ConfigurationError, match="kept by another query: its grouping, its keys"):
        run_to_the_end(grouped.count(), write, checkpoint)
    note.write_text(kept)

    # Spark compares the types of keys, not their names: it would take visitors for visits that it knows.
    rows = visits(spark, tmp_path / "in").withColumn("visitor", F.col("id") % 2).withWatermark("at", "1 hour")
    once = Checkpointer(str(tmp_path / "once"), "once", delivery="exactly once")
    write = FailingWrite(tmp_path / "rows-once", before=set(), after=set(), named=True)
    run_to_the_end(rows.dropDuplicatesWithinWatermark(["id"]), write, once)
    with pytest.raises(ConfigurationError, match=r"WithinWatermark \[id\]; this stream .*WithinWatermark \[visitor\]"):
        run_to_the_end(rows.dropDuplicatesWithinWatermark(["visitor"]), write, once)
    run_to_the_end(rows.where("id >= 0").dropDuplicatesWithinWatermark(["id"]), write, once)

    # A copy in another place goes on as the original would; one of a stream at work is refused.
    copied = Checkpointer(str(tmp_path / "elsewhere"), "visits", output_mode="update")
    state = copy_checkpoint(spark, checkpoint.path, copied.path)
    assert state == read_checkpoint(spark, copied.path)
    with pytest.raises(ConfigurationError, match="already holds a checkpoint"):
        copy_checkpoint(spark, checkpoint.path, copied.path)
    with pytest.raises(ConfigurationError, match="there is no checkpoint in"):
        copy_checkpoint(spark, str(tmp_path / "nowhere"), str(tmp_path / "x"))


@pytest.mark.shows("03.checkpointer", 3)
@pytest.mark.shows("03.checkpointer", 6)
def test_a_running_query_tells_its_offsets_and_what_it_cannot_go_on_from_is_told(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    topic = kafka.topic(partitions=2)
    send(kafka, topic, [f"a{i}" for i in range(3)])
    send(kafka, topic, [f"b{i}" for i in range(5)], partition=1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**options).load()
    checkpoint = Checkpointer(str(tmp_path / "checkpoint"), "records", delivery="exactly once", every="1 second")
    target = str(tmp_path / "records")

    def write(rows: DataFrame, batch: BatchId) -> None:
        rows.write.format("delta").options(**batch.options).mode("append").save(target)

    stream = keep_progress(records, write, checkpoint=checkpoint)
    try:
        until(lambda: (found := read_checkpoint(spark, checkpoint.path)) is not None and found.committed == 0)
        state = read_checkpoint(spark, checkpoint.path)
        assert state is not None
        assert state.offsets == ({topic: {"0": 3, "1": 5}},)
        consumed = spark.read.format("delta").load(target).groupBy("partition").agg(F.max("offset") + 1)
        assert {str(row[0]): row[1] for row in consumed.collect()} == state.offsets[0][topic]

        with pytest.raises(ConfigurationError, match="a stream is already at work on"):
            keep_progress(records, write, checkpoint=checkpoint)
        with own_session(spark, {}) as other:  # Spark would stop the first, and tell nobody
            second = other.readStream.format("kafka").options(**options).load()
            with pytest.raises(ConfigurationError, match="another stream is at work on"):
                keep_progress(second, write, checkpoint=checkpoint).wait(30)
        assert stream.query.isActive
        with pytest.raises(ConfigurationError, match="a stream is already at work on"):
            copy_checkpoint(spark, checkpoint.path, str(tmp_path / "copy"))
    finally:
        stream.stop()

    # Another query may take over where this one has stopped.
    stopped = read_checkpoint(spark, checkpoint.path)
    assert stopped is not None
    assert json.loads(starting_offsets(stopped)) == {topic: {"0": 3, "1": 5}}

    # What the stream has not read is gone from the topic.
    send(kafka, topic, ["a3", "a4"])
    delete_records(kafka, topic, 0, 5)
    send(kafka, topic, ["a5"])
    again = Checkpointer(checkpoint.location, "records")
    with pytest.raises(InputError, match=r"are gone from its source.*neither skips them nor begins anew"):
        keep_progress(records, write, checkpoint=again).wait()

    # A file of the checkpoint is damaged, or lost.
    newest = max((Path(checkpoint.path) / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.write_text("v1\n{broken")
    with pytest.raises(InputError, match=rf"offsets/{newest.name} cannot be read.*Nothing was started") as told:
        keep_progress(records, write, checkpoint=again)
    assert "next version of the checkpoint" in str(told.value.hint)
    (Path(checkpoint.path) / "metadata").unlink()
    with pytest.raises(InputError, match="metadata cannot be read"):
        keep_progress(records, write, checkpoint=again)


def test_a_start_that_is_refused_changes_nothing_about_the_name_of_what_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    checkpoint = Checkpointer(str(tmp_path / "checkpoint"), "visits", delivery="exactly once", every="1 second")
    target = tmp_path / "rows"

    def write(rows: DataFrame, batch: BatchId) -> None:
        rows.write.format("delta").options(**batch.options).mode("append").save(str(target))

    first = keep_progress(visits(spark, tmp_path / "in"), write, checkpoint=checkpoint)
    try:
        with pytest.raises(ConfigurationError, match="another stream is at work on"):
            keep_progress(visits(spark, tmp_path / "in"), write, checkpoint=replace(checkpoint, name="second"))
        land(tmp_path / "in", 1, 1)
        until(lambda: (found := read_checkpoint(spark, checkpoint.path)) is not None and found.committed == 0)
        with monkeypatch.context() as patch:  # one that looked a moment before anything was written
            for name, seen in (("checkpoint_id", ""), ("check_checkpoint", None), ("read_checkpoint", None)):
                patch.setattr(f"lakewright.patterns.error_management.checkpointer.{name}", lambda *_, seen=seen: seen)
            with pytest.raises(ConfigurationError, match="another stream is at work on"):
                keep_progress(visits(spark, tmp_path / "in"), write, checkpoint=replace(checkpoint, name="second"))
    finally:
        first.stop()
    # By this name a start would know, were it killed before it has noted that the micro-batch is done, what is there.
    noted = (Path(checkpoint.path) / "lakewright_id").read_text()
    assert names_in(target) == [(f"checkpoint:visits:v1:{noted}", 0)]


@pytest.mark.shows("03.checkpointer", 6)
def test_each_file_that_a_start_needs_is_named_where_it_is_damaged_or_gone(spark: SparkSession, tmp_path: Path) -> None:
    good = {
        "metadata": '{"id": "one"}',
        "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"visits":{"0":3}}',
        "offsets/1": 'v1\n{"batchWatermarkMs":0}\n{"visits":{"0":5}}',
        "commits/0": "v1\n{}",
        "commits/1": "v1\n{}",
    }

    def read(name: str, files: dict[str, str]) -> CheckpointState | None:
        for file, text in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(text)
        return read_checkpoint(spark, str(tmp_path / name))

    state = read("good", good)
    assert state is not None
    assert (state.batch, state.committed, state.offsets) == (1, 1, ({"visits": {"0": 5}},))
    assert state.before == ({"visits": {"0": 3}},)
    other = read("one is missing", {name: text for name, text in good.items() if name != "offsets/0"})
    assert other is not None
    assert other.before is None
    assert read("empty", {}) is None
    for number, (file, text) in enumerate(
        (
            ("commits/1", ""),  # as a machine that lost its power leaves it
            ("commits/1", "broken"),
            ("offsets/1", ""),
            ("offsets/1", "v1\n{}"),
            ("offsets/0", "v1\n{broken\n-"),  # where the last micro-batch began
            ("metadata", "{"),
        )
    ):
        with pytest.raises(InputError, match=rf"{number}/{file} cannot be read.*Nothing was started"):
            read(str(number), {**good, file: text})
    # Spark would begin anew without a word, though it knows that it has done something.
    with pytest.raises(InputError, match=r"offsets/1 cannot be read \(it is not there\)"):
        read("no offsets", {name: text for name, text in good.items() if "offsets" not in name})
    with pytest.raises(InputError, match=r"metadata cannot be read \(it is not there\)"):
        read("no metadata", {name: text for name, text in good.items() if name != "metadata"})


def test_a_checkpoint_is_copied_file_by_file_to_an_empty_place_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle: Any = SimpleNamespace(streams=SimpleNamespace(active=[]))
    source, files = tmp_path / "v1", {"metadata": '{"id": "one"}', "offsets/0": "v1\n{}\n-", "lakewright_id": "ours"}
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)

    class Bucket(fs.SubTreeFileSystem):  # as S3: it moves files, and no folders
        def move(self, src: str, dest: str) -> None:
            raise OSError("Cannot move directories")

    bucket = tmp_path / "bucket"
    bucket.mkdir()
    real = checkpoint_files.open_storage
    monkeypatch.setattr(
        checkpoint_files,
        "open_storage",
        lambda place: (Bucket(str(bucket), fs.LocalFileSystem()), "v1") if place == "s3://b/v1" else real(place),
    )
    assert copy_checkpoint(idle, str(source), "s3://b/v1").query_id == "one"
    assert {name: (bucket / "v1" / name).read_text() for name in files} == files

    # What a copy that was killed has left, or somebody else's, is not mixed with it.
    (tmp_path / "v2").mkdir()
    copy_checkpoint(idle, str(source), str(tmp_path / "v2"))
    (tmp_path / "v2" / "metadata").unlink()
    for text in ("part of a copy", "a note alone"):
        with pytest.raises(ConfigurationError, match="already holds a checkpoint, part of one") as refused:
            copy_checkpoint(idle, str(source), str(tmp_path / "v2"))
        assert "empty folder" in str(refused.value.hint), text
        shutil.rmtree(tmp_path / "v2" / "offsets", ignore_errors=True)

    storage, path = real("s3a://b/checkpoints/v1?region=eu-west-1")  # Hadoop's word for it
    assert (storage.type_name, path) == ("s3", "b/checkpoints/v1")
    with pytest.raises(ConfigurationError, match="ftps://b/v1 is no place that a checkpoint can be copied to"):
        copy_checkpoint(idle, str(source), "ftps://b/v1")


def delete_records(kafka: Kafka, topic: str, partition: int, before: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (done,) = client.delete_records([TopicPartition(topic, partition, before)]).values()
    done.result(30)


@pytest.mark.shows("03.checkpointer", 4)
def test_confirming_after_the_work_repeats_and_confirming_before_it_loses(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    send(kafka, topic, [f"a{i}" for i in range(6)])  # of one partition, so that they come in order

    def consumed(commit: str) -> list[str]:
        handled: list[str] = []

        def handle(message: object) -> None:
            value = message.value().decode()  # type: ignore[attr-defined]
            if value == "a3" and "crash" not in handled:  # the second of the two that are confirmed together
                handled.append("crash")
                raise RuntimeError("killed")
            handled.append(value)

        given = {"group": f"{topic}-{commit}", "commit": commit, "every": 2}
        with pytest.raises(RuntimeError, match="killed"):
            consume_topic(kafka.bootstrap, topic, handle, **given)  # type: ignore[arg-type]
        consume_topic(kafka.bootstrap, topic, handle, **given)  # type: ignore[arg-type]
        assert consume_topic(kafka.bootstrap, topic, handle, **given) == 0  # type: ignore[arg-type]
        handled.remove("crash")
        return sorted(handled)

    assert consumed("after") == ["a0", "a1", "a2", "a2", "a3", "a4", "a5"], "one is there twice, and none is lost"
    assert consumed("before") == ["a0", "a1", "a2", "a4", "a5"], "one is lost, and none is there twice"


def test_a_group_that_begins_at_the_end_gets_what_came_between_two_calls(kafka: Kafka) -> None:
    topic, handled = kafka.topic(partitions=2), list[str]()
    send(kafka, topic, ["before"])

    def consume() -> int:
        def handle(message: object) -> None:
            handled.append(message.value().decode())  # type: ignore[attr-defined]

        return consume_topic(kafka.bootstrap, topic, handle, group=topic, start="latest")

    assert consume() == 0
    send(kafka, topic, ["between"])
    assert (consume(), handled) == (1, ["between"])


def test_a_partition_that_is_added_to_a_group_that_began_at_the_end_is_read_from_its_beginning(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewPartitions

    topic, handled = kafka.topic(), list[str]()
    send(kafka, topic, ["before"])

    def consume(group: str = topic) -> int:
        def handle(message: object) -> None:
            handled.append(message.value().decode())  # type: ignore[attr-defined]

        return consume_topic(kafka.bootstrap, topic, handle, group=group, start="latest")

    assert consume() == 0
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(10)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, "of the new partition", partition=1)
    assert producer.flush(10) == 0
    assert (consume(), handled) == (1, ["of the new partition"])
    assert consume() == 0

    # A group that has a member has begun: whoever comes next does not move where it begins.
    handled.clear()
    member = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": f"{topic}-2", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    member.subscribe([topic])
    while not member.assignment():
        member.poll(0.2)
    monkeypatch.setattr(kafka_consumer, "begin_at_end", lambda *given: [begin_at_end(*given), member.close()])
    assert consume(f"{topic}-2") == 2
    assert sorted(handled) == ["before", "of the new partition"]


@pytest.mark.shows("03.checkpointer", 5)
def test_short_intervals_cost_more_and_repeat_less(spark: SparkSession, tmp_path: Path) -> None:
    """Rows come ten a second; each stream is killed in the middle, between a write and its record, and goes on."""
    count = 60

    def follow(every: str) -> tuple[ProgressReport, ProgressReport, int]:
        home, handed = tmp_path / every, tmp_path / every / "handed"
        land(home / "in", 0, 1)
        handed.mkdir()

        def write(rows: DataFrame, batch: BatchId) -> None:
            ids = [str(row["id"]) for row in rows.select("id").collect()]
            again = (handed / f"{batch.number}").exists()
            (handed / f"{batch.number}{' again' if again else ''}").write_text(" ".join(ids))
            if any(int(one) >= count // 2 for one in ids) and not (home / "killed").exists():
                (home / "killed").touch()
                raise RuntimeError("killed")

        def start() -> CheckpointedStream:
            rows = visits(spark, home / "in", files=1000)
            return keep_progress(rows, write, checkpoint=Checkpointer(str(home / "checkpoint"), every, every=every))

        def ids_handed() -> list[str]:
            return [one for file in handed.iterdir() for one in file.read_text().split()]

        def come() -> None:
            for number in range(1, count):
                land(home / "draft", number, 1)
                os.replace(home / "draft" / f"{number}.json", home / "in" / f"{number}.json")
                time.sleep(0.1)

        first = start()
        until((handed / "0").exists)  # what comes first costs a compilation
        coming = threading.Thread(target=come)
        coming.start()
        with pytest.raises(Exception, match="killed"):
            first.wait()
        again = start()
        coming.join()
        # What was cut short may have held all the rest: the end is when it has been done again, too.
        until(lambda: any(handed.glob("* again")) and len(set(ids_handed())) == count)
        until(lambda: not again.query.status["isTriggerActive"])
        again.stop()
        return progress_report(first.query), progress_report(again.query), len(ids_handed()) - count

    (short, short_again, short_repeated), (long, long_again, long_repeated) = follow("1 second"), follow("4 seconds")
    # Each micro-batch keeps its progress once: that is the overhead, of the same rows.
    kept = [one.keeping_seconds + more.keeping_seconds for one, more in ((short, short_again), (long, long_again))]
    assert kept[0] > kept[1] > 0
    assert short.batches + short_again.batches > long.batches + long_again.batches
    # And what had been done since the last record is done again.
    assert 0 < short_repeated < long_repeated
    assert max(short.repeated_rows, short_repeated) < max(long.repeated_rows, long_repeated)

    told = {"numInputRows": 5, "durationMs": {"walCommit": 20, "commitOffsets": 30, "triggerExecution": 400},
            "stateOperators": [{"numRowsTotal": 7, "memoryUsedBytes": 800}]}  # fmt: skip
    over_connect = {**told, "sources": [{"numInputRows": 2}, {"numInputRows": 3}]}
    del over_connect["numInputRows"]
    report = report_of([told, over_connect, {"numInputRows": 0}])
    assert (report.batches, report.keeping_seconds, report.seconds) == (2, 0.1, 0.8)
    assert (report.keeping_seconds_per_row, report.state_rows, report.state_bytes) == (0.01, 7, 800)


@pytest.mark.shows("03.checkpointer", 6)
@pytest.mark.shows("03.checkpointer", 7)
def test_what_cannot_be_relied_on_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'location' is empty: a stream without a checkpoint begins anew"):
        Checkpointer("", "visits")
    with pytest.raises(ConfigurationError, match="delivery is 'at least once', 'at most once', 'exactly once'"):
        Checkpointer("/x", "visits", delivery="twice")  # type: ignore[arg-type]
    once = Checkpointer("/x", "visits", delivery="exactly once")
    land(tmp_path / "none", 1, 1)
    with pytest.raises(ConfigurationError, match="never looks at its second argument"):
        keep_progress(visits(spark, tmp_path / "none"), lambda rows, batch: rows.count(), checkpoint=once)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="version is 1 or more"):
        Checkpointer("/x", "visits", version=0)
    with pytest.raises(ConfigurationError, match="not a stream"):
        checkpointed(spark.range(1), Checkpointer("/x", "visits"))
    land(tmp_path / "in", 1, 1)
    hasty = Checkpointer(str(tmp_path / "hasty"), "hasty", asynchronous=True, every="1 second")
    with pytest.raises(ConfigurationError, match="cannot be kept asynchronously for a stream with state"):
        checkpointed(windows(visits(spark, tmp_path / "in")), hasty)
    with pytest.raises(ConfigurationError, match="for its own sinks only, not for a function"):
        keep_progress(visits(spark, tmp_path / "in"), lambda rows, batch: None, checkpoint=hasty)
    assert checkpointed(visits(spark, tmp_path / "in"), hasty) is not None


def test_streams_that_start_side_by_side_are_each_told_by_their_own_keys(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "in", 1, 1)
    rows = visits(spark, tmp_path / "in").withWatermark("at", "1 hour")
    together, printed = threading.Barrier(2), sys.stdout
    told: dict[str, set[tuple[str, ...]]] = {"id": set(), "at": set()}

    def look(key: str) -> None:
        for _ in range(5):
            together.wait(30)
            told[key].add(state_keys(rows.dropDuplicatesWithinWatermark([key])))

    looks = [threading.Thread(target=look, args=(key,)) for key in told]
    for one in looks:
        one.start()
    for one in looks:
        one.join()
    assert told == {key: {(f"StreamingDeduplicateWithinWatermark [{key}]",)} for key in told}
    assert sys.stdout is printed


def test_what_other_threads_print_while_a_plan_is_asked_for_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def explain() -> None:
        sys.stdout.write("Deduplicate ")
        other = threading.Thread(target=print, args=("a step says something",))
        other.start()
        other.join()
        sys.stdout.write("[id]\n")

    frame: Any = SimpleNamespace(isStreaming=True, explain=explain)
    assert plan_text(frame) == "Deduplicate [id]\n"
    sys.stdout.write("and so does this one\n")
    assert capsys.readouterr().out == "a step says something\nand so does this one\n"
