"""A Connect server, or the store, that goes away: what that costs a run, and a look. No Spark, and no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakewright.errors import TargetError
from lakewright.lake.sessions import ChildSessions
from lakewright.model.runs import Run
from lakewright.patterns.data_flow.concurrent_runner import ConcurrentRunner
from lakewright.patterns.data_flow.single_runner import SingleRunner
from lakewright.pipelines.decide import Decider, Wish
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.progress import RunSummary
from lakewright.pipelines.runner import Runner, _Watch
from lakewright.pipelines.workshop import Made, Workshop
from lakewright.runtime.session import stop_session
from lakewright.store import Store, open_store, this_process
from tests.pipelines.lab import lab
from tests.pipelines.test_turns import AnySource

NOW = datetime(2026, 1, 9, 12, tzinfo=UTC)
GONE = "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE"


class FakeLake:
    """A lake behind a Connect server that is there or not; it counts how often it is asked for."""

    borrowed: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()

    def __init__(self, *, answers: bool) -> None:
        self.answers, self.looks = answers, 0
        self.fenced: list[str] = []

    def session(self) -> Any:
        return SimpleNamespace(addTag=lambda tag: None, clearTags=lambda: None)

    def renew_session(self) -> None: ...

    def fence(self, tables: Any, fence: Any, parts: Any) -> None:
        self.fenced.append(fence.slice_id)

    def log(self, name: str) -> Any:
        return SimpleNamespace(bounds=lambda: (None, None))

    def has_lost_java(self) -> bool:
        return False

    def has_lost_server(self) -> bool:
        self.looks += 1
        return not self.answers


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


@pytest.fixture
def run(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunSummary]:
    """Six days to make, two at a time, and a step below; each try fails or not as ``make`` does."""
    visits = Pipeline("visits", start="2026-01-01")
    visits.source("raw", AnySource(), schema="at timestamp", event_time="at")  # type: ignore[arg-type]
    visits.sql("free", "SELECT * FROM raw", event_time="at", retries=2)
    visits.sql("other", "SELECT * FROM raw", event_time="at", retries=2)
    visits.sql("below", "SELECT * FROM free", event_time="at")
    known = lab(store, visits)
    known.arrive("raw", *(f"2026-01-{number:02d}" for number in range(1, 7)))

    def start(lake: FakeLake, make: Callable[..., Made], names: tuple[str, ...] = ("free", "below")) -> RunSummary:
        monkeypatch.setattr("lakewright.pipelines.runner.maker_of", lambda dataset: make)
        monkeypatch.setattr("lakewright.pipelines.runner.pin", lambda *_: None)
        owner = Run("by hand", "visits", NOW)
        shop = Workshop(known.graph, cast(Any, lake), store, owner, "me", Path(), {}, now=lambda: NOW)
        decider = Decider(known.graph, store, dict.fromkeys(known.graph.datasets, "code"))
        return Runner(shop, decider, parallel=2, take_new=False, backoff_seconds=0).run(names, Wish(NOW))

    return start


def test_a_server_that_stays_away_ends_the_run_and_is_not_waited_for_slice_by_slice(
    run: Callable[..., RunSummary],
) -> None:
    tries: list[str] = []

    def make(shop: Any, dataset: Any, state: Any, *, attempt: int) -> Made:
        tries.append(state.slice.id)
        raise RuntimeError(GONE)

    lake = FakeLake(answers=False)
    summary = run(lake, make, ("free", "other", "below"))
    assert len(tries) == len(set(tries)) <= 2, "what was under way, and nothing twice"
    assert lake.looks == 1
    assert (summary.state, sorted(summary.failed), summary.skipped) == ("failed", ["free", "other"], ["below"])
    assert all("the Spark Connect server went away" in str(error) for error in summary.errors)
    assert [note.message for note in summary.notes if note.severity == "warning"] == [
        "The Spark Connect server does not answer any more: the run ends here."
    ]


def test_a_server_that_was_started_again_is_worth_the_retries(run: Callable[..., RunSummary]) -> None:
    tries: list[tuple[str, int]] = []

    def make(shop: Any, dataset: Any, state: Any, *, attempt: int) -> Made:
        tries.append((state.slice.id, attempt))
        if attempt < 3:
            raise RuntimeError(GONE)
        return Made(())

    lake = FakeLake(answers=True)
    summary = run(lake, make, ("free",))
    assert (summary.state, len(tries), lake.looks) == ("ok", 18, 12)


@pytest.mark.parametrize("runs", [SingleRunner(), ConcurrentRunner(limit=2)], ids=lambda one: type(one).__name__)
def test_what_could_not_be_given_back_while_the_store_was_away_is_fenced_by_the_next_attempt(
    runs: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits = Pipeline("visits", start="2026-01-01", runs=runs)
    visits.source("raw", AnySource(), schema="at timestamp", event_time="at")  # type: ignore[arg-type]
    visits.sql("free", "SELECT * FROM raw", event_time="at", retries=1)
    known = lab(store, visits)
    known.arrive("raw", "2026-01-01")
    away = TargetError("the store cannot be reached")
    away.__cause__ = ConnectionError("Connection refused")
    leases, answers = store.leases, {"begin": [], "finish": [away, away], "release": [away]}
    begin, finish, release, acquire = store.begin_step, store.finish_step, leases.release, leases.acquire

    def unless_away(what: str, work: Callable[..., Any], *, first: bool = False) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if not answers[what]:
                return work(*args, **options)
            if first:  # it was written, and the answer was lost
                work(*args, **options)
            raise answers[what].pop()

        return call

    monkeypatch.setattr(store, "begin_step", unless_away("begin", begin, first=True))
    monkeypatch.setattr(store, "finish_step", unless_away("finish", finish))
    monkeypatch.setattr(leases, "release", unless_away("release", release))

    def make(shop: Workshop, dataset: Any, state: Any, *, attempt: int) -> Made:
        with shop.attempt(dataset, state.slice, attempt=attempt, reason="due") as current:
            return current.finish(())

    def look(shop: Workshop, dataset: Any) -> None:
        grant = acquire("source:raw", "*", owner_id="me", run_id=None, now=NOW)
        leases.release(grant.dataset, grant.slice_id, grant.number)

    monkeypatch.setattr("lakewright.pipelines.runner.maker_of", lambda dataset: make)
    monkeypatch.setattr("lakewright.pipelines.runner.record_arrivals", look)
    monkeypatch.setattr("lakewright.pipelines.runner.pin", lambda *_: None)
    leases.register(replace(this_process(), owner_id="me"), timedelta(minutes=1), NOW)
    lake = FakeLake(answers=True)
    shop = Workshop(
        known.graph, cast(Any, lake), store, Run("by hand", "visits", NOW), "me", Path(), {}, now=lambda: NOW
    )
    decider, stop, found = Decider(known.graph, store, dict.fromkeys(known.graph.datasets, "code")), Event(), []

    def run() -> None:
        runner = Runner(shop, decider, stop=stop, backoff_seconds=0)
        found.append(runner.run(["raw", "free"], Wish(NOW)))

    def in_time() -> RunSummary:
        thread = Thread(target=run, daemon=True)
        thread.start()
        thread.join(20)
        stop.set()  # a run that waits for itself would wait for ever
        thread.join()
        stop.clear()
        return found[-1]

    made = [("raw", "ok", 2), ("free", "ok", 1)]
    assert [(one.dataset, one.state, one.attempts) for one in in_time().outcomes] == made
    assert lake.fenced == ["arrival-1"]
    # The same where the step had begun, and only the answer was lost.
    answers["begin"].append(away)
    assert [(one.dataset, one.state, one.attempts) for one in in_time().outcomes] == made
    assert lake.fenced == ["arrival-1"] * 2


def test_a_server_that_cannot_be_asked_to_interrupt_a_step_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, twice, lost = [], Event(), []
    monkeypatch.setattr("threading.excepthook", lost.append)

    def interrupt(tag: str) -> None:
        asked.append(tag)
        if len(asked) == 2:
            twice.set()
        raise RuntimeError(GONE)

    watch = _Watch(interrupt, "a step", 0.0)
    assert twice.wait(3)
    watch.end()
    assert lost == []
    assert watch.fired.is_set()


class FakeClient:
    """The client of a session that is gone: it notes with which patience it was asked."""

    def __init__(self, asked: list[int]) -> None:
        self._builder = SimpleNamespace(_params={})
        self._asked, self._policies = asked, ["for a minute"]

    def get_retry_policies(self) -> list[Any]:
        return self._policies

    def set_retry_policies(self, policies: list[Any]) -> None:
        self._policies = policies

    def ask(self) -> None:
        self._asked.append(sum(getattr(policy, "max_retries", 99) for policy in self._policies))
        raise RuntimeError(GONE)


class FakeSession:
    """A Connect session as far as `ChildSessions` and `stop_session` use one."""

    asked: list[int] = []  # noqa: RUF012
    answers = True
    builder: Any

    def __init__(self) -> None:
        self.client, self.is_stopped = FakeClient(self.asked), False
        self.conf = SimpleNamespace(getAll={}, set=lambda name, value: None)

    @property
    def version(self) -> str:
        if not self.answers:
            self.client.ask()
        return "4.2.0"

    def stop(self) -> None:
        if not self.answers:
            self.asked.append(sum(getattr(policy, "max_retries", 99) for policy in self.client.get_retry_policies()))
        self.is_stopped = True


def test_whether_the_server_is_there_is_asked_by_a_short_look_and_letting_go_of_a_session_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("grpc")
    builder = SimpleNamespace(channelBuilder=lambda channel: SimpleNamespace(create=FakeSession))
    monkeypatch.setattr(FakeSession, "builder", builder, raising=False)
    monkeypatch.setattr(FakeSession, "asked", [])
    parent: Any = FakeSession()
    children = ChildSessions(lambda: parent)
    children.mine()
    assert not children.has_lost_server()
    monkeypatch.setattr(FakeSession, "answers", False)
    assert children.has_lost_server()
    assert FakeSession.asked == [4, 0], "a few tries, and none to let the asking session go"
    stop_session(parent)
    assert FakeSession.asked == [4, 0, 0]
