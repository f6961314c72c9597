"""Dead letters of a stream that follows changes: a record that is read again, or is gone, has none of before.

Guarantee:
    A record of the table that is followed has a letter at most once, and none once it was changed or deleted there:
    what earlier micro-batches had set aside of it is withdrawn before it is judged anew. A repeat changes nothing.
Consequences:
    - A MERGE of each micro-batch that took something away, which reads the letters of this dataset and input.
    - Rows that are the same in every column share their letters: where one of them goes, those of the others go too.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from lakewright.lake.letter_places import PLACE_OF_LETTER, SAME_RECORD
from lakewright.lake.side_tables import DEAD_LETTERS, dead_letter_rows
from lakewright.model.sql import text_literal
from lakewright.pipelines.inputs import InputFrame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.streams.batches import BatchAttempt

__all__ = ["WITHDRAWN", "withdraw_letters"]

WITHDRAWN = "withdrawn"
"""The part under which letters of earlier micro-batches are deleted."""


def withdraw_letters(attempt: BatchAttempt, followed: InputFrame) -> None:
    """Runs the job that deletes what earlier micro-batches told of these rows, whatever the rules say now."""
    from pyspark.sql import functions as F

    lake, identity = attempt.shop.lake, attempt.identity().as_judge(WITHDRAWN)
    name, judged = followed.given.dataset, [one for one in followed.side if one[1].table == "dead_letters"]
    if not judged or not lake.log(DEAD_LETTERS).exists():
        return
    records: list[DataFrame] = [
        dead_letter_rows(rows, reasons=F.array(F.lit("")), identity=identity, input_name=name, keep=side.keep).select(
            *PLACE_OF_LETTER
        )
        for rows, side in judged
    ]
    every = reduce(lambda one, other: one.unionByName(other), records).distinct()
    on = (
        f"t.dataset = {text_literal(attempt.dataset.name)} AND t.input = {text_literal(name)} "
        f"AND t.slice <> {text_literal(attempt.slice.id)} AND {SAME_RECORD}"
    )
    table = lake.open(DEAD_LETTERS, identity, still_mine=attempt.still_mine)
    table.merge(every, on=on, clauses="WHEN MATCHED THEN DELETE")
