"""Partial slices that are kept private until they are whole."""

from __future__ import annotations

import pytest

from tests.patterns.delta import rows, version

PRIVATE = """
    from lakewright import JsonFiles, Pipeline, UnalignedFanIn

    trend = Pipeline("trend", start="2026-01-01")
    trend.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")

    @trend.dataset(event_time="day", rows="reduce", fan_in=UnalignedFanIn(publish="private", parts="hour"))
    def cube(raw):
        return raw.selectExpr("to_date(at) AS day", "hour(at) AS hour").groupBy("day", "hour").count()
"""


def visits(day: int, *hours: int) -> str:
    return "".join(f'{{"visit": "v{hour}", "at": "2026-01-{day:02d} {hour:02d}:10:00"}}\n' for hour in hours)


@pytest.mark.shows("06.unaligned-fan-in", 5)
def test_a_partial_day_lies_in_its_own_table_alone_until_it_is_whole(project, failing) -> None:
    landing = {"landing/1.json": visits(1, *range(24)) + visits(2, *range(23))}
    opened = project({"pipelines/trend.py": PRIVATE, **landing})

    def days(name: str) -> list[tuple[object, ...]]:
        query = f"SELECT string(day), count(*), any(is_approximate) FROM {name} GROUP BY day"
        return rows(opened.sql(query))

    first = opened.run(at="2026-01-03")
    made = {o.slice_id: o.receipt.dataset for o in first.made if o.dataset == "cube"}
    assert made == {"2026-01-01": "cube", "2026-01-02": "cube_partial"}
    assert days("cube") == [("2026-01-01", 24, False)]
    assert days("cube_partial") == [("2026-01-02", 23, True)]
    public = version(opened.lake.resolve("cube"))
    assert rows(opened.sql("SELECT slice, present, is_public FROM completeness ORDER BY slice")) == [
        ("2026-01-01", 24, True), ("2026-01-02", 23, False),
    ]  # fmt: skip
    assert opened.ready("cube", "2026-01-02").reason == "it was not made yet"

    # As long as nothing comes, nothing is made, and the plan says why.
    assert opened.run(at="2026-01-03").made == []
    state = opened.plan(at="2026-01-03")["cube"].states[0]
    assert (state.status, state.make) == ("partial", False)
    assert state.reason == (
        "23 of 24 parts are there (96 %), without 2026-01-02T23; kept in cube_partial until it is whole"
    )

    # The last hour comes; the process fails after the private commit and before the public one.
    (opened.folder / "landing/2.json").write_text(visits(2, 23))
    failing("private_written")
    assert opened.run(at="2026-01-03").failed == ["cube"]
    assert version(opened.lake.resolve("cube")) == public
    again = opened.run(at="2026-01-03")
    assert [(o.slice_id, o.receipt.dataset) for o in again.made] == [("2026-01-02", "cube")]
    assert days("cube") == [("2026-01-01", 24, False), ("2026-01-02", 24, False)]
    assert days("cube_partial") == []
    assert opened.ready("cube", "2026-01-02").ready
    assert opened.run(at="2026-01-03").made == []


@pytest.mark.parametrize("publish", ["private", "labelled"])
def test_a_partial_commit_without_a_receipt_is_found_with_its_completeness_and_told_once(
    project, monkeypatch, publish
) -> None:
    opened = project(
        {"pipelines/trend.py": PRIVATE.replace("private", publish), "landing/1.json": visits(1, 3, 4)}, folder=publish
    )

    # As if the process had died after its commit: neither receipt nor the end of the step is recorded.
    finish = opened.store.finish_step

    def dies(step_id, state, *, grant, **rest):
        if grant.dataset == "cube":
            raise RuntimeError("gone")
        return finish(step_id, state, grant=grant, **rest)

    with monkeypatch.context() as patched:
        patched.setattr(opened.store, "finish_step", dies)
        assert opened.run(at="2026-01-02").failed == ["cube"]
    assert opened.store.findings.latest("cube") == []

    again = opened.run(at="2026-01-02")
    assert again.state == "ok"
    assert [o.dataset for o in again.made] == []
    assert rows(opened.sql("SELECT present, expected, is_public, state FROM completeness")) == [
        (2, 24, publish == "labelled", "live")
    ]
    (told,) = opened.store.findings.latest("cube")
    assert "2 of 24 parts are there (8 %)" in told.message
    assert not opened.ready("cube", "2026-01-01").ready
