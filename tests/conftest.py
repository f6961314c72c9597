"""Fixtures come from the package's own pytest plug-in (``lakewright.testing.plugin``)."""

from __future__ import annotations

import pytest

# The longest first: with several workers, the file that is started last decides when the run ends.
LONG = (
    "pipelines/test_kills.py",
    "patterns/data_flow/test_aligned_fan_in.py",
    "cli/test_end_to_end.py",
    "pipelines/test_scenarios.py",
    "patterns/data_flow/test_single_runner.py",
    "pipelines/test_upstream.py",
    "pipelines/test_rebuild.py",
    "pipelines/test_disk.py",
    "patterns/idempotency/test_merger.py",
    "patterns/data_flow/test_local_sequencer.py",
    "pipelines/test_zombies.py",
    "cli/test_going_on.py",
    "connectors/test_delta.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}

    def place(item: pytest.Item) -> int:
        return places.get(item.path.as_posix().rpartition("/tests/")[2], len(places))

    items.sort(key=place)
