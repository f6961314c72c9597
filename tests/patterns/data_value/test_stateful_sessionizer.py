"""Stateful Sessionizer: the state without Spark, and streams of files by both engines."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patterns.error_management.streams import land_batches, run_to_end, state_of, stream_of

from lakewright.errors import ConfigurationError
from lakewright.patterns.data_value.incremental_sessionizer import build_sessions
from lakewright.patterns.data_value.session_arrow import Rules
from lakewright.patterns.data_value.session_fold import Visit, fold
from lakewright.patterns.data_value.session_state import EntityState, StateRules
from lakewright.patterns.data_value.sessions import Sessions
from lakewright.patterns.data_value.stateful_sessionizer import build_sessions_on_stream, stream_engine

RULES = Rules(keys=1, gap=10, carried=1, aggregates=(("collect", 0), ("last", 0)))
LATENESS = 5
END = 10_000


def run(batches, told):
    """What comes out of the state of one entity by micro-batch, as Spark calls it: (batch, start, events, final)."""
    state, seen, out = EntityState(), 0, []
    late, watermark = 0, 0
    for number, visits in enumerate([*batches, [], []]):
        if number > len(batches):
            seen = END
        late, watermark = watermark, max(watermark, seen - LATENESS)
        new = [visit for visit in visits if not late or visit.at > late]
        if new or state.next_look(told) is not None:
            out += [(number, one.start, one.aggregates[0], final) for one, final in state.advance(new, watermark, told)]
            state = EntityState.parse(state.text())
        seen = max([seen, *(visit.at for visit in visits)])
    assert state.next_look(told) is None, "nothing is left behind"
    return out


@settings(deadline=None, max_examples=100)
@given(
    steps=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 4), st.booleans(), st.sampled_from("xy")), max_size=20),
    rules=st.builds(replace, st.just(RULES), ends=st.booleans(), max_duration=st.none() | st.integers(10, 30),
                    max_events=st.integers(1, 4)),
    size=st.integers(1, 4),
)  # fmt: skip
def test_visits_that_come_out_of_order_within_the_lateness_give_the_sessions_of_their_order(steps, rules, size):
    at, visits = 100, []
    for step, back, ends, page in steps:
        at += step
        visits.append(Visit(at - back, rules.gap, rules.ends and ends, [page]))
    told = StateRules(rules, ("string",), by_watermark=False, partial=True)
    out = run([visits[n : n + size] for n in range(0, len(visits), size)], told)
    over, going_on = fold(None, sorted(visits, key=lambda one: (one.at, one.ends, one.values)), rules)
    expected = [(one.start, one.aggregates[0]) for one in [*over, *([going_on] if going_on else [])]]
    assert [(start, pages) for _, start, pages, final in out if final] == expected
    # What is told of a session before it is over has its start, and grows.
    for _, start, pages, final in out:
        if not final:
            (whole,) = {tuple(known) for begun, known in expected if begun == start}
            assert whole[: len(pages)] == tuple(pages)


SCHEMA = "user string, at timestamp, page string, gap int"


def visit(user, at, page="/", gap=None):
    return {"user": user, "at": f"2026-01-05T{at}Z", "page": page, "gap": gap}


@pytest.mark.shows("05.stateful-sessionizer", 1)
def test_when_a_session_goes_out_depends_on_what_its_expiry_is_counted_from(spark, tmp_path):
    # By the watermark A expires at 10:10, ten minutes after the one at which its last visit came; by its visits, 10:18.
    times = [("A", "10:00"), ("A", "10:01"), ("A", "10:08"), ("B", "10:15"), ("B", "10:20")]
    land_batches(tmp_path / "in", [[visit(user, f"{at}:00")] for user, at in times])
    declared = Sessions(keys=["user"], gap="10 minutes", time="at", lateness="1 minute", last={"exit": "page"})
    kept = {}
    for number, rules in enumerate((replace(declared, partial=True), replace(declared, expiry="watermark"))):
        assert stream_engine(rules) == "state"
        frame = build_sessions_on_stream(stream_of(spark, tmp_path / "in", SCHEMA), sessions=rules).where("is_final")
        query = frame.writeStream.format("memory").queryName(f"gone_out_{number}").trigger(availableNow=True).start()
        query.awaitTermination()
        out = spark.table(f"gone_out_{number}").select("user", "events", "duration_seconds", "exit")
        assert [tuple(row) for row in out.collect()] == [("A", 3, 480.0, "/")]
        kept[rules.expiry] = state_of([json.loads(told.json) for told in query.recentProgress], "numRowsTotal")
    # The entities in the state: A goes with the watermark of 10:14 (B at 10:15), or with that of 10:19 (B at 10:20).
    assert kept == {"watermark": [1, 1, 1, 2, 1, 1], "event time": [1, 1, 1, 2, 2, 1]}


@pytest.mark.shows("05.stateful-sessionizer", 2, 3, 5)
def test_session_windows_give_the_sessions_that_batch_gives_on_the_same_visits(spark, tmp_path, capsys):
    declared = Sessions(
        keys=["user"], gap="20 minutes", time="at", gap_by="gap", collect={"pages": "page"}, first={"entry": "page"},
        last={"exit": "page"}, max={"longest": "gap"}, max_events=3, lateness="15 minutes",
    )  # fmt: skip
    assert stream_engine(declared) == "session window"
    batches = [
        [visit("u1", "10:00:00", "/"), visit("u1", "10:19:00", "/b"), visit("u2", "10:00:00", "/", 300),
         visit("u5", "10:00:00", "/", 0)],  # a gap of nothing: it is alone, and not lost
        # Out of order: it joins its session in its place. Two of one moment keep one order.
        [visit("u1", "10:10:00", "/a"), visit("u1", "10:40:00.000001", "/d"), visit("u2", "10:06:00", "/x", 300),
         visit("u3", "10:30:00", "/z"), visit("u3", "10:30:00", "/y")],
        [visit("u1", "10:41:00", "/e"), visit("u1", "10:42:00", "/f"), visit("u1", "10:43:00", "/g")],
        [visit("u4", "12:00:00", "/")],
    ]  # fmt: skip
    land_batches(tmp_path / "in", batches)
    stream = stream_of(spark, tmp_path / "in", SCHEMA)
    sessions = build_sessions_on_stream(stream, sessions=declared)
    sessions.explain()
    assert "collect_list" not in capsys.readouterr().out, "a session that never ends would be held whole"
    run_to_end(sessions, tmp_path / "checkpoint", into=tmp_path / "out")
    out = spark.read.format("delta").load(str(tmp_path / "out"))
    at_once = build_sessions(
        spark.read.schema(SCHEMA).json(str(tmp_path / "in")), sessions=declared, until="2026-01-05T11:45"
    ).completed
    assert out.columns == at_once.columns
    found = sorted(out.collect(), key=str)
    assert found == sorted(at_once.collect(), key=str)
    assert sorted((row["user"], row["pages"], row["duration_seconds"], row["truncated"]) for row in found) == [
        ("u1", ["/", "/a", "/b"], 1140.0, False), ("u1", ["/d", "/e", "/f"], 179.999999, True),
        ("u2", ["/"], 0.0, False), ("u2", ["/x"], 0.0, False), ("u3", ["/y", "/z"], 0.0, False),
        ("u5", ["/"], 0.0, False),
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="no stream"):
        build_sessions_on_stream(at_once, sessions=declared)
    nested = stream.selectExpr("*", "array(page) AS pages_read")
    with pytest.raises(ConfigurationError, match="keeps visits as text"):
        build_sessions_on_stream(nested, sessions=replace(declared, partial=True, last={"exit": "pages_read"}))
