"""The life of dead letters: open, corrected or retired, by the identity of the record.

A dead letter lies in ``dead_letters`` as long as its slice sets it aside; what people did about it lies in
``dead_letter_life``, a row per replay or retirement. The state follows from both, so that no kill can leave them in
disagreement: a letter that is there is open unless somebody retired it; one that was replayed and is gone is corrected.
What an attempt set aside that published nothing, beside a slice that is published, is evidence and counts for nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from lakewright.errors import TargetError
from lakewright.lake.letter_places import RECORD_ID
from lakewright.lake.side_tables import DEAD_LETTER_LIFE, DEAD_LETTERS
from lakewright.model.identity import Identity
from lakewright.model.slices import WHOLE
from lakewright.model.sql import text_literal
from lakewright.pipelines.counting import COUNTS, side_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.workshop import Workshop

__all__ = [
    "LETTER_COLUMNS",
    "Action",
    "State",
    "all_letters",
    "letters_before",
    "letters_there",
    "note_life",
    "retire_replaced",
]

Action = Literal["replayed", "retired"]
State = Literal["open", "corrected", "retired", "evidence"]

_TOLD = {
    "slice": "string",
    "rule": "string",
    "rules": "array<string>",
    "error": "string",
    "file": "string",
    "file_version": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "record_hash": "bigint",
    "raw": "string",
    "record": "string",
    "run_id": "string",
    "run_time": "timestamp",
    "code": "string",
}
"""What a letter tells of its record and of who judged it, and what its life keeps of that."""
_KEYS = ("dataset", "input", "id")
_HISTORY = "array<struct<at: timestamp, action: string, rules: array<string>, note: string, by_run: string>>"
_SEEN_LAST = "known.run_time AS seen"
LETTER_COLUMNS = (*_KEYS, *_TOLD, "seen", "state", "attempts", "note", "closed_at", "history")


def all_letters(shop: Workshop) -> DataFrame | None:
    """Every dead letter with its state, also those that are no longer set aside; None where there never was one. Lazy.

    ``seen`` is when its record was set aside for the first time. ``attempts`` counts replays, ``history`` tells each of
    them with the rules that were broken before it.
    """
    lake = shop.lake
    there = lake.log(DEAD_LETTERS).exists()
    if not there and not lake.log(DEAD_LETTER_LIFE).exists():
        return None
    life = _lives(shop)
    letters = letters_there(shop) if there else None
    if letters is None:
        assert life is not None
        return life.selectExpr(*_KEYS, "known.*", _SEEN_LAST, *_closed())
    if life is None:
        nothing = [
            f"CASE WHEN {COUNTS} THEN 'open' ELSE 'evidence' END AS state",
            "0 AS attempts",
            "CAST(NULL AS STRING) AS note",
        ]
        nothing += ["CAST(NULL AS TIMESTAMP) AS closed_at", f"CAST(array() AS {_HISTORY}) AS history"]
        return letters.selectExpr(*_KEYS, *_quoted(_TOLD), "seen", *nothing)
    lived = life.select(*_KEYS, "last", "attempts", "history")
    still = letters.join(lived, list(_KEYS), "left").selectExpr(
        *_KEYS,
        *_quoted(_TOLD),
        "seen",
        f"CASE WHEN NOT {COUNTS} THEN 'evidence' WHEN last.action = 'retired' THEN 'retired' ELSE 'open' END AS state",
        "coalesce(attempts, 0) AS attempts",
        "last.note AS note",
        f"CASE WHEN {COUNTS} AND last.action = 'retired' THEN last.at END AS closed_at",
        f"coalesce(history, CAST(array() AS {_HISTORY})) AS history",
    )
    gone = life.join(letters.select(*_KEYS).distinct(), list(_KEYS), "left_anti")
    return still.unionByName(gone.selectExpr(*_KEYS, "known.*", _SEEN_LAST, *_closed()))


def _closed() -> list[str]:
    state = "CASE WHEN last.action = 'retired' THEN 'retired' ELSE 'corrected' END AS state"
    return [state, "attempts", "last.note AS note", "last.at AS closed_at", "history"]


def letters_there(shop: Workshop) -> DataFrame:
    """The letters that count; and the evidence of attempts that published nothing, of records that have no such letter.

    Each record is there as what it is now, so that nobody who takes both corrects one twice.
    """
    from pyspark.sql import functions as F

    letters = side_rows(shop.lake, shop.store, shop.graph, DEAD_LETTERS).withColumn("id", F.expr(RECORD_ID))
    if "error" not in letters.columns:  # made by an older release
        letters = letters.withColumn("error", F.lit(None).cast("string"))
    first = "coalesce(seen, run_time)" if "seen" in letters.columns else "run_time"
    letters = letters.withColumn("seen", F.expr(first))
    any_counts = F.expr(f"max({COUNTS}) OVER (PARTITION BY {', '.join(_KEYS)})")
    return letters.withColumn("_lw_any", any_counts).where(f"{COUNTS} OR NOT _lw_any").drop("_lw_any")


def letters_before(shop: Workshop, at: datetime) -> DataFrame | None:
    """What tells the letters that lay there at a time; None where the table's history does not reach so far. Lazy."""
    from pyspark.sql import functions as F

    log = shop.lake.delta_log(DEAD_LETTERS)
    earliest, latest = log.bounds()
    if earliest is None or latest is None:
        return None
    version = next((one for one in range(latest, earliest - 1, -1) if log.commit(one).committed_at < at), None)
    if version is None:
        return None
    try:
        if shop.lake.lost_files(DEAD_LETTERS, version):
            return None
        letters = shop.lake.read(DEAD_LETTERS, version=version, system_columns=True)
    except TargetError:  # Delta gives no version that is older than it keeps deleted files, though the log has it
        return None
    return letters.withColumn("id", F.expr(RECORD_ID)).select(*_KEYS).distinct()


