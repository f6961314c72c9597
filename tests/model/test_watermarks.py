"""Watermarks on plain values: what is tracked, what never goes back, who holds whom up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakewright.errors import ConfigurationError
from lakewright.model.watermarks import Tracking, Watermark
from lakewright.patterns.error_management.late_data_detector import LateDataDetector

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-05T{text}:00+00:00")


@pytest.mark.shows("03.late-data-detector", 1)
def test_the_worked_table_gives_0936_and_0937() -> None:
    tracking = Tracking(timedelta(minutes=30))
    first = tracking.advance(Watermark(), {("", ""): at("10:06")}, NOW)
    second = tracking.advance(first, {("", ""): at("10:07")}, NOW)
    assert (first.at, second.at) == (at("09:36"), at("09:37"))
    # A candidate below it is left out, and so is a batch that brings nothing.
    assert tracking.advance(second, {("", ""): at("09:31")}, NOW).at == at("09:37")
    assert tracking.advance(second, {}, NOW).at == at("09:37")
    assert Watermark.from_json(second.to_json()) == second


@pytest.mark.shows("03.late-data-detector", 4)
def test_min_and_max_over_partitions_and_over_sources_follow_the_configuration() -> None:
    seen = {("web", "0"): at("10:00"), ("web", "1"): at("09:20"), ("app", "0"): at("09:50"), ("app", "1"): at("09:40")}

    def found(across: str, over_sources: str) -> Watermark:
        tracking = Tracking(timedelta(0), across, over_sources)  # type: ignore[arg-type]
        return tracking.advance(Watermark(), seen, NOW)

    assert found("min", "min").at == at("09:20")
    assert found("max", "max").at == at("10:00")
    assert found("min", "max").at == at("09:40")  # the slowest partition of the fastest source
    assert found("max", "min").at == at("09:50")
    each = found("min", "each")
    assert (each.of("web"), each.of("app"), each.of("new")) == (at("09:20"), at("09:40"), None)


def test_a_partition_that_has_fallen_silent_holds_nobody_back() -> None:
    tracking = Tracking(timedelta(0), idle=timedelta(minutes=10))
    both = tracking.advance(Watermark(), {("", "0"): at("10:00"), ("", "1"): at("09:20")}, NOW)
    assert both.at == at("09:20")
    soon = tracking.advance(both, {("", "0"): at("10:05")}, NOW + timedelta(minutes=10))
    assert soon.at == at("09:20")
    later = tracking.advance(soon, {("", "0"): at("10:06")}, NOW + timedelta(minutes=11))
    assert later.at == at("10:06")
    # It comes back far behind: the watermark stays. Where all are silent it does too.
    assert tracking.advance(later, {("", "1"): at("09:21")}, NOW + timedelta(minutes=12)).at == at("10:06")
    assert tracking.advance(later, {}, NOW + timedelta(days=1)).at == at("10:06")


@pytest.mark.shows("03.late-data-detector", 8)
def test_the_least_event_time_of_a_partition_is_no_way_to_track_it() -> None:
    with pytest.raises(ConfigurationError, match="greatest event time is tracked"):
        LateDataDetector("30 minutes", per_partition="min")  # type: ignore[arg-type]
    wrong: list[dict[str, object]] = [{"across": "avg"}, {"over_sources": "avg"}, {"late": "drop"},
                                      {"stop_above": 2}, {"warn_above": -1}]  # fmt: skip
    for options in (*wrong, {"ahead": "soon"}, {"idle": "never"}):
        with pytest.raises(ConfigurationError):
            LateDataDetector("30 minutes", **options)  # type: ignore[arg-type]
