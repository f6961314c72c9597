"""Looking at dead letters, and closing those that nobody will correct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, get_args

from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.lake.letter_places import RECORD_ID
from lakewright.lake.side_tables import DEAD_LETTER_LIFE, DEAD_LETTERS
from lakewright.model.identity import Identity
from lakewright.model.slices import WHOLE
from lakewright.model.sql import text_literal
from lakewright.pipelines.dead_letter_life import State, all_letters, letters_before, letters_there, note_life

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.workshop import Workshop

__all__ = ["LetterCount", "Selection", "count_letters", "drop_old_history", "retire_letters", "select_letters"]

_TELLS = "raw IS NOT NULL OR record IS NOT NULL OR error IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters are meant; what is left empty does not matter."""

    dataset: str | None = None
    records: tuple[str, ...] = ()
    """The short names of records, as ``dead-letters list`` shows them."""
    reasons: tuple[str, ...] = ()
    """Rules, of which one at least was broken."""
    slices: tuple[str, ...] = ()
    start: datetime | None = None
    """Set aside from this time on."""
    end: datetime | None = None
    """And before this one."""
    states: tuple[State, ...] = ("open",)

    def __post_init__(self) -> None:
        for state in self.states:
            if state not in get_args(State):
                raise UnknownNameError("state of a dead letter", state, get_args(State))

    @property
    def is_wide(self) -> bool:
        """Whether nothing but the dataset tells which letters are meant."""
        return not (self.records or self.reasons or self.slices or self.start or self.end)

    def condition(self) -> str:
        """The same as SQL on letters."""
        parts = [f"state IN ({_listed(self.states)})"]
        if self.dataset is not None:
            parts.append(f"dataset = {text_literal(self.dataset)}")
        if self.records:
            parts.append(f"id IN ({_listed([one.lower() for one in self.records])})")
        if self.reasons:
            parts.append(f"arrays_overlap(rules, array({_listed(self.reasons)}))")
        if self.slices:
            parts.append(f"slice IN ({_listed(self.slices)})")
        parts += [
            f"run_time {sign} TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}'"
            for sign, at in ((">=", self.start), ("<", self.end))
            if at is not None
        ]
        return " AND ".join(parts)


@dataclass(frozen=True, slots=True)
class LetterCount:
    """How many letters of one dataset, under one rule, are in each state. Evidence counts in none of the others."""

    dataset: str
    rule: str
    open: int
    corrected: int
    retired: int
    new: int
    """Open ones of records that were set aside since the time asked for, and not before."""
    oldest: datetime | None = field(default=None)
    """When the oldest open one was set aside for the first time."""
    replay: Literal["allow", "never"] = "allow"
    """What the dataset says of putting them back."""
    evidence: int = 0
    """Those of an attempt that published nothing, beside a slice that is published."""


def select_letters(shop: Workshop, selection: Selection) -> DataFrame | None:
    """The letters that are meant; None where there never was a dead letter. Lazy."""
    letters, name = all_letters(shop), selection.dataset
    # Letters stay when their dataset is taken out or renamed, and somebody has to be able to close them.
    known = name is None or name in shop.graph.datasets
    if not known and (letters is None or letters.where(f"dataset = {text_literal(name or '')}").isEmpty()):
        raise UnknownNameError("dataset", name or "", shop.graph.datasets)
    return None if letters is None else letters.where(selection.condition())


def count_letters(shop: Workshop, *, since: datetime | None = None) -> list[LetterCount]:
    """Runs a job that counts the letters of all datasets, for people and alarms."""
    from pyspark.sql import functions as F

    letters = all_letters(shop)
    if letters is None:
        return []
    states = [F.count_if(F.col("state") == state).alias(f"_{state}") for state in get_args(State)]
    is_new = "false"
    if since is not None:
        is_new = f"seen >= TIMESTAMP '{since:%Y-%m-%d %H:%M:%S}'"
        # A slice that is made again sets the same records aside again: those are no news.
        if (known := letters_before(shop, since)) is not None:
            letters = letters.join(known.withColumn("known", F.lit(True)), known.columns, "left")
            is_new += " AND known IS NULL"
    counted = letters.groupBy("dataset", "rule").agg(
        *states,
        F.expr(f"count_if(state = 'open' AND {is_new}) AS new"),
        F.expr("min(CASE WHEN state = 'open' THEN seen END) AS oldest"),
    )
    return [
        LetterCount(
            r["dataset"],
            r["rule"],
            r["_open"],
            r["_corrected"],
            r["_retired"],
            r["new"],
            r["oldest"],
            evidence=r["_evidence"],
        )
        for r in sorted(counted.collect(), key=lambda row: (row["dataset"], row["rule"]))
    ]


def retire_letters(shop: Workshop, selection: Selection, *, because: str) -> int:
    """Runs jobs that close open letters for good, with the reason; how many there were.

    They stay where they are, and a repeat of their slice does not open them again.
    """
    if not because.strip():
        raise ConfigurationError("A dead letter is retired for a reason. Nothing was changed.", hint="--because TEXT")
    if selection.dataset is None or selection.is_wide:
        raise ConfigurationError(
            "Nothing says which dead letters to retire. Nothing was changed.",
            hint="Name a dataset and --record, --reason, --slice, --from or --to.",
        )
    letters = select_letters(shop, selection)
    count = 0 if letters is None else letters.count()
    if letters is not None and count:
        note_life(shop, letters, "retired", note=because, of=selection.dataset)
    return count


