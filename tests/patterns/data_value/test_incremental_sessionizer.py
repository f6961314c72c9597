"""Incremental Sessionizer on frames, and the rules of a session without Spark."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.failpoints import arm
from lakewright.patterns.data_value.incremental_sessionizer import (
    build_sessions,
    keep_final_sessions,
    split_unusable_visits,
)
from lakewright.patterns.data_value.session_arrow import Rules, sessions_of
from lakewright.patterns.data_value.session_bursts import BurstRows, has_bursts
from lakewright.patterns.data_value.session_fold import Visit, fold
from lakewright.patterns.data_value.session_frames import layout_of
from lakewright.patterns.data_value.session_repair import repair_sessions
from lakewright.patterns.data_value.sessions import Sessions
from lakewright.patterns.idempotency.data_overwrite import overwrite_slice

RULES = Rules(
    keys=1, gap=10, carried=2,
    aggregates=(("collect", 0), ("first", 0), ("last", 0), ("sum", 1), ("min", 1), ("max", 1)),
)  # fmt: skip
VISITS = st.tuples(
    st.sampled_from("abc"), st.integers(0, 80), st.integers(0, 10), st.booleans(), st.sampled_from("xyz"),
    st.none() | st.integers(-3, 3),
)  # fmt: skip
STATE = pa.struct([(f"o{n}", pa.int64()) for n in range(4)] + [("o4", pa.list_(pa.string()))]
                  + [(f"o{n}", pa.string()) for n in (5, 6)] + [(f"o{n}", pa.int64()) for n in (7, 8, 9)])  # fmt: skip


def batch_of(rows, rules):
    """Sorted rows (visits, or sessions that are open) as the engine is given them."""
    columns = [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows], pa.int64())]
    if rules.own_gaps:
        columns.append(pa.array([row[2] for row in rows], pa.int64()))
    if rules.ends:
        columns.append(pa.array([row[3] for row in rows], pa.bool_()))
    columns += [pa.array([row[4] for row in rows], pa.string()), pa.array([row[5] for row in rows], pa.int64())]
    if rules.reopens:
        columns.append(pa.array([row[6] if len(row) > 6 else None for row in rows], STATE))
    return pa.RecordBatch.from_arrays(columns, names=[str(place) for place in range(len(columns))])


def engine(rows, rules, size, batch=batch_of, of=None):
    """Entity -> its sessions as plain lists, and whether each is over; the rows come ``size`` at a time."""
    batches = (batch(rows[at : at + size], rules) for at in range(0, len(rows), size))
    found: dict[str, list[list[object]]] = {}
    for made in sessions_of(batches, rules, of):
        for row in zip(*(column.to_pylist() for column in made.columns), strict=True):
            found.setdefault(row[0], []).append(list(row[1:]))
    return found


def by_rule(rows, rules):
    """The same by the rules, one visit after the other."""
    found = {}
    for key in sorted({row[0] for row in rows}):
        visits = [Visit(row[1], row[2] if rules.own_gaps else rules.gap, rules.ends and row[3], row[4:6])
                  for row in rows if row[0] == key]  # fmt: skip
        over, going_on = fold(None, visits, rules)
        found[key] = [[s.start, s.end, s.expiry, s.events, *s.aggregates, True] for s in over]
        if going_on is not None:
            s = going_on
            found[key].append([s.start, s.end, s.expiry, s.events, *s.aggregates, False])
    return found


@settings(deadline=None, max_examples=200)
@given(
    rows=st.lists(VISITS, max_size=30),
    rules=st.builds(replace, st.just(RULES), own_gaps=st.booleans(), ends=st.booleans(),
                    max_duration=st.none() | st.integers(10, 30), max_events=st.integers(1, 4)),
    size=st.integers(1, 9),
    cut=st.integers(0, 90),
)  # fmt: skip
def test_the_engine_keeps_the_rules_however_the_visits_are_cut(rows, rules, size, cut):
    rows = sorted(
        rows, key=lambda row: (row[0], row[1], rules.ends and row[3], row[4], row[5] is not None, row[5] or 0)
    )
    expected = by_rule(rows, rules)
    assert engine(rows, rules, size) == expected
    # In two slices: what is open at the cut is a row of the second.
    before = engine([row for row in rows if row[1] < cut], rules, size)
    over = {key: [one for one in made if one[-1] or one[2] < cut] for key, made in before.items()}
    opened = [(key, one[0], None, None, None, None, {f"o{n}": value for n, value in enumerate(one[:-1])})
              for key, made in before.items() for one in made if not (one[-1] or one[2] < cut)]  # fmt: skip
    later = sorted([*opened, *(row for row in rows if row[1] >= cut)], key=lambda row: (row[0], row[1]))
    after = engine(later, replace(rules, reopens=True), size)
    both = {key: over.get(key, []) + after.get(key, []) for key in expected}
    assert {key: [one[:-1] for one in made] for key, made in both.items()} == {
        key: [one[:-1] for one in made] for key, made in expected.items()
    }


def bursts_of(rows, gap):
    """One row for each entity and stretch: key, start, end, events, sum, least and greatest value, expiry."""
    stretches: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
    for row in rows:
        stretches.setdefault((row[0], row[1] // gap), []).append(row)
    times = {at: [row[1] for row in held] for at, held in stretches.items()}
    values = {at: [row[2] for row in held] for at, held in stretches.items()}
    return [
        (at[0], min(times[at]), max(times[at]), len(held), sum(values[at]), min(values[at]), max(values[at]),
         max(times[at]) + gap)
        for at, held in stretches.items()
    ]  # fmt: skip


def batch_of_bursts(rows, rules):
    columns = list(zip(*rows, strict=True))[: 8 if rules.reopens else 7]
    arrays = [pa.array(column, pa.int64() if place else pa.string()) for place, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, names=[str(place) for place in range(len(arrays))])


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-40, 40), st.integers(-3, 3)), max_size=30),
    size=st.integers(1, 9),
    cut=st.integers(-45, 45),
)
def test_bursts_make_the_sessions_of_their_visits_however_they_are_cut(rows, size, cut):
    rules = Rules(keys=1, gap=10, carried=1, aggregates=(("sum", 0), ("min", 0), ("max", 0)))
    rows = sorted(rows)
    visits = [(key, at, None, None, value, None) for key, at, value in rows]
    expected = by_rule(visits, rules)

    def made_of(bursts, *, reopens):
        return engine(sorted(bursts), replace(rules, reopens=reopens), size, batch_of_bursts, BurstRows)

    assert made_of(bursts_of(rows, rules.gap), reopens=False) == expected
    before = made_of(bursts_of([row for row in rows if row[1] < cut], rules.gap), reopens=False)
    over = {key: [one for one in made if one[-1] or one[2] < cut] for key, made in before.items()}
    opened = [
        (key, one[0], one[1], one[3], *one[4:-1], one[2])
        for key, made in before.items()
        for one in made
        if one not in over[key]
    ]
    after = made_of([*opened, *bursts_of([row for row in rows if row[1] >= cut], rules.gap)], reopens=True)
    both = {key: over.get(key, []) + after.get(key, []) for key in expected}
    assert {key: [one[:-1] for one in made] for key, made in both.items()} == {
        key: [one[:-1] for one in made] for key, made in expected.items()
    }


def test_numbers_that_are_none_count_as_spark_counts_them_and_a_sum_that_does_not_fit_fails():
    rules = Rules(keys=1, gap=10, carried=1, aggregates=(("min", 0), ("max", 0), ("sum", 0)))
    nan = float("nan")

    def made_of(values, kind):
        times = pa.array(range(len(values)), pa.int64())
        columns = [pa.array(["a"] * len(values)), times, pa.array(values, kind)]
        (made,) = sessions_of(iter([pa.RecordBatch.from_arrays(columns, names=["key", "at", "value"])]), rules)
        return [column.to_pylist()[0] for column in made.columns[5:8]]

    for values in ([nan, None], [nan, 1.0, None], [None, None], [2.0, nan, -1.0], [1.0, 2.0]):
        _, going_on = fold(None, [Visit(at, 10, False, [value]) for at, value in enumerate(values)], rules)
        assert repr(made_of(values, pa.float64())[:2]) == repr(going_on.aggregates[:2])
    assert made_of([2**62, 2**62 - 1], pa.int64())[2] == 2**63 - 1
    with pytest.raises(OverflowError, match="beyond 64 bits"):
        made_of([2**62, 2**62], pa.int64())


def test_a_wrong_declaration_is_refused_before_spark_starts():
    for options, words in (
        ({"keys": "user"}, "'keys' is a list"),
        ({"gap": "soon"}, "gap: 'soon' is not a length of time"),
        ({"gap": "0 minutes"}, "longer than nothing"),
        ({"collect": ["page"]}, "which column is made of which"),
        ({"collect": {"user": "page"}}, "it is a key"),
        ({"first": {"page": "page"}, "last": {"page": "page"}}, "made by 'first'"),
        ({"sum": {"events": "amount"}}, "a column of every session"),
        ({"keys": ["is_final"]}, "a column of every session"),
        ({"max_events": 0}, "from 1 on"),
        ({"max_duration": "10 minutes"}, "not shorter than the gap"),
        ({"expiry": "now"}, "'event time' or 'watermark'"),
        ({"expiry": "watermark", "ends": "page = '/bye'"}, "nothing else does"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            Sessions(**{"keys": ["user"], "gap": "30 minutes", **options})


DECLARED = Sessions(
    keys=["user"], gap="2 hours", time="at", collect={"pages": "page"}, first={"entry": "page"}, last={"exit": "page"},
    sum={"paid": "amount"}, max={"most": "amount"}, max_events=3,
)  # fmt: skip


def visits_of(spark, *rows):
    values = ", ".join(
        f"({'NULL' if user is None else repr(user)}, "
        f"CAST({'NULL' if at is None else repr(f'2026-01-05 {at}')} AS TIMESTAMP), {page!r}, {amount})"
        for user, at, page, amount in rows
    )
    return spark.sql(f"SELECT * FROM VALUES {values} AS t(user, at, page, amount)")


def shown(frame, *columns):
    return sorted(tuple(row) for row in frame.select(*columns).collect())


@pytest.mark.shows("05.incremental-sessionizer", 2, 5, 8)
def test_slices_in_order_give_the_sessions_of_all_visits_at_once(spark):
    rows = [("u1", "09:50", "/", 1), ("u1", "10:40", "/a", 2), ("u1", "11:30", "/b", 3), ("u2", "09:00", "/", 0),
            ("u2", "09:10", "/c", 5), ("u2", "11:10:00.000001", "/", 0), ("u3", "11:59", "/", 4),
            (None, "09:00", "/", 0), ("u9", None, "/", 0)]  # fmt: skip
    visits = visits_of(spark, *rows)
    split = split_unusable_visits(visits, sessions=DECLARED)
    assert shown(split.unusable, "page", "amount") == [("/", 0), ("/", 0)]
    first = build_sessions(split.usable.where("hour(at) < 11"), sessions=DECLARED, until="2026-01-05T11:00")
    # As it is stored between two runs.
    pending = spark.createDataFrame(first.pending.collect(), first.pending.schema)
    rest = split.usable.where("hour(at) >= 11")
    second = build_sessions(rest, sessions=DECLARED, until="2026-01-05T14:00", pending=pending)
    completed = shown(second.completed, "user", "pages", "is_final", "session_id")
    # A gap of two hours is within the session; a microsecond more begins another.
    assert [row[:3] for row in completed] == [
        ("u1", ["/", "/a", "/b"], True), ("u2", ["/"], True), ("u2", ["/", "/c"], True), ("u3", ["/"], True)
    ]  # fmt: skip
    assert shown(pending, "user", "events") == [("u1", 2), ("u2", 2)]
    at_once = build_sessions(split.usable, sessions=DECLARED, until="2026-01-05T14:00")
    columns = ("user", "events", "duration_seconds", "entry", "exit", "paid", "most", "truncated")
    assert shown(at_once.completed, *columns) == [
        ("u1", 3, 6000.0, "/", "/b", 6, 3, False), ("u2", 1, 0.0, "/", "/", 0, 0, False),
        ("u2", 2, 600.0, "/", "/c", 5, 5, False), ("u3", 1, 0.0, "/", "/", 4, 4, False),
    ]  # fmt: skip
    assert shown(at_once.completed, "session_id") == sorted((row[3],) for row in completed)
    # Ongoing sessions are there too where they are asked for, and say what they are.
    early = build_sessions(split.usable, sessions=replace(DECLARED, partial=True), until="2026-01-05T11:30")
    assert shown(early.completed, "user", "events", "is_final") == [
        ("u1", 3, False), ("u2", 1, False), ("u2", 2, True), ("u3", 1, False)
    ]  # fmt: skip
    assert shown(keep_final_sessions(early.completed), "user", "events") == [("u2", 2)]


def test_visits_that_are_counted_where_they_are_read_give_the_same_sessions(spark):
    visits = spark.range(600).selectExpr(
        "concat('u', pmod(xxhash64(id), 7)) AS user",
        "timestamp_micros(pmod(xxhash64(id, 1), 345600000000) - 172800000000) AS at",  # around 1970
        "nullif(pmod(xxhash64(id, 2), 9), 0) AS amount",
        "CAST(pmod(xxhash64(id, 3), 5) AS DOUBLE) AS weight",
    )
    counted = Sessions(keys=["user"], gap="1 hour", time="at", sum={"paid": "amount"}, min={"least": "weight"},
                       max={"most": "amount"})  # fmt: skip
    one_by_one = replace(counted, collect={"amounts": "amount"})
    assert has_bursts(layout_of(visits, counted))
    others = (one_by_one, *(replace(counted, **more) for more in (
        {"ends": "amount = 1"}, {"gap_by": "60 * amount"}, {"max_duration": "2 hours"}, {"first": {"entry": "amount"}},
        {"last": {"exit": "amount"}}, {"sum": {"heavy": "weight"}})))  # fmt: skip
    assert not [one for one in others if has_bursts(layout_of(visits, one))]

    def in_two_slices(sessions):
        cut, until = "1970-01-01T06:00", "1970-01-05T00:00"
        first = build_sessions(visits.where(f"at < '{cut}'"), sessions=sessions, until=cut)
        rest = visits.where(f"at >= '{cut}'")
        second = build_sessions(rest, sessions=sessions, until=until, pending=first.pending)
        columns = ("session_id", "start_time", "end_time", "events", "paid", "least", "most", "is_final")
        return shown(first.completed.unionByName(second.completed).na.fill(-1), *columns)

    made = in_two_slices(counted)
    assert made == in_two_slices(one_by_one)
    assert 50 < len(made) < 550, "some visits are alone, others are not"
    huge = visits.selectExpr("user", "at", f"{2**62}L + 2 * amount AS amount")
    with pytest.raises(Exception, match="a sum is beyond 64 bits"):
        build_sessions(huge, sessions=replace(counted, min={}), until="1970-01-05T00:00").every.collect()


def test_visits_without_what_a_session_needs_are_refused(spark):
    visits = visits_of(spark, ("u1", "10:00", "/", 1), (None, "10:01", "/", 1))
    until = "2026-01-05T12:00"
    for options, error, words in (
        ({"keys": ["usr"]}, MissingColumnsError, "usr"),
        ({"time": None}, ConfigurationError, "nothing tells when"),
        ({"time": "page"}, ConfigurationError, "measured between timestamps"),
        ({"sum": {"paid": "page"}}, ConfigurationError, "'sum' is for numbers"),
    ):
        with pytest.raises(error, match=words):
            build_sessions(visits, sessions=replace(DECLARED, **options), until=until)
    with pytest.raises(MissingColumnsError, match="expires_at"):
        build_sessions(visits, sessions=DECLARED, until=until, pending=visits)
    with pytest.raises(MissingColumnsError, match="is_final"):
        keep_final_sessions(visits)
    with pytest.raises(Exception, match="a visit without user or at"):
        build_sessions(visits, sessions=DECLARED, until=until).completed.collect()


@pytest.fixture
def failing():
    """``failing(place)``: the next time this place is reached, the work fails there."""

    def at(name: str) -> None:
        arm({"LAKEWRIGHT_FAILPOINT": name, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})

    yield at
    arm({})


@pytest.mark.shows("05.incremental-sessionizer", 6, 7)
def test_a_repair_touches_the_entities_with_late_visits_and_no_other(spark, tmp_path, failing):
    completed, pending = str(tmp_path / "completed"), str(tmp_path / "pending")
    before = visits_of(spark, ("u1", "05:00", "/", 1), ("u1", "08:00", "/", 1), ("u1", "11:00", "/a", 1),
                       ("u2", "08:00", "/", 1), ("u2", "11:30", "/", 1))  # fmt: skip
    late = visits_of(spark, ("u1", "09:30", "/late", 1))
    gap = replace(DECLARED, gap="100 minutes")
    first = build_sessions(before, sessions=gap, until="2026-01-05T12:00")
    overwrite_slice(first.pending, pending)
    overwrite_slice(first.completed, completed)

    def read(path, *columns):
        return shown(spark.read.format("delta").load(path), *columns)

    other = [row for row in read(completed, "user", "session_id", "events", "pages") if row[0] == "u2"]
    told = {"sessions": gap, "until": "2026-01-05T12:00", "completed_path": completed, "pending_path": pending,
            "since": "2026-01-05T07:00"}  # fmt: skip
    failing("sessions_repaired")  # between the two commits
    with pytest.raises(Exception, match="sessions_repaired"):
        repair_sessions(before.union(late), late, **told)
    done = repair_sessions(before.union(late), late, **told)
    assert read(completed, "user", "pages") == [("u1", ["/"]), ("u2", ["/"])], "what began before stays"
    assert read(pending, "user", "pages") == [("u1", ["/", "/late", "/a"]), ("u2", ["/"])]
    assert [row for row in read(completed, "user", "session_id", "events", "pages") if row[0] == "u2"] == other
    touched = {name: done.completed.metrics[f"numTargetRows{name}"] for name in ("Deleted", "Updated", "Inserted")}
    assert touched == {"Deleted": 1, "Updated": 0, "Inserted": 0}
