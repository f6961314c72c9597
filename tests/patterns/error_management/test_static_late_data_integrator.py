"""Static Late Data Integrator: which slices a run makes again, and in which order. Nothing here needs Spark."""

from __future__ import annotations

import pytest

from lakewright import Revisit
from lakewright.errors import ConfigurationError
from lakewright.model.times import cells_between, parse_time
from lakewright.patterns.error_management.static_late_data_integrator import (
    runs_to_backfill,
    slices_to_revisit,
    stages_of_run,
)


def days(first: str, end: str) -> list[str]:
    return list(cells_between(parse_time(first), parse_time(end), "day"))


@pytest.mark.shows("03.static-late-data-integrator", 1)
def test_fourteen_days_before_the_current_one_are_made_again() -> None:
    assert slices_to_revisit("2024-12-31", lookback="14 days") == days("2024-12-17", "2024-12-31")
    assert slices_to_revisit("2024-12-31T02", lookback="3 hours") == ["2024-12-30T23", "2024-12-31T00", "2024-12-31T01"]


@pytest.mark.shows("03.static-late-data-integrator", 3)
def test_the_order_follows_the_placement_and_history_comes_first_where_it_matters() -> None:
    past = ["2024-10-10", "2024-10-11"]
    assert stages_of_run("2024-10-12", past, placement="before") == [past, ["2024-10-12"]]
    assert stages_of_run("2024-10-12", past, placement="parallel") == [[*past, "2024-10-12"]]
    assert stages_of_run("2024-10-12", past, placement="after") == [["2024-10-12"], past]
    in_order = stages_of_run("2024-10-12", past[::-1], placement="before", stateful=True)
    assert in_order == [["2024-10-10"], ["2024-10-11"], ["2024-10-12"]]
    for placement in ("parallel", "after"):
        with pytest.raises(ConfigurationError, match="depends on those before it"):
            stages_of_run("2024-10-12", past, placement=placement, stateful=True)  # type: ignore[arg-type]


@pytest.mark.shows("03.static-late-data-integrator", 4)
def test_of_three_runs_that_overlap_the_last_is_enough() -> None:
    assert runs_to_backfill("2024-10-10", "2024-10-12", lookback="4 days") == ["2024-10-12"]
    # In general: e, e - (L + 1), and so on; together they cover each day, and no day twice before the first.
    chosen = runs_to_backfill("2024-10-01", "2024-10-12", lookback="4 days")
    assert chosen == ["2024-10-12", "2024-10-07", "2024-10-02"]
    covered = [day for run in chosen for day in (*slices_to_revisit(run, lookback="4 days"), run)]
    assert set(days("2024-10-01", "2024-10-13")) <= set(covered)
    assert len(covered) == len(set(covered))
    with pytest.raises(ConfigurationError, match="to a later one"):
        runs_to_backfill("2024-10-12", "2024-10-10", lookback="4 days")


@pytest.mark.shows("03.static-late-data-integrator", 8)
@pytest.mark.parametrize("lookback", ["0 days", "-3 days", "some days"])
def test_a_window_of_nothing_is_refused(lookback: str) -> None:
    with pytest.raises(ConfigurationError):
        slices_to_revisit("2024-12-31", lookback=lookback)
    with pytest.raises(ConfigurationError):
        Revisit(lookback)
    with pytest.raises(ConfigurationError, match="placement"):
        Revisit("1 day", placement="sometimes")  # type: ignore[arg-type]
