"""Laying a dataset's table out anew, as its declaration says now; the rows, and whoever reads them, stay as they are.

Guarantee:
    One commit with identity, under the lease of the whole dataset. The rows written are compared with those that the
    receipts tell of; where they differ, or somebody else wrote in between, the table is put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakewright.errors import ConfigurationError, MissingColumnsError, TargetError
from lakewright.failpoints import failpoint
from lakewright.model.columns import business_columns, system_columns
from lakewright.model.receipts import Commit
from lakewright.model.slices import WHOLE
from lakewright.patterns.storage.horizontal_partitioner import (
    explain_null_partition,
    partition_rows,
    refuse_too_many_partitions,
)
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.harvest import pin, receipt_of
from lakewright.pipelines.workshop import Attempt, Workshop

__all__ = ["RepartitionSummary", "lay_out_anew"]


@dataclass(frozen=True, slots=True)
class RepartitionSummary:
    """How a table is laid out before and after, without the columns that keep its slices apart."""

    dataset: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    rows: int | None
    dropped: tuple[str, ...]


def lay_out_anew(
    shop: Workshop, dataset: Dataset, *, drop: Sequence[str] = (), dry_run: bool = False
) -> RepartitionSummary:
    """Runs the job that rewrites a table by the partition columns that its dataset declares."""
    name = dataset.name
    _refuse(shop, dataset)
    version = pin(shop.lake, shop.store, name)
    laid_out = shop.lake.delta_log(name).partition_columns()
    if version is None or laid_out is None:
        raise ConfigurationError(f"{name} has no table yet: there is nothing to lay out anew.")
    present = business_columns([field.name for field in shop.lake.delta_log(name).schema() or ()])
    if missing := [column for column in drop if column not in present]:
        raise MissingColumnsError(pattern=name, missing=missing, present=present)
    slices = system_columns(laid_out)
    before = tuple(column for column in laid_out if column not in slices)
    after = () if dataset.layout is None else tuple(dataset.layout.by)
    rows = shop.store.receipts.rows_total(name, upto=version)
    summary = RepartitionSummary(name, before, after, rows, tuple(drop))
    if dry_run or (before == after and not drop):
        return summary
    with shop.attempt(dataset, WHOLE, attempt=1, reason="repartition", whole=True) as current:
        commit = _rewrite(current, version, (*slices, *after), drop)
        failpoint("rewritten")
        current.finish((receipt_of(name, commit),))
        if commit.version != version + 1 or (rows is not None and commit.rows != rows):
            _put_back(current, commit, version, rows)
    return summary


def _rewrite(current: Attempt, version: int, partition_by: Sequence[str], drop: Sequence[str]) -> Commit:
    dataset, lake = current.dataset, current.shop.lake
    frame = lake.read(dataset.name, version=version, system_columns=True).drop(*drop)
    table = lake.open(
        dataset.name, replace(current.identity(), kind="maintenance", part="layout"), still_mine=current.still_mine
    )
    try:
        if dataset.layout is not None:
            frame = partition_rows(frame, layout=dataset.layout, what=dataset.name)
            refuse_too_many_partitions(frame, layout=dataset.layout, what=dataset.name)
        commit = table.rewrite(frame, partition_by=partition_by)
    except Exception as error:
        explained = explain_null_partition(error)
        if explained is None:
            raise
        raise explained from error
    if commit is None:
        raise TargetError(f"{dataset.name}: a newer attempt has already committed. Nothing was written.")
    return commit


def _put_back(current: Attempt, commit: Commit, version: int, rows: int | None) -> None:
    name, shop = current.dataset.name, current.shop
    identity = replace(current.identity(), kind="maintenance", part="undo")
    undo = shop.lake.open(name, identity).restore(commit.version - 1)
    shop.store.receipts.add([receipt_of(name, undo)] if undo is not None else [])
    raise TargetError(
        f"{name} had {'an unknown number of' if rows is None else f'{rows:,}'} rows at version {version}, and "
        f"{commit.rows or 0:,} were written as version {commit.version}: somebody else wrote at the same time. The "
        "table was put back as it was.",
        hint="Let nobody else write to it meanwhile, and repeat it.",
    )


def _refuse(shop: Workshop, dataset: Dataset) -> None:
    name = dataset.name
    if name in shop.lake.outside or name in shop.lake.borrowed:
        raise ConfigurationError(f"{name} has no table of its own here, so it cannot be laid out. Nothing was changed.")
    if dataset.is_source or dataset.is_stream:
        raise ConfigurationError(
            f"{name} is laid out by what arrives, which its readers rely on. Nothing was changed.",
            hint="Give the layout to a step that reads it.",
        )
    graph = shop.graph
    streamed = {other: graph.streamed_input(graph[other]) for other in graph.downstream(name)}
    followers = [other for other, given in streamed.items() if given is not None and given.dataset == name]
    if followers:
        raise ConfigurationError(
            f"{followers[0]} follows {name} as a stream: it would see all rows go and come again. Nothing was changed.",
            hint=f'Declare {followers[0]} without mode="stream" first, or give the new layout a new name.',
        )
