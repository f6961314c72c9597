"""Streams that are kept going on a compute: the process's Spark is the compute's own."""

from __future__ import annotations

import signal
from typing import Any

from lakewright.testing.kafka import Kafka
from tests.pipelines.shop import ok, rows_of
from tests.pipelines.streaming import send, until, visit
from tests.pipelines.test_computes_stop import HEAVY, at_work_in, refuse_left, start

KEPT = """
    from lakewright import KafkaTopic, Pipeline
    from pyspark.sql import functions as F

    main = Pipeline("main", start="2026-01-01")
    main.source("raw", KafkaTopic("broker", "{topic}"), schema="id string", mode="stream", compute="heavy")

    @main.dataset(mode="stream", compute="heavy")
    def kept(raw):
        '''Each record, and by which Spark it was read.'''
        return raw.withColumn("reader", F.lit(raw.sparkSession.conf.get("spark.app.name")))
"""


def test_streams_that_are_kept_going_on_a_compute_read_each_record_once_and_stop_cleanly(
    project: Any, kafka: Kafka
) -> None:
    topic = kafka.topic()
    settings = f'{HEAVY}    [connections.broker]\n    url = "kafka://{kafka.bootstrap}"\n'
    opened = project({"lakewright.toml": settings, "pipelines/main.py": KEPT.format(topic=topic)})
    home = opened.folder

    def taken() -> int:
        return sum(receipt.rows for receipt in opened.store.receipts.history("kept") if receipt.kind == "data")

    send(kafka, topic, [visit(1)])
    stream = start(home, "--continuous")
    try:
        until(lambda: taken() == 1 or stream.poll() is not None)
        send(kafka, topic, [visit(2), visit(3)])
        until(lambda: taken() == 3 or stream.poll() is not None)
        known = at_work_in(home)
        assert len(known["java"]) == 1, "one Spark, which is the compute's"
        stream.send_signal(signal.SIGTERM)
        said = "\n".join(stream.communicate(timeout=60))
    finally:
        stream.kill()
    assert stream.returncode == 0, said
    assert "2 ok, 0 failed" in said
    assert "Traceback" not in said
    refuse_left(home, known)
    assert opened.store.leases.held(opened._now()) == []
    assert opened.store.steps.open_steps() == []

    assert not ok(opened.run()).outcomes  # type: ignore[attr-defined]
    read = [(row["id"], row["reader"]) for row in rows_of(opened, "kept", "id", "reader")]
    assert read == [(one, "lakewright heavy, heavy") for one in ("v1", "v2", "v3")]
