"""Which columns hold what is private, so that no message shows their values: as contracts tag them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from lakewright.errors import LakewrightError, first_words
from lakewright.model.contracts import Contract
from lakewright.patterns.ingestion.passthrough_replicator import PRIVATE
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph

if TYPE_CHECKING:
    from lakewright.pipelines.workshop import Workshop

__all__ = ["private_columns", "private_tags", "words_of", "words_of_step"]

_USUAL = {*PRIVATE, "personal"}
"""Tags of a whole dataset that say that its rows are private."""
_UNQUOTED = (
    ("map key ", " was found"),
    ("object key ", r"\. SQLSTATE"),
    ("The url is invalid: ", r"\. Use "),
    ("cannot be decoded: ", r"\. Please "),
    ("Unable to parse ", r"\. Please "),
    ("The variant value ", " cannot be cast"),
    ("record parsing: ", r"\. Parse Mode"),
    ("Failed parsing struct: ", r"\. SQLSTATE"),
    ("row value ", " of the class"),
    ("found in string: ", r"\. SQLSTATE"),
    ("The timezone: ", " is invalid"),
    ("day of week: ", r"\. SQLSTATE"),
    ("provided value is ", r"\. To avoid"),
)
"""Between which words Spark writes a text as it is; one with a line break goes on to the end of what is shown."""
_VALUES = re.compile(
    "|".join(
        (
            r"""(?<!\w)"[^"]*'[^"]*"|(?<![a-z]{2})'(?:[^'\\]|\\.)*(?:'|$)""",
            r"(?<=The value )[^'\s]\S*|(?<=\] )\S+ \S+ \S+(?= caused overflow)",
            r"(?<=\] )\S+(?= cannot be represented as)|(?<=The )\S+ rounded half up from \S+",
            *(f"(?<={before}).+?(?={after}|$)" for before, after in _UNQUOTED),
        )
    )
)
"""Values in what Spark and Python say: in quotes, or where Spark sets none. Types are in double quotes."""
_MOST = 400


def private_columns(shop: Workshop, dataset: Dataset, columns: Iterable[str]) -> list[str]:
    """Those of the columns that a contract of the dataset, or of any above it, tags."""
    return [name for name in columns if private_tags(shop, dataset, name)]


def words_of(error: BaseException | str, private: Collection[str]) -> str:
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
    tags = set[str]()
    for contract in _contracts_above(shop.graph, dataset):
        tags |= {tag for one in contract.columns if one.name == column for tag in one.tags}
        tags |= set(contract.tags) & _USUAL
    return sorted(tags)


def words_of_step(graph: Graph, dataset: Dataset, error: BaseException | str, *, named: bool = False) -> str:
    """What a step's own error says, in one line, and ``named`` its type before it.

    Of which column a value is, Spark does not tell: where any is tagged that the step may have read, all are hidden. An
    error of ours says what it may.
    """
    contracts = [] if isinstance(error, LakewrightError) else [*_contracts_above(graph, dataset)]
    tagged = [one.name for contract in contracts for one in contract.columns if one.tags]
    tagged += [dataset.name for contract in contracts if set(contract.tags) & _USUAL]
    said, name = words_of(error, tagged), type(error).__name__
    return said if not named or said == name else f"{name}: {said}"


def _contracts_above(graph: Graph, dataset: Dataset) -> Iterator[Contract]:
    """Those of a dataset, and of all that it is made of."""
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
            yield above.contract
