"""Errors of Delta and Spark in words for people. No Spark."""

from __future__ import annotations

import pytest

from lakewright.lake.delta_errors import explain_gone_version, explain_write_error
from lakewright.masking import remember


@pytest.mark.parametrize("length", [280, 285, 290])
def test_a_secret_where_a_message_is_cut_is_masked_as_a_whole(length: int) -> None:
    remember("De21-word-of-a-store")
    said = f"{'x' * length}De21-word-of-a-store: No space left on device DELTA_VERSION_NOT_FOUND"
    full = explain_write_error(OSError(said), dataset="clean", path="/lake/clean")
    gone = explain_gone_version(OSError(said), dataset="clean", version=3)
    for told in (full, gone):
        assert told is not None
        assert "De21" not in str(told)
        assert "x***" in str(told)
