"""A session of one's own for a moment: some commands of Delta take settings of the session and no option.

Guarantee:
    The session that was given keeps its settings. The other one has them too, and those asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["own_session"]

_IDENTITY = ("spark.databricks.delta.commitInfo.", "spark.databricks.delta.write.txn")
"""Who writes is said by a writer for its own commit, and never carried over."""


@contextmanager
def own_session(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session on the same Spark, with these settings beside those of ``spark``; it is let go of at the end."""
    from pyspark.errors import AnalysisException

    parent: Any = spark
    new_session = getattr(parent, "newSession", None)  # Connect has none, and says so by an AttributeError
    child: Any = parent.cloneSession() if new_session is None else new_session()
    try:
        for name, value in _missing(parent, child).items():
            with suppress(AnalysisException):  # what no session can set, the other one has anyway
                child.conf.set(name, value)
        for name, value in settings.items():
            child.conf.set(name, value)
        yield child
    finally:
        if new_session is None:  # a classic one is a part of its parent and needs nothing
            child.client.release_session()
            child.client.close()


def _missing(parent: Any, child: Any) -> dict[str, str]:
    fresh: dict[str, str] = child.conf.getAll
    return {
        name: value
        for name, value in parent.conf.getAll.items()
        if fresh.get(name) != value and not name.startswith(_IDENTITY)
    }
