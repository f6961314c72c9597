"""A micro-batch on a Spark Connect server: what is sent there, and errors of ours, which come back as words."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lakewright
from lakewright import JsonFiles, KafkaTopic, Latest, Pipeline, Whole, errors, masking
from lakewright.errors import InputError, LakewrightError, LimitExceeded, TargetError
from lakewright.lake.corrections import corrections_of
from lakewright.lake.lake import Lake
from lakewright.model.identity import Identity
from lakewright.model.slices import WHOLE
from lakewright.pipelines.corrections import withdrawn_arrivals
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.harvest import pin
from lakewright.pipelines.streams.server_side import server_side, told_by_server, told_to_client
from lakewright.pipelines.streams.skew import last_delivered
from lakewright.pipelines.workshop import Attempt, Workshop

ELSEWHERE = ("lakewright.cli.templates", "lakewright.__main__", "lakewright.pipelines.airflow.lakewright_airflow")
"""Modules that are no part of this process: of new projects, of Airflow's own."""
# What a constructor is given, by how it declares the parameter. A class that asks for something else says so here.
VALUES: dict[str, Any] = {
    "str": "a word",
    "str | None": "another word",
    "tuple[str | int, ...]": ("one", 2),
    "int": 7,
    "int | None": 8,
    "float | None": 0.5,
    "Sequence[str]": ["one", "two"],
    "Iterable[str]": ["one", "two"],
}


def classes() -> list[type[LakewrightError]]:
    """Every class of ours, wherever it is defined."""
    for module in pkgutil.walk_packages(lakewright.__path__, "lakewright."):
        if not module.name.startswith(ELSEWHERE):
            importlib.import_module(module.name)

    def below(one: type[LakewrightError]) -> Iterator[type[LakewrightError]]:
        yield one
        for child in one.__subclasses__():
            yield from below(child)

    return [one for one in dict.fromkeys(below(LakewrightError)) if one.__module__.startswith("lakewright.")]


def an_error(kind: type[LakewrightError]) -> LakewrightError:
    told = list(inspect.signature(kind).parameters.values())
    plain = {p.name: VALUES[p.annotation] for p in told if p.kind is not p.KEYWORD_ONLY}
    named = {p.name: VALUES[p.annotation] for p in told if p.kind is p.KEYWORD_ONLY}
    return kind(*plain.values(), **named)


def as_spark_tells_it(error: LakewrightError) -> Exception:
    """The words that come back: a trace of the server's Python, with the reason at its end and Java's trace below."""
    with pytest.raises(RuntimeError) as raised, told_to_client():
        raise error
    last = f"{type(raised.value).__name__}: {raised.value}"
    return Exception(f"[STREAM_FAILED] Query terminated: Traceback ...\n{last}\n\tat org.apache.spark.Some.java:1")


def test_every_error_of_ours_comes_back_with_its_class_its_code_its_hint_and_its_facts() -> None:
    seen = classes()
    assert {LimitExceeded, errors.MissingColumnsError, errors.UnknownNameError} <= set(seen)
    for kind in seen:
        error = an_error(kind)
        found = told_by_server(as_spark_tells_it(error))
        assert found is not None, kind
        # A class that only one module knows comes back as the nearest one that callers can know.
        known = next(one for one in kind.__mro__ if getattr(errors, one.__name__, None) is one)
        assert (type(found), found.exit_code, str(found)) == (known, error.exit_code, str(error)), kind
        assert vars(found) == json.loads(json.dumps(vars(error))), kind  # a tuple comes back as a list


def test_the_reason_is_told_and_not_what_caused_it_and_a_message_keeps_its_lines() -> None:
    try:
        raise LimitExceeded("3 of 4 rows\nbroke a rule", dataset="paged", slice_id="arrival-1", share=0.75) from (
            TargetError("something below")
        )
    except LimitExceeded as error:
        words = f"lakewright.errors.TargetError: something below\n\n{as_spark_tells_it(error)}"
    found = told_by_server(Exception(words))
    assert isinstance(found, LimitExceeded)
    assert (found.message, found.share, found.rows) == ("3 of 4 rows\nbroke a rule", 0.75, None)


def test_an_error_that_spark_raised_by_our_code_still_tells_its_class_and_its_first_line() -> None:
    words = "Job aborted\nlakewright.errors.InputError: a row has no 'user'\n\tat org.apache.spark.Some.java:1"
    found = told_by_server(Exception(words))
    assert (type(found), str(found)) == (InputError, "a row has no 'user'")
    assert told_by_server(Exception("java.lang.OutOfMemoryError")) is None


