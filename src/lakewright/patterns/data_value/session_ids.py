"""The name of a session: a hash of its entity and its start, so that whoever builds it again names it the same.

Guarantee:
    The same on every executor, in every session, in batch and on a stream; it never holds the time of a run. A late
    visit before its start makes it another session, with another name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.model.sql import quoted
from lakewright.patterns.idempotency.stable_hash import hash_columns

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["session_id"]


def session_id(keys: Sequence[str], start: Column) -> Column:
    """The id of a session of this entity: 64 hexadecimal digits.

    ``start`` is in microseconds since 1970: a number is hashed many times faster than the text of a time. Without Spark
    the same is ``hash_values(["u1", 1767607200000000])``.
    """
    from pyspark.sql import functions as F

    return hash_columns([*[F.col(quoted(key)) for key in keys], start])
