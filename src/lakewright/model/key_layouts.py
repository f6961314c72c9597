"""How the rows of a key lie together: by which columns, in how many partitions, and placed by which function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakewright.errors import ConfigurationError, InputError

__all__ = ["KeyLayout"]


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """What producers promise: every row of a key is in one of so many partitions, placed by one partitioner.

    It is the record by which a reader tells that the promise still holds: a topic with another number of partitions
    is refused, since each key would lie in two of them.
    """

    keys: Sequence[str]
    partitions: int
    partitioner: str = "murmur2"
    """As Java's, Spark's and Lakewright's own producers place keys. No broker knows it: all producers must agree."""

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or not self.keys or not all(isinstance(k, str) and k for k in self.keys):
            raise ConfigurationError(f"KeyLayout: 'keys' is a list of columns, not {self.keys!r}.")
        if not isinstance(self.partitions, int) or isinstance(self.partitions, bool) or self.partitions < 1:
            raise ConfigurationError(f"KeyLayout: partitions is a number from 1 on, not {self.partitions!r}.")
        if not self.partitioner:
            raise ConfigurationError("KeyLayout: the partitioner is empty. Java's is 'murmur2'.")
        object.__setattr__(self, "keys", tuple(self.keys))

    def refuse_count(self, found: int, *, what: str) -> None:
        """Refuse another number of partitions than the recorded one."""
        if found != self.partitions:
            raise InputError(
                f"Local Aggregator: {what} has {found} partitions, and its recorded layout {self.partitions}: a key "
                "may lie in two of them, and would be counted as two. Nothing was started.",
                hint=f"Stop the producers, write everything to a topic of {found} partitions (reorganize_topic), and "
                f"record KeyLayout(..., partitions={found}); or use aggregate_by_key, which needs no layout.",
            )

    def refuse_other(self, other: KeyLayout) -> None:
        """Refuse two layouts that do not put equal keys into partitions of the same number."""
        if (self.partitions, self.partitioner) != (other.partitions, other.partitioner):
            raise InputError(
                f"Local Aggregator: one side lies in {self.partitions} partitions by {self.partitioner}, the other in "
                f"{other.partitions} by {other.partitioner}: equal keys do not meet. Nothing was started.",
                hint="Reorganize one of them, or join as ever: Spark then moves the rows.",
            )
