"""Single Runner: at most one active run of a pipeline, in order.

Problem:
    Each run needs what the one before it left; two at once, or out of order, give wrong results.
Guarantee:
    A lease in the shared store lets one run at a time through, whoever starts it and on whichever machine; a
    second one is refused or waits, and the lease of a killed process is taken over. With ``depends_on_past`` a
    dataset's slice is not made while an earlier slice of the same dataset has failed.
Consequences:
    - Backfills are slow by nature: select only the datasets that are needed.
    - One slow run delays all later ones: a scheduled run that ends after the next one was due says so, as a
      warning and as a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from lakewright.errors import ConfigurationError
from lakewright.model.times import parse_time

__all__ = ["SingleRunner", "due_times"]


@dataclass(frozen=True, slots=True)
class SingleRunner:
    """The run policy of a pipeline.

    ``queue`` is how many runs may wait for the active one (``run --wait``) before the next is told "too many
    requests"; with 0 none may. ``pool`` is the share of the machines that its runs come out of: a name under
    ``[pools]`` in ``lakewright.toml``.
    """

    depends_on_past: bool = False
    queue: int = 16
    concurrency: int = 1
    pool: str | None = None

    def __post_init__(self) -> None:
        if self.concurrency != 1:
            raise ConfigurationError(
                f"Single Runner: concurrency is 1, not {self.concurrency}.",
                hint="For several runs at once use Concurrent Runner.",
            )
        if self.queue < 0:
            raise ConfigurationError(f"Single Runner: queue is 0 or more, not {self.queue}.")


def due_times(schedule: str, *, after: datetime, until: datetime) -> Iterator[datetime]:
    """The logical times of a schedule (cron text or ``@daily``) with ``after < time <= until``, in order.

    >>> from datetime import UTC, datetime
    >>> due = due_times("@daily", after=datetime(2026, 1, 1, tzinfo=UTC), until=datetime(2026, 1, 3, tzinfo=UTC))
    >>> [f"{time:%m-%d %H:%M}" for time in due]
    ['01-02 00:00', '01-03 00:00']
    """
    from croniter import croniter

    if not croniter.is_valid(schedule):
        raise ConfigurationError(f"'{schedule}' is no schedule. Write @hourly, @daily or '0 6 * * *'.")
    times = croniter(schedule, parse_time(after))
    while (due := parse_time(times.get_next(datetime))) <= until:
        yield due
