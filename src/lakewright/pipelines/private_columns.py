"""Which columns hold what is private, so that no message shows their values: as contracts tag them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from lakewright.errors import first_words
from lakewright.patterns.ingestion.passthrough_replicator import PRIVATE
from lakewright.pipelines.definitions import Dataset

if TYPE_CHECKING:
    from lakewright.pipelines.workshop import Workshop

__all__ = ["private_columns", "private_tags", "words_of"]

_VALUES = re.compile(
    r"""(?<!\w)"[^"]*'[^"]*"|(?<![a-z]{2})'(?:[^'\\]|\\.)*(?:'|$)|(?<=The value )[^'\s]\S*""",
)
"""Values in what Spark and Python say: in quotes, or a number that cannot be cast. Types are in double quotes."""
_MOST = 400


def private_columns(shop: Workshop, dataset: Dataset, columns: Iterable[str]) -> list[str]:
    """Those of the columns that a contract of the dataset, or of any above it, tags."""
    return [name for name in columns if private_tags(shop, dataset, name)]


def words_of(error: BaseException, private: Collection[str]) -> str:
    r"""What an error says, in one line. Where there are private columns, values are hidden: nobody knows of which.

    >>> words_of(ValueError("The value 'a@b.c' of the type \"STRING\" cannot be cast."), ["email"])
    'The value *** of the type "STRING" cannot be cast.'
    """
    # Cut only then: of a value that was cut nobody sees where it ends.
    return _VALUES.sub("***", first_words(error, most=None))[:_MOST] if private else first_words(error)


def private_tags(shop: Workshop, dataset: Dataset, column: str) -> list[str]:
    """The tags that contracts of the dataset, or of any above it, give to a column of this name.

    Each project has its own words for what is private, so that every tag of a column counts; those of a whole dataset
    may say anything, and only the usual words do.
    """
    graph, tags = shop.graph, set[str]()
    left, seen = [dataset.name], set[str]()
    while left:
        name = left.pop()
        name = graph.owners.get(name, name)
        if name in seen or name not in graph.datasets:
            continue
        seen.add(name)
        above = graph[name]
        left += [one for given in above.inputs for one in given.datasets]
        if above.contract is not None:
            tags |= {tag for one in above.contract.columns if one.name == column for tag in one.tags}
            tags |= set(above.contract.tags) & {*PRIVATE, "personal"}
    return sorted(tags)