def _lives(shop: Workshop) -> DataFrame | None:
    from pyspark.sql import functions as F

    if not shop.lake.log(DEAD_LETTER_LIFE).exists():
        return None
    told = ", ".join(_quoted(_TOLD))
    rows = shop.lake.read(DEAD_LETTER_LIFE, system_columns=True)
    event = "named_struct('at', at, 'action', action, 'rules', rules, 'note', note, 'by_run', by_run)"
    return rows.groupBy(*_KEYS).agg(
        F.expr("CAST(count_if(action = 'replayed') AS INT) AS attempts"),
        F.expr("max_by(struct(action, note, at), struct(at, by_run)) AS last"),
        F.expr(f"max_by(struct({told}), struct(at, by_run)) AS known"),
        F.expr(f"array_sort(collect_set({event})) AS history"),
    )


def note_life(shop: Workshop, letters: DataFrame, action: Action, *, note: str | None, of: str) -> None:
    """Runs a job that adds to the life of letters what is done about them now."""
    from pyspark.sql import functions as F

    rows = letters.dropDuplicates(list(_KEYS)).select(
        *_KEYS,
        *_quoted(_TOLD),
        F.lit(action).alias("action"),
        F.lit(note).cast("string").alias("note"),
        F.lit(shop.now()).cast("timestamp").alias("at"),
        F.lit(shop.run.run_id).alias("by_run"),
    )
    identity = Identity(
        dataset=of,
        slice_id=WHOLE.id,
        number=shop.store.leases.draw(of),
        run_id=shop.run.run_id,
        part="life",
        run_time=shop.run.time.isoformat(),
    )
    shop.lake.open(DEAD_LETTER_LIFE, identity).append(rows, partition_by=("dataset",))


def retire_replaced(shop: Workshop, source: str, replaced: str, *, note: str) -> None:
    """Runs jobs that retire what was set aside of records that are no longer there (SQL), whoever set it aside."""
    letters = all_letters(shop)
    if letters is None:
        return
    theirs = letters.where(f"input = {text_literal(source)} AND state <> 'retired' AND ({replaced})")
    if theirs.isEmpty():
        return
    note_life(shop, theirs, "retired", note=note, of=source)
    if shop.lake.log(DEAD_LETTERS).exists():
        identity = Identity(
            dataset=source,
            slice_id=WHOLE.id,
            number=shop.store.leases.draw(source),
            run_id=shop.run.run_id,
            part="replaced",
        )
        # Those of the source itself: what a step set aside is replaced when its slice is made again.
        own = f"dataset = {text_literal(source)} AND input = dataset"
        shop.lake.open(DEAD_LETTERS, identity).delete(f"{own} AND ({replaced})")


def _quoted(columns: dict[str, str]) -> list[str]:
    return [f"`{name}`" for name in columns]
