"""Capturing late rows batch by batch, without a lake: for a ``foreachBatch`` function of one's own.

Guarantee:
    Late rows and rows without a usable event time are committed before the rows in time, each under the name of the
    job and the number of the batch, so that a repeated batch adds nothing twice. The watermark travels in the commit of
    the rows in time, the batch's own time in that of the late ones: a batch that is repeated, after a kill at any
    moment, is judged by the watermark that it started with, and every row keeps its class. Spark repeats none but the
    last batch: one before it is of a stream that began anew, whose rows Delta would skip as known, and is refused. A
    first batch is so, too, where it has other rows than it had: another number of them, or another newest time.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError, InputError, LimitExceeded
from lakewright.failpoints import failpoint
from lakewright.model.times import utc_now
from lakewright.model.watermarks import Judgement, Measured, Watermark
from lakewright.patterns.error_management.late_data_detector import (
    LateDataDetector,
    measure_event_times,
    split_late_rows,
)
from lakewright.patterns.idempotency.delta_paths import table_exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LateAccount", "write_on_time_rows"]

_NAME = "Late Data Detector"
_log = logging.getLogger("lakewright.late_data_detector")
_LOOK_BACK = 200
"""Commits of a table in which the last batches of a job are looked for first, before all that it has."""


@dataclass(frozen=True, slots=True)
class LateAccount:
    """``read = on_time + late + unusable``, and the watermarks before and after the batch."""

    measured: Measured
    before: Watermark
    after: Watermark

    @property
    def read(self) -> int:
        return self.measured.rows

    @property
    def late(self) -> int:
        return self.measured.late_rows

    @property
    def unusable(self) -> int:
        return self.measured.unusable

    @property
    def on_time(self) -> int:
        return self.read - self.late - self.unusable


def write_on_time_rows(
    df: DataFrame,
    *,
    batch: int,
    detector: LateDataDetector,
    on_time_path: str,
    late_path: str,
    unusable_path: str,
    job: str,
    judged_at: datetime | None = None,
) -> LateAccount:
    """Runs the jobs that add a batch's rows to three Delta tables: in time, late, and without a usable event time.

    ``batch`` is the number that Spark gives to a ``foreachBatch`` function, ``job`` a name that stays the same over
    restarts, and is another one where the stream begins anew. ``judged_at`` is the time of the batch: now, where it is
    not given; a repeat takes that of the first time. Above the detector's ``stop_above`` nothing is written; sources
    above ``warn_above`` are logged.

    >>> visits = spark.sql("SELECT 'v1' AS visit, timestamp'2026-01-05 10:06:00' AS at")
    >>> account = write_on_time_rows(visits, batch=0, detector=LateDataDetector("30 minutes", event_time="at"),
    ...     on_time_path=f"{folder}/visits", late_path=f"{folder}/late", unusable_path=f"{folder}/bad", job="visits")
    >>> account.on_time, account.late, f"{account.after.at:%H:%M}"
    (1, 0, '09:36')
    """
    if detector.event_time is None:
        raise ConfigurationError(
            f"{_NAME}: nothing tells when a row happened.", hint='Name the column: event_time="...".'
        )
    if not job or "'" in job or "\\" in job:
        raise ConfigurationError(f"{_NAME}: {job!r} is no name for a job.")
    spark = df.sparkSession
    captured, written = _notes(spark, late_path, job), _notes(spark, on_time_path, job)
    newest = max((*captured, *written), default=None)
    if newest is not None and batch < newest:
        raise _began_anew(job, batch, f"batch {newest} of it was written before")
    if newest is None and batch:
        _log.warning("%s: no watermark of the batches before %d is known, so that none of its rows is late", job, batch)
    begun = captured.get(batch)
    at = datetime.fromisoformat(begun["judged_at"]) if begun is not None else judged_at or utc_now()
    earlier = {number: note for number, note in written.items() if number < batch}
    before = Watermark.from_json(earlier[max(earlier)]["watermark"]) if earlier else Watermark()
    shared = df.persist()
    try:
        measured = measure_event_times(shared, detector=detector, judgement=Judgement(before, at))
        told = {"rows": measured.rows, "newest": max((one.isoformat() for one in measured.seen.values()), default=None)}
        # Of a stream that began anew the first batch alone has the number of one that may be a repeat.
        if batch == 0 and begun is not None and any(begun.get(name, one) != one for name, one in told.items()):
            raise _began_anew(job, batch, "it was written before, with other rows")
        if batch not in written:
            _refuse_too_late(measured, detector, job, batch)
        after = detector.tracking.advance(before, measured.seen, at)
        split = split_late_rows(
            shared,
            event_time=detector.event_time,
            watermark=before,
            judged_at=at,
            ahead=detector.ahead,
            source=detector.source,
        )
        note = {"job": job, "batch": batch, "judged_at": at.isoformat(), **told}
        # Where they are only counted, the commit without rows still tells when the batch was judged.
        _add(split.late if detector.late == "capture" else split.late.where("false"), late_path, note)
        if newest is None and batch not in _notes(spark, late_path, job):
            raise _began_anew(job, batch, "a later batch of it was written before, of which its log tells no longer")
        _add(split.unusable, unusable_path, note)
        failpoint("late_rows_captured")
        _add(split.on_time, on_time_path, {**note, "watermark": after.to_json()})
    finally:
        shared.unpersist()
    _warn_of_late_sources(measured, detector, job, batch)
    return LateAccount(measured, before, after)


def _began_anew(job: str, batch: int, why: str) -> InputError:
    return InputError(
        f"{_NAME}: this is batch {batch} of {job}, and {why}: the stream began anew, without its checkpoint, or "
        "another one has the same name. Delta would skip its rows as known. Nothing was written.",
        hint="Bring the checkpoint back from a copy. Or go on under another name (job=...): then the watermark begins "
        "anew, and records that the stream reads again are written again.",
    )


def _refuse_too_late(measured: Measured, detector: LateDataDetector, job: str, batch: int) -> None:
    if detector.stop_above is None or not measured.rows:
        return
    late, share = measured.late_rows, measured.late_rows / measured.rows
    if share > detector.stop_above:
        raise LimitExceeded(
            f"{_NAME}: {late:,} of {measured.rows:,} rows ({share:.1%}) of batch {batch} of {job} are late, more than "
            f"the limit of {detector.stop_above:.1%}. None of its rows in time was written.",
            dataset=job,
            slice_id=str(batch),
            share=share,
            rows=late,
        )


def _warn_of_late_sources(measured: Measured, detector: LateDataDetector, job: str, batch: int) -> None:
    for source in sorted(measured.of):
        share = measured.late_share(source)
        if detector.warn_above is not None and share > detector.warn_above:
            _log.warning(
                "%s: %.1f%% of the rows of %s in batch %d are late", job, 100 * share, source or "the input", batch
            )


def _add(rows: DataFrame, path: str, note: dict[str, Any]) -> None:
    """Delta skips the commit of a batch that it has already."""
    writer = rows.write.format("delta").mode("append").option("userMetadata", json.dumps({"late_data": note}))
    writer.option("txnAppId", f"late-data:{note['job']}").option("txnVersion", note["batch"]).save(path)


def _notes(spark: SparkSession, path: str, job: str) -> dict[int, dict[str, Any]]:
    """What the last batches of a job noted in the commits of a table."""
    if not table_exists(spark, path):
        return {}
    mine = f"get_json_object(userMetadata, '$.late_data.job') = '{job}'"
    # Others may have written to the table since, or compacted it: a watermark that is not found would begin anew.
    for newest in (f" LIMIT {_LOOK_BACK}", ""):
        history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`{newest}").where(mine)
        told = history.orderBy("version", ascending=False).limit(_LOOK_BACK).select("userMetadata").collect()
        if told:
            notes = [json.loads(text)["late_data"] for (text,) in told]
            return {note["batch"]: note for note in notes}
    return {}
