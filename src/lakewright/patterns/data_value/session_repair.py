"""Repairing the sessions of some entities: those that late visits concern, and no other.

Guarantee:
    Only rows of entities with a late visit are inserted, updated or deleted; every other row stays as it is. Doing it
    again changes nothing more. After a kill between its two commits, doing it again completes it.
Consequences:
    - It reads the visits of these entities anew: from the beginning, or ``since`` a moment at which none of them had a
      session going on.
    - In a pipeline a table has one owner: there the run repairs, slice by slice, while what is pending changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lakewright.errors import MissingColumnsError
from lakewright.failpoints import failpoint
from lakewright.model.receipts import Commit
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.incremental_sessionizer import build_sessions
from lakewright.patterns.data_value.moments import moment_sql
from lakewright.patterns.data_value.sessions import NAME, Sessions
from lakewright.patterns.idempotency.merger import merge_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RepairedSessions", "repair_sessions"]

_GONE = "_lw_gone"


@dataclass(frozen=True, slots=True)
class RepairedSessions:
    """The commits of a repair; None where there was nothing to write."""

    pending: Commit | None
    completed: Commit | None


def repair_sessions(
    visits: DataFrame,
    late: DataFrame,
    *,
    sessions: Sessions,
    until: datetime | str,
    completed_path: str,
    pending_path: str,
    since: datetime | str | None = None,
) -> RepairedSessions:
    """Runs the jobs that build the sessions of the entities in ``late`` again, from all their ``visits``.

    ``visits`` holds the late ones too. Both Delta tables are those that ``build_sessions`` filled; ``until`` is the end
    of the newest slice that they hold. The pending sessions are committed first.
    """
    from pyspark.sql import functions as F

    columns = late.columns
    if missing := [key for key in sessions.keys if key not in columns]:
        raise MissingColumnsError(pattern=f"{NAME} (late)", missing=missing, present=columns)
    keys = [F.col(quoted(key)) for key in sessions.keys]
    concerned = late.select(*keys).where(" AND ".join(f"{quoted(key)} IS NOT NULL" for key in sessions.keys)).distinct()
    theirs = visits.join(concerned, on=list(sessions.keys), how="left_semi")
    if since is not None:
        theirs = theirs.where(f"{quoted(sessions.at())} >= {moment_sql(since)}")
    built = build_sessions(theirs, sessions=sessions, until=until)
    built.every.persist()
    try:
        pending = _replace(built.pending, pending_path, concerned, sessions, since)
        failpoint("sessions_repaired")
        return RepairedSessions(pending, _replace(built.completed, completed_path, concerned, sessions, since))
    finally:
        built.every.unpersist()


def _replace(
    built: DataFrame, path: str, concerned: DataFrame, sessions: Sessions, since: datetime | str | None
) -> Commit | None:
    """One MERGE: the sessions as they are now, and the marks of those that there are no more."""
    from pyspark.sql import functions as F

    stored = built.sparkSession.read.format("delta").load(path)
    theirs = stored.join(concerned, on=list(sessions.keys), how="left_semi")
    if since is not None:
        theirs = theirs.where(f"start_time >= {moment_sql(since)}")
    gone = theirs.join(built.select("session_id"), on="session_id", how="left_anti")
    now = built.withColumn(_GONE, F.lit(False)).unionByName(
        gone.withColumn(_GONE, F.lit(True)), allowMissingColumns=True
    )
    return merge_changes(now, path, keys=["session_id"], deleted=_GONE)
