"""Fixture ``cluster``: a Spark standalone cluster with two workers, started for the tests that ask for it.

Guarantee:
    It ends with the test run, however that ends, and leaves nothing behind. A worker that a test has killed is started
    again for the next test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lakewright.runtime.services.processes import Process

__all__ = ["Cluster", "cluster"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster."""

    url: str
    """The value of ``master``: ``spark://127.0.0.1:PORT``."""
    workers: tuple[Process, ...]

    def kill_worker(self, number: int = 0) -> None:
        """End a worker as a machine that loses its power does; its executor notices and ends too."""
        import signal

        from lakewright.runtime.services import processes

        processes.send(self.workers[number], signal.SIGKILL)
        processes.wait_until_gone([self.workers[number]], 30)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """A master and two workers with one core each; folders of this machine are seen by all of them."""
    from lakewright.runtime.services.processes import identify
    from lakewright.runtime.services.standalone import MASTER, WORKERS
    from lakewright.testing.services import started

    master = started(request.config, MASTER)
    assert master.address is not None
    pids = [started(request.config, name).pid for name in WORKERS]
    return Cluster(master.address.url, tuple(identify(pid) for pid in pids if pid is not None))
