"""Stateful Sessionizer: build sessions on a stream, and give each out when nothing more can come for it.

Problem:
    A session that batches find is an hour old. The visits are at the broker within seconds, and whoever watches them
    wants sessions as they end.
Guarantee:
    On the same visits the same sessions, with the same ids, as in batch: in order of event time, however they came
    within ``lateness``. After a kill Spark repeats the last micro-batch; merged by ``session_id`` it leaves each
    session once. Ids hold nothing that a repeat would change.
Consequences:
    - A visit that comes more than ``lateness`` after a later one is dropped by Spark, which only counts it. Let a Late
      Data Detector with the same ``lateness`` (``across="max"``) judge the stream before: it keeps such visits aside.
    - A longer gap, or a longer ``lateness``, means more state and later sessions; Spark's progress tells its size.
    - Spark fixes the number of state partitions (``spark.sql.shuffle.partitions``) at the first checkpoint.
    - ``partial`` tells what is known of a session that goes on, each time under its id: merge by that, and let readers
      that cannot bear change take ``keep_final_sessions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError
from lakewright.patterns.data_value.session_frames import layout_of
from lakewright.patterns.data_value.session_state import FINAL, sessions_by_state
from lakewright.patterns.data_value.session_windows import sessions_by_window
from lakewright.patterns.data_value.sessions import NAME, Sessions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Sessions", "build_sessions_on_stream", "stream_engine"]


def build_sessions_on_stream(visits: DataFrame, *, sessions: Sessions) -> DataFrame:
    """Build the sessions of a stream of visits; lazy, in append mode. Merge what comes out by ``session_id``.

    Visits without a key or a time stop the query: part them before (``split_unusable_visits``).
    """
    from pyspark.sql import functions as F

    if not visits.isStreaming:
        raise ConfigurationError(f"{NAME}: this frame is no stream.", hint="Use build_sessions(...).")
    layout = layout_of(visits, sessions)
    if stream_engine(sessions) == "session window":
        return layout.shown(sessions_by_window(visits, layout), final=F.lit(True))
    return layout.shown(sessions_by_state(visits, layout), final=F.col(FINAL))


def stream_engine(sessions: Sessions) -> Literal["session window", "state"]:
    """How a stream builds these sessions: by Spark's session windows, or by a state with rules of its own.

    >>> stream_engine(Sessions(keys=["user"], gap="30 minutes"))
    'session window'
    >>> stream_engine(Sessions(keys=["user"], gap="30 minutes", partial=True))
    'state'
    """
    own = sessions.partial or sessions.ends or sessions.max_duration or sessions.expiry == "watermark"
    return "state" if own else "session window"
