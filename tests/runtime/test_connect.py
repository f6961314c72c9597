"""Spark Connect: child sessions, a server that is not as it should be, and one that is killed in the middle of a run.

All but the first few need `--engine connect`: PySpark has one engine per process.
"""

from __future__ import annotations

import threading
import traceback
from pathlib import Path
from typing import Any

import pyspark
import pytest
from tests.pipelines.shop import land, made, ok, order, rows_of

from lakewright.errors import ConfigurationError, TargetError
from lakewright.lake.delta_errors import explain_lost_server, is_transient
from lakewright.lake.sessions import ChildSessions
from lakewright.masking import mask
from lakewright.runtime import connect
from lakewright.runtime.secret_settings import TEXT_REDACTION
from lakewright.runtime.services import up
from lakewright.runtime.services.ports import free_port
from lakewright.runtime.services.processes import this_process
from lakewright.runtime.session import spark_session, stop_session
from lakewright.runtime.settings import Target, load_settings

ZONE = "spark.sql.session.timeZone"
METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@pytest.mark.parametrize(
    "text",
    [
        "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE",
        "[NO_ACTIVE_SESSION] No active Spark session found.",
        "[RESPONSE_ALREADY_RECEIVED] INVALID_HANDLE.SESSION_NOT_FOUND on the server but responses were received.",
        "[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid.",
        "Received incorrect server side session identifier for request. Please create a new Spark Session (a != b)",
    ],
)
def test_a_lost_server_is_worth_another_try_and_has_a_kind_word(text: str) -> None:
    assert is_transient(RuntimeError(text))
    assert "went away" in str(explain_lost_server(RuntimeError(text), what="clean 2026-01-01"))
    assert explain_lost_server(RuntimeError("[DIVIDE_BY_ZERO] Division by zero."), what="clean") is None


@pytest.mark.connect_only
def test_a_server_that_does_not_answer_is_told_of_at_once_and_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "Gt63-token")
    target = Target.at(tmp_path, name="prod", master=f"sc://127.0.0.1:{free_port()}/;user_id=hidden")
    with pytest.raises(TargetError, match="No Spark Connect server answers at sc://127") as told:
        spark_session(target)
    assert "services up connect" in str(told.value)
    assert "hidden" not in str(told.value)
    monkeypatch.setenv("SPARK_TOKEN", "Gt62-token")
    with pytest.raises(ConfigurationError, match="no address of a Spark Connect server") as wrong:
        spark_session(Target.at(tmp_path, master="sc://127.0.0.1:1/path;token=secret://env/SPARK_TOKEN"))
    assert "Gt62" not in "".join(traceback.format_exception(wrong.value))
    assert mask("Bearer Gt63-token") == "Bearer ***"


@pytest.mark.connect_only
def test_a_server_of_another_release_or_without_delta_is_refused(
    connect_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target.at(tmp_path, master=connect_url)
    with monkeypatch.context() as other:
        other.setattr(pyspark, "__version__", "5.0.1")
        with pytest.raises(ConfigurationError, match=r"runs Spark 4\.2\.0, and Lakewright needs Spark 5\.0\.1"):
            spark_session(target)
    monkeypatch.setitem(connect.DELTA_SETTINGS, "spark.sql.extensions", "io.delta.Other")
    with pytest.raises(
        ConfigurationError, match=r"does not know Delta Lake: spark\.sql\.extensions is not set"
    ) as told:
        spark_session(target)
    assert "spark.sql.extensions=io.delta.Other" in str(told.value)


@pytest.mark.connect_only
def test_each_thread_has_a_child_that_speaks_as_its_parent_and_the_server_keeps_none(
    connect_url: str, tmp_path: Path
) -> None:
    parent: Any = spark_session(Target.at(tmp_path, master=connect_url, spark={"spark.sql.ansi.enabled": "false"}))
    parent.conf.set("spark.sql.shuffle.partitions", "7")
    parent.conf.set("spark.shop.region", "eu")
    parent.conf.set(METADATA, "not for children")
    children = ChildSessions(lambda: parent)
    mine: Any = children.mine()
    assert mine is children.mine()
    assert (mine.conf.get("spark.sql.shuffle.partitions"), mine.conf.get("spark.sql.ansi.enabled")) == ("7", "false")
    assert mine.conf.get("spark.shop.region", None) == "eu", "a setting of a project's own, which Spark does not know"
    assert mine.conf.get(TEXT_REDACTION) == parent.conf.get(TEXT_REDACTION)
    assert (mine.conf.get(ZONE), mine.conf.get(METADATA, None)) == ("UTC", None)
    others: list[Any] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: others.append(children.mine()))
        thread.start()
        thread.join()
    assert len({mine.session_id, parent.session_id, *(other.session_id for other in others)}) == 4
    assert [other.is_stopped for other in others] == [True, False], "one whose thread has ended is let go of"
    children.renew()
    assert children.mine() is not mine
    children.close()
    assert mine.is_stopped
    assert others[1].is_stopped
    assert not parent.is_stopped
    parent.stop()


