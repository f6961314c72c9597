"""Concurrent Runner: several runs of one pipeline at once, within limits.

Problem:
    Sources are loaded every half hour, and some loads take longer. One run at a time makes everything after them
    late, although no run needs what another one leaves.
Guarantee:
    At most ``limit`` runs of the pipeline are at work, whoever starts them and on whichever machine: each holds one of
    as many numbered leases in the shared store, and the place of a killed process is taken over. Whoever waits longest
    gets the next place. A slice is made by one run at a time, and once. Runs of a ``pool`` together hold at most as
    many slots as the project gives it, whatever ``limit`` asks for.
Consequences:
    - Runs end in any order. A step that needs its own past says so: ``depends_on_past=True`` on the dataset makes its
      slices in order of date, one at a time over all runs; a failed one holds the later ones back.
    - What several runs change at once gives another result each time. Declare it as ``shared_state``: every dataset
      that makes or uses it must depend on its past, or the pipeline is refused.
    - Several pipelines with high limits leave nothing for others: give each team a pool.
    - A limit that is too low still delays: `lakewright status` shows how long each run has waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakewright.errors import ConfigurationError

__all__ = ["ConcurrentRunner"]


@dataclass(frozen=True, slots=True)
class ConcurrentRunner:
    """The run policy of a pipeline whose runs do not need each other.

    ``depends_on_past`` is the default of its datasets; ``queue`` is how many runs may wait (``run --wait``) before the
    next is told "too many requests".
    """

    limit: int = 5
    depends_on_past: bool = False
    pool: str | None = None
    """The share of the machines that its runs come out of: a name under ``[pools]`` in ``lakewright.toml``."""
    shared_state: Sequence[str] = ()
    """What several runs would change at once: datasets, or names that datasets give in their own ``shared_state``."""
    queue: int = 16

    def __post_init__(self) -> None:
        if not isinstance(self.limit, int) or self.limit < 2:
            raise ConfigurationError(
                f"Concurrent Runner: limit is 2 or more, not {self.limit!r}.",
                hint="For one run at a time use Single Runner: runs=SingleRunner().",
            )
        if self.queue < 0:
            raise ConfigurationError(f"Concurrent Runner: queue is 0 or more, not {self.queue}.")
        if isinstance(self.shared_state, str):
            raise ConfigurationError(
                f'Concurrent Runner: shared_state is a list of names: shared_state=["{self.shared_state}"].'
            )
        object.__setattr__(self, "shared_state", tuple(self.shared_state))

    @property
    def concurrency(self) -> int:
        """How many runs may be at work at once."""
        return self.limit
