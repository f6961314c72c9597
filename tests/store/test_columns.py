from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from lakewright.masking import remember
from lakewright.model.findings import Finding
from lakewright.model.runs import Run
from lakewright.store import Store
from lakewright.store.columns import JsonText, Moment

DIALECT = sqlite.dialect()
NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_keeps_its_last_microsecond(moment: datetime) -> None:
    stored = Moment().process_bind_param(moment, DIALECT)
    assert Moment().process_result_value(stored, DIALECT) == moment


@given(st.lists(st.datetimes(timezones=st.just(UTC)), max_size=5))
def test_stored_moments_sort_as_the_moments_do(moments: list[datetime]) -> None:
    stored = [Moment().process_bind_param(moment, DIALECT) for moment in sorted(moments)]
    assert stored == sorted(value for value in stored if value is not None)


def test_a_moment_of_another_zone_is_stored_in_utc() -> None:
    berlin = datetime(2026, 1, 5, 13, tzinfo=timezone(timedelta(hours=1)))
    utc = datetime(2026, 1, 5, 12, tzinfo=UTC)
    assert Moment().process_bind_param(berlin, DIALECT) == Moment().process_bind_param(utc, DIALECT)


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(TypeError):
        Moment().process_bind_param(datetime(2026, 1, 5), DIALECT)


def test_words_for_people_are_masked_and_names_stay_as_they_are(store: Store) -> None:
    remember("Vw29-told")
    run = Run("r-Vw29-told", "shop", NOW)
    finding = Finding("Vw29-told", "skew", "One key is Vw29-told.", cure="Change Vw29-told.")
    store.runs.start(run, owner_id=None, options={}, now=NOW)
    store.runs.finish(run.run_id, "failed", now=NOW, error="cannot log in with Vw29-told")
    store.findings.add([finding], run_id=run.run_id, now=NOW)
    step = store.steps.open(
        run_id=run.run_id,
        dataset="visits",
        slice_id="2026-01-05",
        number=1,
        attempt=1,
        reason="due: Vw29-told",
        outputs=[],
        now=NOW,
    )
    store.steps.close(step, "failed", now=NOW, error="with Vw29-told", hint="Not Vw29-told.")
    [kept] = store.runs.latest()
    assert (kept.run_id, kept.error) == ("r-Vw29-told", "cannot log in with ***")
    [closed] = store.steps.of_run(run.run_id)
    assert (closed.reason, closed.error, closed.hint) == ("due: ***", "with ***", "Not ***.")
    [found] = store.findings.latest()
    assert (found.dataset, found.message, found.cure) == ("Vw29-told", "One key is ***.", "Change ***.")


def test_nothing_stays_nothing() -> None:
    assert Moment().process_bind_param(None, DIALECT) is None
    assert JsonText().process_bind_param(None, DIALECT) is None
    assert JsonText().process_result_value(None, DIALECT) is None
