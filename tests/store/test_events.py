from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.model.triggers import Event, Malformed
from lakewright.store import Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
RELEASE = Event("r1", "release", "/backend", NOW, NOW, ("a.json",), {"id": "r1"}, "t", "7", "topic/0/1@5")
BROKEN = Malformed("topic/0/2@5", "it is not JSON", '{"id": ', NOW, "topic/0/2@5")


def test_an_event_is_kept_once_and_remembers_what_became_of_it(store: Store) -> None:
    events = store.events
    assert [events.record("t", RELEASE, now=NOW)[1], events.record("t", RELEASE, now=NOW)[1]] == [True, False]
    assert events.record("other", RELEASE, now=NOW)[1], "each trigger has its own"
    events.record("t", BROKEN, now=NOW + timedelta(seconds=1))
    assert [one.found() for one in events.unfinished("t")] == [RELEASE, BROKEN]
    for _ in range(2):
        events.move("t", "r1", "started", now=NOW)
    events.started("t", "r1", "devices", "run-1", now=NOW)
    events.started("t", "r1", "features", "run-2", now=NOW)
    events.move("t", "r1", "done", now=NOW)
    events.move("t", BROKEN.id, "dead", error=BROKEN.reason, now=NOW)
    record = events.find("r1", trigger="t")
    assert (record.state, record.attempts, dict(record.runs)) == ("done", 2, {"devices": "run-1", "features": "run-2"})
    assert events.unfinished("t") == []
    assert events.places("t") == {"topic/0/1@5", "topic/0/2@5"}
    assert [one.event_id for one in events.latest(states=["dead"])] == [BROKEN.id]
    assert events.counts() == {"t": {"received": 2, "done": 1, "dead": 1}, "other": {"received": 1}}


def test_only_dead_letters_are_retired_and_wrong_ids_are_told(store: Store) -> None:
    store.events.record("t", RELEASE, now=NOW)
    with pytest.raises(ConfigurationError, match="only dead letters"):
        store.events.retire(store.events.find("r1"), now=NOW)
    store.events.move("t", "r1", "dead", error="bad", now=NOW)
    store.events.retire(store.events.find("r1"), now=NOW)
    assert (store.events.find("r1").state, store.events.find("r1").error) == ("retired", "bad")
    with pytest.raises(UnknownNameError, match="Did you mean 'r1'"):
        store.events.find("r")
    store.events.record("other", RELEASE, now=NOW)
    with pytest.raises(ConfigurationError, match="several triggers: "):
        store.events.find("r1")
