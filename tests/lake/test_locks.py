"""Locks of tables on a local lake, which keep processes apart."""

from __future__ import annotations

import fcntl

import pytest

from lakewright.errors import TargetError
from lakewright.lake.delta_errors import is_transient
from lakewright.lake.locks import TableLocks


def test_a_table_that_another_process_writes_for_long_is_worth_another_try(tmp_path):
    with TableLocks(tmp_path).hold("orders"):
        (file,) = tmp_path.iterdir()
    with file.open("r+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            pytest.raises(TargetError, match="has been writing to orders") as told,
            TableLocks(tmp_path, patience_seconds=0.1).hold("orders"),
        ):
            pass
    assert is_transient(told.value), "a stream that ended for it would not come back by itself"
    with TableLocks(tmp_path, patience_seconds=0.1).hold("orders"):
        pass
