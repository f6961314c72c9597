from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lakewright.store import Marker, Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def test_a_slice_is_ready_from_when_it_was_set_until_it_is_withdrawn(store: Store) -> None:
    store.markers.set("visits", "2026-01-04", run_id="r1", now=NOW)
    assert store.markers.get("visits", "2026-01-04") == Marker("visits", "2026-01-04", NOW, "r1")
    assert store.markers.withdraw("visits", "2026-01-04")
    assert not store.markers.withdraw("visits", "2026-01-04")
    assert store.markers.get("visits", "2026-01-04") is None


def test_setting_a_marker_again_keeps_the_newest(store: Store) -> None:
    later = NOW + timedelta(hours=1)
    store.markers.set("visits", "whole", run_id="r1", now=NOW)
    store.markers.set("visits", "whole", run_id="r2", now=later)
    assert store.markers.list() == [Marker("visits", "whole", later, "r2")]


def test_markers_are_listed_by_dataset_and_slice(store: Store) -> None:
    for dataset, slice_id in (("visits", "2026-01-05"), ("visits", "2026-01-04"), ("users", "whole")):
        store.markers.set(dataset, slice_id, run_id=None, now=NOW)
    assert [marker.slice_id for marker in store.markers.list()] == ["whole", "2026-01-04", "2026-01-05"]
    assert [marker.slice_id for marker in store.markers.list("users")] == ["whole"]
