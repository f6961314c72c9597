"""Steps: what a run set out to make, and how it ended. An open step blocks the readers of its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, Row, Select, bindparam, func, insert, or_, select, update

from lakewright.model.runs import StepState
from lakewright.store.dialect import reading, writing
from lakewright.store.tables import steps

__all__ = ["StepRecord", "Steps"]

_OPEN = insert(steps).returning(steps.c.step_id)
_CLOSE = (
    update(steps)
    .where(steps.c.step_id == bindparam("id"))
    .values({name: bindparam(name) for name in ("state", "ended_at", "error", "hint")})
)
_MAKING = ("due", "missing", "late", "stale", "outdated", "revisit", "again", "backfill", "rolled back")
"""How the reason of a step begins that makes a slice; others restore, rewind, or set rows aside."""
_GOOD = (
    select(steps.c.slice_id, steps.c.started_at, steps.c.ended_at)
    .where(
        steps.c.dataset == bindparam("of"),
        steps.c.state == "ok",
        steps.c.ended_at.is_not(None),
        or_(*(steps.c.reason.like(f"{word}: %") for word in _MAKING)),
    )
    .order_by(steps.c.step_id.desc())
    .limit(bindparam("most"))
)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One attempt at one slice of one dataset; ``reason`` tells why it was made."""

    step_id: int
    run_id: str
    dataset: str
    slice_id: str
    number: int
    attempt: int
    reason: str
    state: StepState
    started_at: datetime
    ended_at: datetime | None
    outputs: tuple[str, ...]
    error: str | None = None
    hint: str | None = None


class Steps:
    """The steps of all runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open(
        self,
        conn: Connection | None = None,
        *,
        run_id: str,
        dataset: str,
        slice_id: str,
        number: int,
        attempt: int,
        reason: str,
        outputs: Sequence[str],
        now: datetime,
    ) -> int:
        """Record, before anything is written, what is about to be; returns the step's id."""
        values = {
            "run_id": run_id,
            "dataset": dataset,
            "slice_id": slice_id,
            "number": number,
            "attempt": attempt,
            "reason": reason,
            "state": "open",
            "started_at": now,
            "outputs": list(outputs),
        }
        with writing(self._engine, conn) as c:
            return int(c.execute(_OPEN, values).scalar_one())

    def close(
        self,
        step_id: int,
        state: StepState,
        *,
        now: datetime,
        error: str | None = None,
        hint: str | None = None,
        conn: Connection | None = None,
    ) -> None:
        """Record how a step ended."""
        values = {"state": state, "ended_at": now, "error": error, "hint": hint}
        with writing(self._engine, conn) as c:
            c.execute(_CLOSE, {"id": step_id, **values})

    def open_steps(self, dataset: str | None = None) -> list[StepRecord]:
        """The steps without an end, oldest first; with ``dataset``, those that make it or write into it."""
        query = select(steps).where(steps.c.state == "open").order_by(steps.c.step_id)
        found = self._records(query)
        return [step for step in found if dataset is None or dataset in (step.dataset, *step.outputs)]

    def newest(self) -> dict[str, StepRecord]:
        """The last step of every dataset."""
        top = select(func.max(steps.c.step_id)).group_by(steps.c.dataset)
        return {step.dataset: step for step in self._records(select(steps).where(steps.c.step_id.in_(top)))}

    def of_run(self, run_id: str) -> list[StepRecord]:
        """The steps of a run, in the order in which they began."""
        return self._records(select(steps).where(steps.c.run_id == run_id).order_by(steps.c.step_id))

    def tried(self, dataset: str, first: str, upto: str) -> set[str]:
        """The slices from ``first`` to ``upto`` (in order of text) that were begun once and not made."""
        ended = steps.c.state.in_(("failed", "refused", "skipped"))
        query = select(steps.c.slice_id).where(steps.c.dataset == dataset, ended).distinct()
        with reading(self._engine) as c:
            return {*c.execute(query.where(steps.c.slice_id.between(first, upto))).scalars()}

    def left_out(self, dataset: str) -> dict[str, str]:
        """Slice -> why it was left out on purpose, by the newest record that says so."""
        query = select(steps.c.slice_id, steps.c.reason).where(steps.c.dataset == dataset, steps.c.state == "skipped")
        with reading(self._engine) as c:
            return {row.slice_id: row.reason for row in c.execute(query.order_by(steps.c.step_id))}

    def leave_out(self, *, run_id: str, dataset: str, slice_id: str, reason: str, now: datetime) -> None:
        """Record that a run left a slice out, and why."""
        with writing(self._engine, None) as c:
            step_id = self.open(
                c,
                run_id=run_id,
                dataset=dataset,
                slice_id=slice_id,
                number=0,
                attempt=1,
                reason=reason,
                outputs=(),
                now=now,
            )
            self.close(step_id, "skipped", now=now, conn=c)

    def durations(self, datasets: Iterable[str], *, most: int) -> dict[str, list[tuple[str, float]]]:
        """Dataset -> slice and seconds of the last ``most`` steps that made a slice of it, newest first.

        Those that never did are left out. Each costs one look at the newest rows of an index.
        """
        found = {}
        with reading(self._engine) as c:
            for name in datasets:
                rows = c.execute(_GOOD, {"of": name, "most": most}).all()
                if rows:
                    found[name] = [(row.slice_id, (row.ended_at - row.started_at).total_seconds()) for row in rows]
        return found

    def last(self, dataset: str) -> StepRecord | None:
        """The step of a dataset that began last."""
        newest = select(steps).where(steps.c.dataset == dataset).order_by(steps.c.step_id.desc()).limit(1)
        found = self._records(newest)
        return found[0] if found else None

    def _records(self, query: Select[tuple[object, ...]]) -> list[StepRecord]:
        with reading(self._engine) as c:
            return [_record(row) for row in c.execute(query)]


def _record(row: Row[tuple[object, ...]]) -> StepRecord:
    return StepRecord(**{**row._mapping, "outputs": tuple(row.outputs)})