def test_what_carries_an_error_holds_no_secret() -> None:
    masking.remember("swordfish")
    error = LimitExceeded("too many", dataset="by swordfish", slice_id="arrival-1")
    found = told_by_server(as_spark_tells_it(error))
    assert isinstance(found, LimitExceeded)
    assert found.dataset == f"by {masking.MASK}"


class ObjectStore:
    """A session that finds one commit, of a micro-batch, in every log."""

    def __init__(self, batch: int) -> None:
        told = Identity("raw", "arrival-1", 1, "run", details={"generation": 1, "batch": batch})
        self.commit = json.dumps({"commitInfo": {"userMetadata": told.to_json()}})
        self.read = self
        self.is_stopped = False

    def sql(self, asked: str) -> Any:
        assert asked.startswith("DESCRIBE HISTORY delta.`s3a://bucket/lake/bronze/raw`")
        return SimpleNamespace(select=lambda _: SimpleNamespace(first=lambda: [0]))

    def text(self, path: str) -> Any:
        return SimpleNamespace(collect=lambda: [[self.commit]])


def test_a_lake_on_an_object_store_reads_its_logs_in_the_session_of_each_micro_batch() -> None:
    lake = Lake("s3a://bucket/lake", lambda: pytest.fail("no session of this process is sent along"))
    lake.declare({"raw": "bronze"})
    sent = pickle.loads(pickle.dumps(lake))
    for batch in (0, 7):  # the log of a table is kept, and each micro-batch may bring another session
        with sent.lend(ObjectStore(batch)):
            assert last_delivered(sent, "raw", 1) == batch
    with pytest.raises(TargetError, match="has no session of its own"):
        sent.log("raw").exists()


class Indexed:
    """The receipts of a store: which versions of each dataset it knows; of users two arrivals, both corrected."""

    def __init__(self, **versions: range) -> None:
        self.versions = versions

    def last_version(self, name: str, *, below: int | None = None) -> int | None:
        known = self.versions.get(name, range(8))
        return max((one for one in known if below is None or one < below), default=None)

    def last_indexed(self) -> Any:
        return {}

    def live_slices(self, name: str) -> Any:
        return {"arrival-1": None} if name == "users" else {}

    def cells(self, name: str) -> Any:
        return dict.fromkeys((None, "2026-01-01", "@1", "@2")) if name == corrections_of("users") else {}


def sent(receipts: Indexed, *, log_from: int) -> Attempt:
    """As it comes to a server: a stream that looks up users, countries of another target, and regions, an adopted
    table; their logs end at 7.
    """
    log = SimpleNamespace(bounds=lambda: (log_from, 7))
    lake: Any = SimpleNamespace(borrowed={"countries"}, outside=frozenset(), log=lambda name: log)
    visits = Pipeline("visits", start="2026-01-01")
    visits.source("raw", KafkaTopic("broker", "raw"), schema="id string", mode="stream")
    for name in ("users", "countries"):
        visits.source(name, JsonFiles(f"landing/{name}"), schema="id string")
    references: Any = {"users": Whole(), "countries": Latest(), "regions": Whole()}
    visits.add(lambda raw, users, countries, regions: raw, name="seen", mode="stream", inputs=references)
    graph = Graph(visits.datasets, adopted=["regions"])
    shop: Any = Workshop(graph, lake, SimpleNamespace(receipts=receipts), None, "me", Path(), {})  # type: ignore[arg-type]
    there = server_side(Attempt(shop, graph["seen"], WHOLE, "*", None, 1, 1))  # type: ignore[arg-type]
    return replace(there, shop=replace(there.shop, store=pickle.loads(pickle.dumps(there.shop.store))))


def test_a_reference_is_read_on_a_server_after_its_log_was_cleaned_and_of_another_target_as_it_was_indexed() -> None:
    receipts = Indexed(users=range(8), countries=range(6))
    for log_from in (0, 3):
        shop = sent(receipts, log_from=log_from).shop
        assert pin(shop.lake, shop.store, "users") == 7
        assert pin(shop.lake, shop.store, "countries") == 5
        # A correction of an arrival that was rolled back does not count there either.
        assert withdrawn_arrivals(shop.store, "users") == [2]
    # What had gone from the log before anybody looked is refused before it is sent: there, nobody would know.
    with pytest.raises(TargetError, match="users: its versions 2 to 2 are gone from the log"):
        sent(Indexed(users=range(2), countries=range(6)), log_from=3)
