"""The rows of a slice in an order of their own, as PostgreSQL inserts them from staging."""

from __future__ import annotations

from lakewright.connectors.postgres_connection import Session, ask, quoted
from lakewright.connectors.postgres_staging import Stage
from lakewright.errors import InputError, MissingColumnsError
from lakewright.patterns.data_value.bin_pack_orderer import BinPackOrderer
from lakewright.patterns.data_value.fifo_orderer import FifoOrderer

__all__ = ["order_by"]


def order_by(session: Session, stage: Stage, order: FifoOrderer | BinPackOrderer) -> str:
    """The ORDER BY of an orderer; rows without an entity or a time are refused before any is inserted.

    The insert is one transaction, so bins need not wait for each other: their order is all that is left of them.
    """
    entity, times = order.entity, ([] if order.by is None else [order.by])
    names = [*entity, *times, *order.then]
    if missing := [name for name in names if name not in stage.columns]:
        raise MissingColumnsError(pattern=stage.what, missing=missing, present=list(stage.columns))
    lacking = " OR ".join(f"{quoted(name)} IS NULL" for name in (*entity, *times))
    if lacking:
        row = ask(session, f"SELECT count(*) FROM {stage.rows()} WHERE {lacking}").fetchone()
        if row is not None and row[0]:
            raise InputError(
                f"{stage.what}: {row[0]:,} rows without an entity or a time have no place in any order "
                f"({', '.join((*entity, *times))}). Nothing was written.",
                hint="Set such rows aside with a Dead-Letter rule.",
            )
    sorted_by = ", ".join(quoted(name) for name in (*times, *order.then))
    if isinstance(order, BinPackOrderer):
        per = ", ".join(quoted(name) for name in entity)
        return f"ORDER BY row_number() OVER (PARTITION BY {per} ORDER BY {sorted_by}), {per}"
    return f"ORDER BY {sorted_by}" if sorted_by else ""
