"""Fixtures come from the package's own pytest plug-in (``lakewright.testing.plugin``)."""

from __future__ import annotations

import pytest

from lakewright import masking

# The longest first: with several workers, the file that is started last decides when the run ends.
LONG = (
    "runtime/test_cluster.py",
    "pipelines/test_kills.py",
    "pipelines/test_outside_kills.py",
    "cli/test_end_to_end.py",
    "platforms/test_demo_services.py",
    "pipelines/test_streams.py",
    "pipelines/test_replay.py",
    "pipelines/test_sessions.py",
    "pipelines/test_skew_buffer.py",
    "patterns/data_flow/test_aligned_fan_in.py",
    "pipelines/test_scenarios.py",
    "patterns/idempotency/test_merger.py",
    "pipelines/test_stateful_merger.py",
    "patterns/idempotency/test_stateful_merger.py",
    "patterns/data_flow/test_single_runner.py",
    "connectors/test_kafka.py",
    "connectors/test_kafka_destination.py",
    "connectors/test_postgres_table.py",
    "pipelines/test_stream_command.py",
    "pipelines/test_on_postgres.py",
    "pipelines/test_disk.py",
    "patterns/data_flow/test_local_sequencer.py",
    "pipelines/test_upstream.py",
    "cli/test_going_on.py",
    "pipelines/test_runner.py",
    "pipelines/test_bad_input.py",
    "pipelines/test_neighbours.py",
    "pipelines/test_zombies.py",
    "patterns/error_management/test_dead_letter.py",
    "connectors/test_delta.py",
    "pipelines/test_rebuild.py",
)


@pytest.fixture(autouse=True)
def known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password that one test has used, such as the word "secret", is not masked in the next one."""
    for name in ("_forms", "_pattern"):
        monkeypatch.setattr(masking, name, getattr(masking, name))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}

    def place(item: pytest.Item) -> int:
        return places.get(item.path.as_posix().rpartition("/tests/")[2], len(places))

    items.sort(key=place)