def drop_old_history(shop: Workshop, dataset: str, keep: timedelta, *, dry_run: bool) -> tuple[int, int]:
    """Runs jobs that retire the open letters of records that were first set aside longer ago than ``keep``, and forget
    those that were closed longer ago.

    How many were retired and forgotten. Forgotten, nothing is left of what they said; that a letter was retired is kept
    for as long as its record is still set aside, or it would be open again. What attempts have said that count no
    longer, or never did, goes with the letter of their record; where it has none, once it is as old.
    """
    limit = f"TIMESTAMP '{shop.now() - keep:%Y-%m-%d %H:%M:%S}'"
    letters = select_letters(shop, Selection(dataset, states=("open", "corrected", "retired")))
    if letters is None:
        return 0, 0
    old = letters.where(f"coalesce(closed_at, seen) < {limit}")
    closed = _closed_ones(shop, dataset, old.where("state <> 'open'"))
    silenced = _to_silence(shop, dataset, limit, letters, closed)
    retired = old.where("state = 'open'").count()
    forgotten = closed.select("input", "id").union(silenced.select("input", "id")).distinct().count()
    if dry_run:
        return retired, forgotten
    if forgotten:  # before others are retired, which are closed from now on
        _forget(shop, dataset, closed, silenced)
    if retired:
        note_life(shop, old.where("state = 'open'"), "retired", note=f"older than {keep.days} days", of=dataset)
    return retired, forgotten


def _closed_ones(shop: Workshop, dataset: str, closed: DataFrame) -> DataFrame:
    """Record by record, whether it is still set aside; those of which something is told. Lazy."""
    from pyspark.sql import functions as F

    records = closed.groupBy("input", "id").agg(F.expr(f"max({_TELLS})").alias("tells"))
    if not shop.lake.log(DEAD_LETTERS).exists():
        return records.withColumn("stays", F.lit(False))
    there = letters_there(shop).where(f"dataset = {text_literal(dataset)}").select("input", "id").distinct()
    lies = records.join(there.withColumn("stays", F.lit(True)), ["input", "id"], "left").fillna(False, ["stays"])
    return lies.where("tells OR NOT stays")


def _to_silence(shop: Workshop, dataset: str, limit: str, letters: DataFrame, closed: DataFrame) -> DataFrame:
    """Record by record, the slices in whose rows something is told that is to be forgotten. Lazy.

    That of closed letters; and what is old, and lies there beside what counts, of records that no other letter tells.
    """
    from pyspark.sql import functions as F

    if not shop.lake.log(DEAD_LETTERS).exists():
        return closed.selectExpr("input", "id", "array('') AS slices").where("false")
    rows = shop.lake.read(DEAD_LETTERS, system_columns=True).where(f"dataset = {text_literal(dataset)}")
    first = "coalesce(seen, run_time)" if "seen" in rows.columns else "run_time"
    tells = rows.where(_TELLS if "error" in rows.columns else "raw IS NOT NULL OR record IS NOT NULL")
    lying = tells.selectExpr("input", f"{RECORD_ID} AS id", "slice", f"{first} < {limit} AS old")
    closing = closed.select("input", "id").withColumn("closing", F.lit(True))
    told = letters.where(_TELLS).select("input", "id").distinct().join(closing, ["input", "id"], "left_anti")
    left = lying.join(told, ["input", "id"], "left_anti").join(closing, ["input", "id"], "left")
    return left.where("old OR closing").groupBy("input", "id").agg(F.collect_set("slice").alias("slices"))


def _forget(shop: Workshop, dataset: str, closed: DataFrame, silenced: DataFrame) -> None:
    """Runs jobs that delete the lives of records that are gone, and what is told of those that are still set aside."""
    identity = Identity(
        dataset=dataset,
        slice_id=WHOLE.id,
        number=shop.store.leases.draw(dataset),
        run_id=shop.run.run_id,
        part="forgotten",
    )
    slices = sorted({one for row in silenced.select("slices").distinct().collect() for one in row["slices"]})
    silent = "WHEN MATCHED THEN UPDATE SET raw = NULL, record = NULL, error = NULL"
    same = f"t.dataset = {text_literal(dataset)} AND t.input <=> s._input AND t.id = s._id"
    # The letters last: until then, killed in between, the next time finds that they still tell something.
    if shop.lake.log(DEAD_LETTER_LIFE).exists():
        records = closed.selectExpr("input AS _input", "id AS _id", "stays AS _stays")
        lives = shop.lake.open(DEAD_LETTER_LIFE, identity)
        lives.merge(records, on=same, clauses=f"WHEN MATCHED AND NOT s._stays THEN DELETE {silent}")
    if slices:
        theirs = f"t.dataset = {text_literal(dataset)} AND t.slice IN ({_listed(slices)}) AND t.input <=> s._input"
        rows = silenced.selectExpr("input AS _input", "id AS _id", "slices AS _slices")
        letters = shop.lake.open(DEAD_LETTERS, identity)
        on = f"{theirs} AND {RECORD_ID} = s._id AND array_contains(s._slices, t.slice)"
        letters.merge(rows, on=on, clauses=silent)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(map(text_literal, values))
