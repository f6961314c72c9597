"""What Dead-Letter guards declare beyond judging rows: when people are told, how long letters are kept, and whether
they may be replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError
from lakewright.lake.side_tables import DEAD_LETTERS
from lakewright.model.findings import Finding
from lakewright.model.receipts import Receipt
from lakewright.model.sql import text_literal
from lakewright.model.times import parse_duration
from lakewright.patterns.error_management.dead_letter import DeadLetter
from lakewright.pipelines.dead_letters import drop_old_history
from lakewright.pipelines.definitions import Dataset, Input
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.maintain import TableOutcome
from lakewright.pipelines.private_columns import private_tags
from lakewright.pipelines.settle import BEHIND_WATERMARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.workshop import Workshop

__all__ = [
    "keep_letters_short",
    "keeps_letters_short",
    "key_warnings",
    "letter_warnings",
    "never_replayed",
    "refuse_never_replayed",
]

_NAMED = 3
"""So many keys are named in a warning."""
_LONGEST = 40
"""Of a key so many characters are shown."""


def letter_warnings(dataset: Dataset, receipt: Receipt) -> tuple[Finding, ...]:
    """What is said where more rows were set aside than ``warn_above`` and ``warn_above_rows`` allow.

    Of a micro-batch the log does not tell how many rows were read: those set aside and those written count.
    """
    counters = receipt.counters
    read = counters.rejected_rows + (counters.written or 0) if counters.read is None else counters.read
    # What the state of a stream dropped is counted, and no letter.
    letters = {rule: rows for rule, rows in counters.rejected.items() if rows and rule != BEHIND_WATERMARK}
    rejected = sum(letters.values())
    rules = ", ".join(f"{rule} {rows:,}" for rule, rows in letters.items())
    found = []
    for guard in _guards(dataset):
        share = rejected / read if read else 0.0
        above_share = guard.warn_above is not None and share > guard.warn_above
        if above_share or (guard.warn_above_rows is not None and rejected > guard.warn_above_rows):
            limit = f"{guard.warn_above:.1%}" if above_share else f"{guard.warn_above_rows:,} rows"
            found.append(
                Finding(
                    dataset=dataset.name,
                    subject="dead letters",
                    message=f"{rejected:,} of {read:,} rows ({share:.1%}) of slice {receipt.slice_id} are dead letters "
                    f"({rules}), more than {limit}.",
                    slice_id=receipt.slice_id,
                    cure=f"`lakewright dead-letters list {dataset.name}` shows them.",
                )
            )
    return tuple(found)


def key_warnings(shop: Workshop, dataset: Dataset, receipt: Receipt) -> tuple[Finding, ...]:
    """What is said of keys with many letters in one slice, where ``warn_per_key`` asks for it.

    Runs a job that reads the letters of this slice alone, and none where there are too few of them.
    """
    first = next((given for given in dataset.inputs if given.guards), None)
    found = []
    for given in dataset.inputs:
        for guard in given.guards:
            if not isinstance(guard, DeadLetter) or guard.warn_per_key is None:
                continue
            # The receipt counts those of the input that is guarded first; of others it does not tell.
            counted = sum(receipt.counters.rejected.get(rule, 0) for rule in guard.rules)
            if given is first and counted < guard.warn_per_key[1]:
                continue
            told = _told_of_keys(shop, dataset, given, guard, receipt)
            found += [] if told is None else [told]
    return tuple(found)


def _told_of_keys(
    shop: Workshop, dataset: Dataset, given: Input, guard: DeadLetter, receipt: Receipt
) -> Finding | None:
    assert guard.warn_per_key is not None
    column, rows = guard.warn_per_key
    slice_id, keys = receipt.slice_id, _failing_keys(shop, dataset, given, guard, receipt)
    most = [] if keys is None else keys.orderBy("count", "key", ascending=[False, True]).take(_NAMED + 1)
    if keys is None or not most:
        return None
    number = len(most) if len(most) <= _NAMED else keys.count()
    if tags := private_tags(shop, dataset, column):
        named = f"{number:,} of them, not named here since a contract tags the column as {' and '.join(tags)}"
    else:
        named = ", ".join(f"{_shown(row['key'])} ({row['count']:,})" for row in most[:_NAMED])
        named += f" and {number - _NAMED:,} more" if number > _NAMED else ""
    return Finding(
        dataset=dataset.name,
        subject="dead letters of a key",
        message=f"{rows:,} or more dead letters of slice {slice_id} have the same {column}: {named}.",
        slice_id=slice_id,
        cure=f"`lakewright dead-letters list {dataset.name} --slice {slice_id}` shows them. Sessions, and whatever "
        f"else is made of the rows of one {column} in their order, lack these.",
    )


def _shown(key: str) -> str:
    text = " ".join(key.split())
    return repr(key) if not text else text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _failing_keys(
    shop: Workshop, dataset: Dataset, given: Input, guard: DeadLetter, receipt: Receipt
) -> DataFrame | None:
    """Key -> letters, of the keys that have as many as the guard says; None where there never was a letter. Lazy."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    assert guard.warn_per_key is not None
    column, rows = guard.warn_per_key
    if not shop.lake.log(DEAD_LETTERS).exists():
        return None
    rules = ", ".join(map(text_literal, guard.rules))
    # The table is partitioned by these four: nothing but this slice's letters is read.
    letters = shop.lake.read(DEAD_LETTERS, system_columns=True).where(
        f"dataset = {text_literal(dataset.name)} AND slice = {text_literal(receipt.slice_id)} "
        f"AND input = {text_literal(given.dataset)} AND rule IN ({rules}) AND number = {receipt.number}"
    )
    record = F.from_json("record", StructType([StructField(column, StringType())]))
    keys = letters.select(record.getField(column).alias("key")).where("key IS NOT NULL")
    return keys.groupBy("key").count().where(F.col("count") >= rows)


