"""Readiness Marker, used alone: flag files, the next partition, a commit, and a reader that insists on them."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

import pytest

from lakewright.connectors.notify import FileNotifier, WebhookNotifier
from lakewright.errors import ConfigurationError, InputError, NotReady, TargetError
from lakewright.lake.log import DeltaLog
from lakewright.model.findings import Finding
from lakewright.patterns.ingestion.folder_readiness import FlagFile, NextPartition
from lakewright.patterns.ingestion.readiness_marker import (
    ReadinessMarker,
    find_data_commit,
    is_closed,
    mark_when_done,
    read_marker,
    read_when_ready,
    set_marker,
    wait_until,
    withdraw_marker,
)


class Halfway(Exception):
    """The job that fails."""


def write_text(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.json").write_text(text)


@pytest.mark.shows("02.readiness-marker", 1, 2, 3)
def test_the_marker_is_last_gone_before_the_first_change_and_away_after_a_failure(tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[object] = []
    with mark_when_done(out, run="r1", version=7) as done:
        write_text(out, a="1", b="22")
        seen.append(read_marker(out))
        done.rows = 2
    flag = read_marker(out)
    assert flag is not None
    assert (flag.rows, flag.run, flag.version, flag.files, flag.bytes) == (2, "r1", 7, 2, 3)
    written = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    assert written.keys() == {"a.json", "b.json", "_COMPLETED"}, "nothing is left of writing aside"
    assert max(written, key=lambda name: (written[name], name == "_COMPLETED")) == "_COMPLETED"

    def fail() -> None:
        with mark_when_done(out, run="r2"):
            seen.append(read_marker(out))  # before the first file changes
            write_text(out, a="333")
            raise Halfway

    with pytest.raises(Halfway):
        fail()
    assert seen == [None, None]
    assert read_marker(out) is None
    waits = []
    with pytest.raises(NotReady, match=r"was not ready within 1 minute: no marker"):
        wait_until(
            lambda: None if read_marker(out) else "no marker",
            what="out",
            at_most="1 minute",
            every="30 seconds",
            sleep=waits.append,
            clock=lambda: 30.0 * len(waits),
        )
    assert waits == [30.0, 30.0]
    with mark_when_done(out, run="r3"):
        write_text(out, a="1", b="22")
    assert read_marker(out).run == "r3"  # type: ignore[union-attr]
    assert withdraw_marker(out)
    assert not withdraw_marker(out)
    with pytest.raises(TargetError, match="no folder"):
        set_marker(tmp_path / "nowhere")


@pytest.mark.shows("02.readiness-marker", 8)
def test_the_reader_stops_without_marker_without_data_and_at_another_count(spark, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = spark.createDataFrame([("v1",), ("v2",)], "visit string").coalesce(1)
    rows.write.parquet(str(out))
    with pytest.raises(NotReady, match="COMPLETED"):
        read_when_ready(spark, out)
    assert read_when_ready(spark, out, name="_SUCCESS").count() == 2, "Spark's own marker holds no count"
    set_marker(out, rows=2, run="r1")
    assert read_when_ready(spark, out).count() == 2
    assert read_when_ready(spark, out, check="files").count() == 2
    set_marker(out, name="COMPLETED", rows=2)  # not hidden from Spark
    assert read_when_ready(spark, out, name="COMPLETED").count() == 2
    withdraw_marker(out, name="COMPLETED")
    rows.write.mode("append").parquet(str(out))  # by somebody who does not know of the marker
    with pytest.raises(InputError, match=r"2 rows, and holds 4"):
        read_when_ready(spark, out)
    with pytest.raises(InputError, match=r"1 files of .* bytes, and holds 2"):
        read_when_ready(spark, out, check="files")
    assert read_when_ready(spark, out, check=None).count() == 4
    with pytest.raises(ConfigurationError, match="check"):
        read_when_ready(spark, out, check="rows")  # type: ignore[arg-type]
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "_SUCCESS").touch()
    with pytest.raises(InputError, match="no data"):
        read_when_ready(spark, empty, name="_SUCCESS")
    (empty / "_COMPLETED").write_text("yes!")
    with pytest.raises(InputError, match="yes!"):
        read_marker(empty)
    with pytest.raises(ConfigurationError, match="s3"):
        read_when_ready(spark, "s3://bucket/out")


@pytest.mark.shows("02.readiness-marker", 4)
def test_a_partition_is_closed_once_a_later_one_is_there(tmp_path: Path) -> None:
    hours = tmp_path / "date=2026-01-05"
    for name in ("hour=9", "hour=10", "hour=__HIVE_DEFAULT_PARTITION__", "minute=59", "_hour", "hour=late"):
        (hours / name).mkdir(parents=True)
    assert is_closed(hours, "hour=9"), "numbers are compared as numbers"
    assert not is_closed(hours, "hour=10")
    assert not is_closed(tmp_path, "date=2026-01-05/hour=10")
    waits: list[float] = []

    def closed() -> str | None:
        return None if is_closed(hours, "hour=10") else "hour=11 is not there yet"

    clock = {"sleep": waits.append, "clock": lambda: 60.0 * len(waits)}
    with pytest.raises(NotReady, match=r"hour=10 was not ready within 2 minutes: hour=11 is not there yet"):
        wait_until(closed, what="hour=10", at_most="2 minutes", every="1 minute", **clock)
    (hours / "hour=11").mkdir()
    wait_until(closed, what="hour=10", at_most="2 minutes", **clock)
    assert is_closed(tmp_path, "date=2026-01-05/hour=10")
    (tmp_path / "date=2026-01-06").mkdir()
    assert is_closed(tmp_path, "date=2026-01-05/hour=11"), "the next day closes all hours of this one"
    assert NextPartition().not_yet(tmp_path, "") is not None
    # A flag in the root speaks for the files that lie there, not for partitions.
    (tmp_path / "_SUCCESS").touch()
    assert FlagFile().not_yet(tmp_path, "") is None
    assert FlagFile().not_yet(tmp_path, "date=2026-01-05/hour=9") == "has no _SUCCESS yet"
    (hours / "_SUCCESS").touch()
    assert FlagFile().not_yet(tmp_path, "date=2026-01-05/hour=9") is None


@pytest.mark.shows("02.readiness-marker", 5)
def test_a_commit_with_rows_of_the_interval_is_a_marker_and_an_optimize_is_none(spark, lake_folder: Path) -> None:
    path = str(lake_folder / "visits")
    log = DeltaLog(path)
    assert find_data_commit(log, "2026-01-05") is None

    def commit(day: str) -> None:
        rows = spark.createDataFrame([(1, day)], "n int, _lw_event string")
        rows.write.format("delta").mode("append").partitionBy("_lw_event").save(path)

    commit("2026-01-04")
    assert find_data_commit(log, "2026-01-05") is None, "rows of another day"
    commit("2026-01-05")
    commit("2026-01-05")
    found = find_data_commit(log, "2026-01-05")
    assert (found and found.version, find_data_commit(log, "2026-01", after=1).version) == (2, 2)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    assert log.commit(3).operation == "OPTIMIZE"
    assert "2026-01-05" in log.commit(3).touched, "its files lie in the day, and are no news of it"
    assert find_data_commit(log, "2026-01-05", after=2) is None
    assert find_data_commit(log).version == 2


def test_options_that_cannot_work_are_refused(tmp_path: Path) -> None:
    for wrong in ({"flag_file": "a/b"}, {"folder": ""}, {"closed": "never"}, {"notify": ("me",)}):
        with pytest.raises(ConfigurationError, match="ReadinessMarker"):
            ReadinessMarker(**wrong)  # type: ignore[arg-type]
    one = FileNotifier("notices.jsonl")
    assert ReadinessMarker(notify=one).notify == (one,)  # type: ignore[arg-type]
    for url in ("ftp://x", "file:///etc/passwd", "example.com", "http://"):
        with pytest.raises(ConfigurationError, match="WebhookNotifier"):
            WebhookNotifier(url)
    with pytest.raises(ConfigurationError):
        WebhookNotifier("http://x", headers={"Authorization": "secret://vault/x"})


def test_a_notification_is_retried_carries_secrets_and_tells_what_went_wrong(tmp_path: Path, monkeypatch) -> None:
    asked: list[tuple[str | None, dict[str, object]]] = []
    answers = [503, 429, 204, 400, 302]

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.headers["Authorization"], json.loads(body)))
            self.send_response(answers.pop(0))
            self.send_header("Location", "/elsewhere")
            self.send_header("Retry-After", "7")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOOK_TOKEN", "Bearer 7-hush")
    finding = Finding("visits", "changed slice", "visits 2026-01-05 has changed.", slice_id="2026-01-05")
    pauses: list[float] = []
    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/hook"
        hook = WebhookNotifier(url, headers={"Authorization": "secret://env/HOOK_TOKEN"}, sleep=pauses.append)
        hook.within(tmp_path).notify(finding)
        assert pauses == [7.0, 7.0], "as long as the server asks for"
        assert [token for token, _ in asked] == ["Bearer 7-hush"] * 3
        assert (asked[0][1]["slice"], asked[0][1]["id"]) == ("2026-01-05", asked[2][1]["id"])
        for problem in ("HTTP 400", "HTTP 302"):
            with pytest.raises(TargetError, match=problem):
                hook.notify(finding)
        assert len(asked) == 5, "neither is tried again, and nothing is sent elsewhere"
        server.shutdown()
        thread.join()
    with pytest.raises(TargetError, match="cannot be reached"):
        hook.notify(finding)
    assert "hush" not in repr(hook) + hook.name
    FileNotifier("in/notices.jsonl").within(tmp_path).notify(finding)
    FileNotifier("in/notices.jsonl").within(tmp_path).notify(finding)
    lines = (tmp_path / "in" / "notices.jsonl").read_text().splitlines()
    assert [json.loads(line)["dataset"] for line in lines] == ["visits", "visits"]
