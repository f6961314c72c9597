"""Streams as the real command: killed between two commits, stopped by SIGTERM, and under a topic that was made anew."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from lakewright.errors import InputError
from lakewright.pipelines.accounts import accounts_of
from tests.pipelines.shop import ok
from tests.pipelines.streaming import make_anew, send, send_at, until, visit, visits_project
from tests.pipelines.test_streams import ids
from tests.processes import LAKEWRIGHT, environment, killed

ONCE = """
    from lakewright import WindowedDeduplicator

    @visits.dataset(mode="stream", event_time="at",
                    guards_in={"raw": [WindowedDeduplicator(keys=["page"], window="1 day")]})
    def once(raw):
        '''The first visit of each page.'''
        return raw
"""
TARGET = '\n[targets.dev]\nfast_start = true\nmaster = "local[1]"\nparallel = 1\n'


@pytest.mark.classic_only("the failpoints are armed here, and a micro-batch runs on the server")
def test_a_killed_run_and_a_stopped_stream_leave_each_record_once_and_nothing_held(project, kafka, connect_url):
    topic = kafka.topic(partitions=2)
    # What the first micro-batch reads came hours ago; all later ones read what comes now.
    hours_ago = datetime.now(UTC) - timedelta(hours=2)
    send_at(kafka, topic, hours_ago, [visit(1)])
    send_at(kafka, topic, hours_ago, [visit(2)], partition=1)
    files = visits_project(kafka, topic, ONCE)
    files["lakewright.toml"] += TARGET
    shop = project(files)
    command = [sys.executable, "-m", "lakewright", "run"]

    # Between Delta's commit and Spark's own: the micro-batch is in the table, and the checkpoint does not know. The
    # second stream has a state, which is not noted either.
    died = subprocess.run(
        [*command, "--select", "+once"], cwd=shop.folder,
        env={**os.environ, "LAKEWRIGHT_FAILPOINT": "committed.main:2"},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert died.returncode == -9, died.stdout + died.stderr
    shop.graph  # noqa: B018  (declares the names)
    assert shop.store.receipts.history("once") == []
    assert len(ids(shop, "once")) == 1
    send(kafka, topic, ["{broken"])
    ok(shop.run(at="2026-01-03"))
    assert ids(shop) == ids(shop, "clean") == ["v1", "v2"]
    first = ids(shop, "once")
    assert len(first) == 1
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True)
    assert [(row["partition"], row["offset"]) for row in letters.collect()] == [(0, 1)]
    assert sum(account.read for account in accounts_of(shop.store, "raw", is_source=True)) == 3

    # That one with a Java of its own stops as cleanly is seen in test_computes_streams and in the kills of streams.
    stream = subprocess.Popen(
        [*command, "--continuous", "--select", "raw"], cwd=shop.folder, env=environment(connect_url),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(lambda: shop.streams()[0].running is not None or stream.poll() is not None)
        send(kafka, topic, [visit(3)])
        taken = shop.store.receipts.history
        until(lambda: sum(r.rows for r in taken("raw") if r.kind == "data") == 4 or stream.poll() is not None)
        stream.send_signal(signal.SIGTERM)
        said = "\n".join(stream.communicate(timeout=120))
    finally:
        stream.kill()
    assert stream.returncode == 0, said
    assert "raw: 1 micro-batches, 1 rows" in said
    assert "1 ok, 0 failed" in said
    assert "Traceback" not in said
    assert shop.store.leases.held(shop._now()) == []
    assert shop.store.steps.open_steps() == []
    assert shop.store.runs.latest()[0].state == "ok"

    # Shown by the real command while a record waits, and as JSON when it was read.
    send(kafka, topic, [visit(4)])
    header, _, *lines = typed(shop, connect_url, "stream", "show").splitlines()
    rows = [dict(zip(cells(header), cells(line), strict=True)) for line in lines]
    shown = {row["stream"]: row for row in rows}
    assert shown.keys() == {"raw", "once"}
    assert json.loads(shown["raw"]["position"]) == {topic: {"0": 3, "1": 1}}
    assert [shown["raw"][name] for name in ("generation", "behind", "state")] == ["1", "1", "-"]
    assert (shown["once"]["state"], shown["once"]["kept going by"]) == ("1 rows", "nobody")
    ok(shop.run(at="2026-01-03"))
    assert ids(shop) == ids(shop, "clean") == ["v1", "v2", "v3", "v4"]
    assert ids(shop, "once") == first  # the page was seen before the kill
    told = json.loads(typed(shop, connect_url, "stream", "show", "--json"))["streams"]
    raw, once = sorted(told, key=lambda one: one["dataset"], reverse=True)
    assert (raw["dataset"], raw["generation"], raw["running"], raw["behind"]) == ("raw", 1, None, 0)
    assert json.loads(raw["progress"]["offsets"]) == {topic: {"0": 4, "1": 1}}
    assert 0 < raw["progress"]["keeping_seconds"] < raw["progress"]["batch_seconds"]
    assert raw["progress"]["rows_per_second"] > 0
    assert raw["progress"]["state_bytes"] is None
    assert once["progress"]["state_rows"] == 1
    assert once["progress"]["state_bytes"] > 0

    # Rewound by the real command, which is killed half-way; without the second stream, which could not take back what
    # it has added.
    shop = project({**visits_project(kafka, topic), "lakewright.toml": files["lakewright.toml"]})
    rewind = ("stream", "rewind", "raw", "--by", "1 hour", "--yes")
    killed(shop.folder, *LAKEWRIGHT, *rewind, failpoint="generation_recorded", master=connect_url)
    assert shop.store.streams.current("raw").number == 2
    ok(shop.run(at="2026-01-03"))
    assert ids(shop) == ids(shop, "clean") == ["v1", "v2", "v3", "v4"]
    rewound = json.loads(typed(shop, connect_url, *rewind, "--json"))
    assert (rewound["done"], rewound["generation"], rewound["deleted"]) == (True, 3, 3)
    assert rewound["consumers"] == ["clean"]
    assert ids(shop) == ["v1", "v2"], "what came before the last hour stays"
    ok(shop.run(at="2026-01-03"))
    assert ids(shop) == ids(shop, "clean") == ["v1", "v2", "v3", "v4"]
    assert sum(account.read for account in accounts_of(shop.store, "raw", is_source=True)) == 5


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def typed(shop, master: str, *words: str) -> str:
    """What a command prints."""
    done = subprocess.run(
        [sys.executable, *LAKEWRIGHT, *words], cwd=shop.folder, env=environment(master),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("sent", [1, 5], ids=["shorter", "longer"])
def test_a_topic_made_anew_is_refused_and_no_record_of_it_is_skipped(project, kafka, sent):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(2)])
    shop = project(visits_project(kafka, topic))
    ok(shop.run(["raw"], at="2026-01-03"))

    make_anew(kafka, topic)
    send(kafka, topic, [visit(n) for n in range(10, 10 + sent)])
    refused = shop.run(["raw"], at="2026-01-03")

    assert isinstance(refused.errors[0], InputError)
    assert "was deleted and made anew" in str(refused.errors[0])
    ended = shop.run_continuous(["raw"])
    assert "was deleted and made anew" in str(ended.failed[0].error)
    assert ids(shop) == ["v1", "v2"]
    assert shop.store.leases.held(shop._now()) == []
    assert shop.store.steps.open_steps() == []
    assert "made anew" in shop.streams()[0].problem


def test_a_topic_made_anew_is_noticed_without_the_store_and_after_it_was_read_again(project, kafka):
    topic = kafka.topic()
    send(kafka, topic, [visit(1), visit(2)])
    shop = project(visits_project(kafka, topic))
    ok(shop.run(["raw"], at="2026-01-03"))

    # What was read may be gone at the topic: only the checkpoint knows that it was.
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 2)]).values()
    deleted.result(30)
    shop.rebuild_store()
    send(kafka, topic, [visit(3)])
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v1", "v2", "v3"]

    make_anew(kafka, topic)
    send(kafka, topic, [visit(n) for n in range(10, 15)])
    shop.rebuild_store()
    assert "made anew" in str(shop.run(["raw"], at="2026-01-03").errors[0])
    with pytest.raises(InputError, match="made anew"):
        shop.rewind("raw", to="2026-01-01")
    assert ids(shop) == ["v1", "v2", "v3"]

    # Read again as a whole, on purpose, it is the new one that counts from then on.
    with pytest.raises(InputError, match="the 3 rows came from the old one"):
        shop.rewind("raw")
    shop.rewind("raw", lost="delete")
    make_anew(kafka, topic)
    assert "made anew" in str(shop.run(["raw"], at="2026-01-03").errors[0])
    shop.rewind("raw")  # of this one nothing was read
    send(kafka, topic, [visit(20)])
    ok(shop.run(["raw"], at="2026-01-03"))
    assert ids(shop) == ["v20"]


def test_a_topic_deleted_under_a_running_stream_ends_it_with_words(project, kafka):
    topic = kafka.topic()
    send(kafka, topic, [visit(1)])
    shop, beside = project(visits_project(kafka, topic)), project()
    done = []
    worker = threading.Thread(target=lambda: done.append(shop.run_continuous()))
    worker.start()
    until(lambda: beside.store.receipts.history("raw") != [])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    worker.join(120)
    (summary,) = done
    assert (summary.state, summary.exit_code) == ("refused", 3)
    assert isinstance(summary.failed[0].error, InputError)
    assert topic in str(summary.failed[0].error)
    assert ids(shop) == ["v1"]
    assert beside.store.leases.held(beside._now()) == []