REQUEST = """
    read { data_source { options {
      key: "PassWord"
      value: "Rq71 \\"and\\" more"
    }
    options {
      key: "ssl.keystore.key"
      value: "Rq72"
    }
    options {
      key: "user"
      value: "blog"
    } } }
"""


@pytest.mark.connect_only
def test_a_server_hides_the_secret_options_of_the_requests_that_it_notes(connect_url: str, tmp_path: Path) -> None:
    (tmp_path / "lakewright.toml").write_text(
        f"""name = "shop"
        [connections.broker]
        url = "kafka://one:9092"
        options = {{ "spark.ssl.keystore.key" = "secret://env/KEY", "sasl.password" = "secret://env/PASSWORD" }}
        [targets.dev]
        master = "{connect_url}"
        [targets.dev.spark]
        "spark.sql.redaction.string.regex" = "own-rule"
        """
    )
    session: Any = spark_session(load_settings(tmp_path, environ={}).target)
    pattern = session.conf.get(TEXT_REDACTION)
    texts = session.createDataFrame([(REQUEST, pattern)], "request string, pattern string")
    noted = texts.selectExpr("regexp_replace(request, pattern, '***')").first()[0]
    session.stop()
    assert "Rq7" not in noted
    assert noted.count("***") == 2
    assert 'value: "blog"' in noted
    assert pattern.startswith("own-rule|")


FLAKY = """
    from lakewright import JsonFiles, Pipeline
    import lakewright.testing.trouble as trouble

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at")
    def clean(orders):
        trouble.strike()
        return orders
"""


@pytest.mark.connect_only
def test_a_server_that_is_killed_in_a_step_costs_a_retry_or_a_run_and_no_row(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal
    import sys
    import types

    from lakewright.pipelines.project import Project
    from lakewright.runtime.services import processes

    services = tmp_path / "services"

    def start() -> Any:
        return up(services, ["connect"], only_while=this_process())[0]

    def kill() -> None:
        server = processes.identify(running[-1].pid)
        processes.send(server, signal.SIGKILL)
        processes.wait_until_gone([server], 30)

    def session() -> Any:
        return spark_session(Target.at(tmp_path, master=running[-1].address.url))

    def restart() -> None:
        """Comes back while the step, which goes on, already asks for it."""
        kill()
        coming.append(threading.Thread(target=lambda: running.append(start())))
        coming[-1].start()

    running, coming = [start()], list[threading.Thread]()
    strikes = [restart]
    trouble = types.SimpleNamespace(strike=lambda: strikes.pop()() if strikes else None)
    monkeypatch.setitem(sys.modules, "lakewright.testing.trouble", trouble)
    home = project({"pipelines/shop.py": FLAKY}).folder
    land(home, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    patient = session()  # as every session of the product is: it asks for a minute, and meets another server
    with Project(home, spark=patient) as shop:
        summary: Any = ok(shop.run(at="2026-01-02"))
        assert made(summary) == {("orders", "arrival-1"), ("clean", "2026-01-01")}
        assert [outcome.attempts for outcome in summary.made if outcome.dataset == "clean"] == [2]
    stop_session(patient)
    coming[0].join()

    impatient = session()
    impatient.client.set_retry_policies([])  # what is gone is gone
    with Project(home, spark=impatient) as shop:
        land(home, "d2.json", [order("b", f"2026-01-0{day}T10:00:00Z") for day in (2, 3, 4)])
        strikes.append(kill)
        failed: Any = shop.run(at="2026-01-05", parallel=1)
        assert (failed.state, len(failed.errors)) == ("failed", 1), "no other slice waits for a server that is gone"
        assert "the Spark Connect server went away" in str(failed.errors[0])
        assert "lakewright run` goes on" in str(failed.errors[0])

    # The next run goes on, on another server.
    again = project()
    ok(again.run(at="2026-01-05"))
    assert [row["order_id"] for row in rows_of(again, "clean")] == ["a", "b", "b", "b"]
    assert again.store.steps.open_steps() == []
