"""What a stream may follow, and by which writer: refused when the file is loaded, with what to do instead."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from lakewright import JsonFiles, KafkaTopic, Merger, Pipeline, StatefulMerger
from lakewright.errors import ConfigurationError, DefinitionError
from lakewright.model.references import Lookback, Pinned, Previous, SameSlice, Whole
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.streams.rewind import _refuse_states_below as refuse_states_below
from lakewright.pipelines.streams.rewind import _refuse_streams_below as refuse_streams_below

SCHEMA = "id string, at timestamp"


def two_streams():
    visits = Pipeline("visits", schedule="@daily", start="2026-01-01")
    for name in ("raw", "ads"):
        visits.source(name, KafkaTopic("broker", name), schema=SCHEMA, event_time="at", mode="stream")
    return visits


def refused(visits):
    with pytest.raises(DefinitionError) as found:
        Graph(visits.datasets)
    assert str(found.value.file).endswith("test_stream_rules.py")
    assert found.value.line
    return found.value


@pytest.mark.parametrize(("inputs", "count"), [({}, 2), ({"raw": Whole(), "ads": Whole()}, 0)])
def test_a_stream_follows_one_input(inputs, count):
    visits = two_streams()

    @visits.dataset(mode="stream", event_time="at", inputs=inputs)
    def seen(raw, ads):
        return raw

    error = refused(visits)
    assert f"seen is a stream with {count} inputs that it follows (raw, ads); it follows one." in error.message
    assert "inputs={'ads': Whole()}" in error.hint


@pytest.mark.parametrize("reference", [SameSlice(), Lookback("2 days"), Pinned()], ids=lambda one: type(one).__name__)
def test_a_stream_reads_no_input_by_slices(reference):
    visits = two_streams()

    @visits.dataset(mode="stream", event_time="at", inputs={"ads": reference})
    def seen(raw, ads):
        return raw

    error = refused(visits)
    name = type(reference).__name__
    assert f"seen is a stream, which has no slices: ads cannot be read by {name}()." in error.message
    assert error.hint == "Read it whole, or as of a column."


def test_a_stream_does_not_read_its_own_earlier_slices():
    visits = two_streams()

    @visits.dataset(mode="stream", event_time="at", inputs={"seen": Previous()})
    def seen(raw, seen):
        return raw

    assert "no slices: seen cannot be read by Previous()" in refused(visits).message


@pytest.mark.parametrize("above", ["replaced", "merged"])
def test_a_stream_that_only_adds_rows_follows_only_one_that_only_adds_rows(above):
    visits = two_streams()
    if above == "replaced":
        visits.sql("daily", "SELECT id, count(*) AS visits FROM raw GROUP BY 1", inputs={"raw": Whole()})
    else:
        visits.add(lambda raw: raw, name="daily", mode="stream", writer=Merger(keys=["id"]))

    @visits.dataset(mode="stream")
    def added(daily):
        return daily

    error = refused(visits)
    assert "added adds rows and never removes any, but daily is replaced or merged" in error.message
    assert "Give it writer=Merger(keys=[...])" in error.hint


def test_only_a_source_that_can_be_followed_is_read_as_a_stream():
    visits = two_streams()
    with pytest.raises(ConfigurationError, match="JsonFiles cannot be read as a stream") as found:
        visits.source("files", JsonFiles("landing/visits"), schema=SCHEMA, event_time="at", mode="stream")
    assert 'Leave mode="stream" out: each run takes what is new.' in str(found.value)


@pytest.mark.parametrize(("inputs", "follows"), [({"ads": Whole()}, True), ({"raw": Whole()}, False)])
def test_a_rewind_asks_for_the_streams_that_follow_the_dataset_and_not_for_those_that_refer_to_it(inputs, follows):
    visits = two_streams()

    @visits.dataset(mode="stream", event_time="at", inputs=inputs)
    def seen(raw, ads):
        return raw

    shop: Any = SimpleNamespace(graph=Graph(visits.datasets))
    with patch("lakewright.pipelines.streams.rewind.checkpoint_has_begun", return_value=True):
        refused = pytest.raises(ConfigurationError, match="seen adds the rows of raw") if follows else nullcontext()
        with refused:
            refuse_streams_below(shop, shop.graph["raw"], ("seen",))


@pytest.mark.parametrize(
    ("writer", "inputs", "refused"),
    [
        (Merger(keys=["id"]), {"counts": Previous()}, True),
        (Merger(keys=["id"]), {}, False),
        (StatefulMerger(keys=["id"]), {"counts": Previous()}, False),
    ],
    ids=["into what it was made of", "by key", "goes back"],
)
def test_a_rewind_is_refused_where_what_is_read_again_would_count_twice(writer, inputs, refused):
    visits = two_streams()

    def counts_of_before(raw, counts):
        return raw

    visits.add(counts_of_before if inputs else (lambda raw: raw), name="counts", writer=writer, inputs=inputs)
    receipts = SimpleNamespace(live_slices=lambda name: {"arrival-1000000000": None})
    shop: Any = SimpleNamespace(graph=Graph(visits.datasets), store=SimpleNamespace(receipts=receipts))
    refusal = pytest.raises(ConfigurationError, match="count twice") if refused else nullcontext()
    with refusal as told:
        refuse_states_below(shop, shop.graph["raw"], ("counts",))
    assert not refused or "StatefulMerger" in told.value.hint