def never_replayed(dataset: Dataset) -> bool:
    """Whether the dataset says that nothing that was set aside comes back into it."""
    return any(guard.replay == "never" for guard in _guards(dataset))


def refuse_never_replayed(dataset: Dataset) -> None:
    """Refuse a replay of a dataset's letters where it says so. Asks nobody, and runs no job."""
    if never_replayed(dataset):
        raise ConfigurationError(
            f'{dataset.place}: {dataset.name} says replay="never": its dead letters are not put back, because who '
            "reads it cannot read a slice again. Nothing was changed.",
            hint="They stay where they are, as evidence; `lakewright dead-letters retire` closes them. Where consumers "
            "can take corrected slices now, leave replay out.",
        )


def keeps_letters_short(graph: Graph, names: Sequence[str]) -> bool:
    """Whether one of the datasets says how long its dead letters are kept."""
    return any(_kept(graph[name]) for name in names)


def keep_letters_short(shop: Workshop, names: Sequence[str], *, dry_run: bool) -> list[TableOutcome]:
    """Runs jobs that retire and forget letters that are older than their dataset keeps them."""
    found = []
    for dataset in (shop.graph[name] for name in names):
        if not (kept := _kept(dataset)):
            continue
        retired, forgotten = drop_old_history(shop, dataset.name, max(kept), dry_run=dry_run)
        done = f"{retired:,} open for longer than kept: retired; {forgotten:,} closed ones forgotten"
        state = "done" if retired or forgotten else "nothing"
        found.append(TableOutcome(f"dead letters of {dataset.name}", state, done))  # type: ignore[arg-type]
    return found


def _kept(dataset: Dataset) -> list[timedelta]:
    of_guards = [parse_duration(guard.keep) for guard in _guards(dataset) if guard.keep is not None]
    return of_guards if dataset.keep_letters is None else [*of_guards, dataset.keep_letters]


def _guards(dataset: Dataset) -> Iterator[DeadLetter]:
    for given in dataset.inputs:
        yield from (guard for guard in given.guards if isinstance(guard, DeadLetter))
