"""Dead letters after a rollback: those of the attempts that count again take the place of later ones.

A letter is replaced with its slice: the table holds those of the newest attempt, and beside them those of the one that
was published before it. What an earlier one had set aside is in the table's own history, for as long as that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, cast

from lakewright.errors import TargetError
from lakewright.lake.log import own_commits
from lakewright.lake.schemas import fit_to_table
from lakewright.lake.side_tables import BESIDE, DEAD_LETTERS, SIDE_PARTITIONS
from lakewright.model.findings import Finding
from lakewright.model.identity import Identity
from lakewright.model.receipts import Receipt
from lakewright.model.slices import WHOLE, Slice
from lakewright.model.sql import text_literal
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.told_again import tell_unusable_again
from lakewright.store import Grant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.workshop import Workshop

__all__ = ["bring_letters_back"]

_PART = "letters_back"


def bring_letters_back(shop: Workshop, dataset: Dataset, grant: Grant) -> tuple[Finding, ...]:
    """Runs a job where slices that count again after a rollback have other letters than those of their attempt.

    Doing it again changes nothing, nor does anybody who no longer holds the ``grant``. Tells of the slices whose
    letters are no longer in the table's history. Those of a source are told anew from what it keeps.
    """
    if dataset.is_source:
        tell_unusable_again(shop, dataset, grant.number)
    if dataset.is_source or dataset.is_stream or not shop.lake.log(DEAD_LETTERS).exists():
        return ()
    wanted = _counting_again(shop, dataset.name)
    found = _versions_of(shop, dataset.name, {slice_id: one.number for slice_id, one in wanted.items()})
    rows: dict[str, DataFrame] = {}
    for slice_id, version in found.items():
        if version is not None and (read := _letters_at(shop, wanted[slice_id], version)) is not None:
            rows[slice_id] = read
    if rows:
        _replace(shop, grant, rows, {slice_id: wanted[slice_id].number for slice_id in rows})
    lost = [one for slice_id, one in wanted.items() if slice_id in found and slice_id not in rows]
    return tuple(_lost(one) for one in lost if one.counters.rejected_rows)


def _counting_again(shop: Workshop, name: str) -> dict[str, Receipt]:
    """The slices of which an attempt was rolled back, or that were taken back, and of which an earlier one counts."""
    history = shop.store.receipts.since(name, -1, 2**62, kinds=("data", "rewind"))
    withdrawn = {one.slice_id for one in history if one.kind == "data" and one.state == "rolled back"}
    taken = [(one.version, Slice.parse(one.slice_id)) for one in history if one.kind == "rewind"]

    def counts_again(one: Receipt) -> bool:
        # What is older than a deletion of its slice, and counts, was there before that was rolled back.
        return one.slice_id in withdrawn or any(
            one.version < version and _is_from(first, one.slice_id) for version, first in taken
        )

    return {one.slice_id: one for one in history if one.kind == "data" and one.state == "live" and counts_again(one)}


def _is_from(first: Slice, slice_id: str) -> bool:
    slice_ = Slice.parse(slice_id)
    return slice_.kind == first.kind == "arrival" and slice_ >= first


def _versions_of(shop: Workshop, name: str, numbers: Mapping[str, int]) -> dict[str, int | None]:
    """Slice -> the version that has the letters of its attempt; None is nowhere. Without those that lie there now."""
    found: dict[str, int | None] = dict.fromkeys(numbers)
    newest: set[str] = set()
    for commit, identity in own_commits(shop.lake.delta_log(DEAD_LETTERS)) if numbers else ():
        if identity.dataset == name and identity.part == "dead_letters" and commit.operation == "DELETE":
            first = Slice.parse(identity.slice_id)
            newest.update(slice_id for slice_id in numbers if _is_from(first, slice_id))
            continue
        if identity.dataset != name or identity.kind != "data":
            continue
        told = {identity.slice_id: identity.number} if identity.part == "dead_letters" else {}
        if identity.part == _PART:
            told = cast("dict[str, int]", identity.details["of"])
        for slice_id, number in told.items():
            if number == numbers.get(slice_id) and found[slice_id] is None:
                found[slice_id] = commit.version if slice_id in newest else -1
            if identity.details.get(BESIDE) != numbers.get(slice_id):  # it left them where they are
                newest.add(slice_id)
        if None not in found.values():
            break
    return {slice_id: version for slice_id, version in found.items() if version != -1 and slice_id in newest}


def _letters_at(shop: Workshop, wanted: Receipt, version: int) -> DataFrame | None:
    """The letters of an attempt as they were at a version; None where they are gone."""
    name, slice_id = wanted.dataset, wanted.slice_id
    try:
        lost = shop.lake.lost_files(DEAD_LETTERS, version)
        if any(f"/dataset={name}/slice={slice_id}/" in file for file in lost):
            return None
        letters = shop.lake.read(DEAD_LETTERS, version=version, system_columns=True)
    except TargetError:  # the version itself is gone from the history
        return None
    mine = f"dataset = {text_literal(name)} AND slice = {text_literal(slice_id)}"
    return letters.where(f"{mine} AND number = {wanted.number}")


def _replace(shop: Workshop, grant: Grant, rows: Mapping[str, DataFrame], numbers: Mapping[str, int]) -> None:
    identity = Identity(
        dataset=grant.dataset,
        slice_id=WHOLE.id,
        number=grant.number,
        run_id=shop.run.run_id,
        part=_PART,
        run_time=shop.run.time.isoformat(),
    )

    def still_mine() -> bool:
        return shop.store.leases.check(grant.dataset, grant.slice_id, grant.number, shop.now())

    told = replace(identity, details={"of": dict(numbers)})
    table = shop.lake.open(DEAD_LETTERS, told, still_mine=still_mine)
    empty = table.read().where("false")  # what a later release tells beside the record is NULL for earlier letters
    every = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), rows.values(), empty)
    where = f"dataset = {text_literal(grant.dataset)} AND slice IN ({', '.join(map(text_literal, rows))})"
    table.replace(
        fit_to_table(every, table, dataset=DEAD_LETTERS), where=where, partition_by=SIDE_PARTITIONS, within=True
    )


def _lost(receipt: Receipt) -> Finding:
    return Finding(
        dataset=receipt.dataset,
        subject="dead letters",
        message=f"Slice {receipt.slice_id} counts again as it was made when {receipt.counters.rejected_rows:,} of its "
        "rows were set aside, and their dead letters are no longer kept.",
        slice_id=receipt.slice_id,
        cure=f"`lakewright run --again --select {receipt.dataset} --slice {receipt.slice_id}` judges the slice anew.",
    )
