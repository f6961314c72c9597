from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from lakewright.store.columns import JsonText, Moment

DIALECT = sqlite.dialect()


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


def test_nothing_stays_nothing() -> None:
    assert Moment().process_bind_param(None, DIALECT) is None
    assert JsonText().process_bind_param(None, DIALECT) is None
    assert JsonText().process_result_value(None, DIALECT) is None
