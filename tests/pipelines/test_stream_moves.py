"""A stream's checkpoint is moved: the old one counts until the new one is whole, and each record is there once."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError, LeaseHeldError
from lakewright.failpoints import FailpointReached
from lakewright.model.slices import WHOLE
from lakewright.patterns.error_management.checkpointer import read_checkpoint
from lakewright.pipelines.streams.moving import checkpoint_in_force
from tests.pipelines.shop import ok
from tests.pipelines.streaming import send, visit, visits_project
from tests.pipelines.test_streams import ids


def test_a_moved_stream_goes_on_and_a_move_that_dies_leaves_the_old_checkpoint(
    project, kafka, spark, tmp_path, failing
):
    topic = kafka.topic()
    shop = project(visits_project(kafka, topic))
    with pytest.raises(ConfigurationError, match="no checkpoint to move"):
        shop.move_checkpoint("raw", str(tmp_path / "safe"))

    def read_on(number: int) -> str:
        """One more record, taken once; where the stream has noted it."""
        send(kafka, topic, [visit(number)])
        ok(shop.run(["raw"], at="2026-01-03"))
        assert ids(shop) == [f"v{one}" for one in range(1, number + 1)]
        place = checkpoint_in_force(shop.lake, "raw", 1)
        assert read_checkpoint(spark, place).committed == number - 1
        return place

    first = read_on(1)
    assert first == shop.lake.checkpoint("raw", 1)
    with (
        shop._exclusive([]) as held,
        held.attempt(shop.graph["raw"], WHOLE, attempt=1, reason="kept going", whole=True, rewrites=False) as stream,
    ):
        with pytest.raises(LeaseHeldError):
            shop.move_checkpoint("raw", str(tmp_path / "safe"))
        stream.finish(())

    for number, place in ((2, "checkpoint_aside"), (3, "checkpoint_copied")):
        failing(place)
        with pytest.raises(FailpointReached):
            shop.move_checkpoint("raw", str(tmp_path / "safe"))
        assert Path(first).is_file(), "who still writes there, fails"
        assert read_on(number) == first

    failing("nothing")
    moved = shop.move_checkpoint("raw", str(tmp_path / "safe"))
    assert (moved.before, moved.batch, Path(first).is_file()) == (first, 2, True)
    assert read_on(4) == moved.after
    assert moved.after.startswith(str(tmp_path / "safe" / "raw" / "1-"))
    shop.rebuild_store()
    assert read_on(5) == moved.after
    assert shop.store.steps.open_steps() == []
    assert shop.store.leases.held(shop._now()) == []
