"""Accounts: for each boundary, the rows that came and where each of them went, from the receipts that count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakewright.model.receipts import Receipt
from lakewright.model.slices import Slice
from lakewright.store import Store

__all__ = ["Account", "accounts_of"]


@dataclass(frozen=True, slots=True)
class Account:
    """``read = kept + rejected + filtered + duplicates + held``; None is unknown. ``late`` are rows among those read,
    ``held`` those of them that were left out, ``corrected`` those that were dead letters and were replayed; of a source
    such records are told beside the rest, for they are read from the corrections.
    """

    dataset: str
    slice_id: str
    read: int | None
    kept: int | None
    rejected: Mapping[str, int]
    duplicates: int | None
    late: int | None
    filtered: Mapping[str, int] = field(default_factory=dict)
    held: int | None = None
    corrected: int = 0
    is_source: bool = False

    @property
    def balanced(self) -> bool | None:
        """Whether every row is accounted for; None where the log cannot tell."""
        if self.read is None or self.kept is None:
            return None
        aside = sum(self.rejected.values()) + sum(self.filtered.values()) + (self.duplicates or 0) + (self.held or 0)
        aside += self.corrected if self.is_source else 0
        return self.read == self.kept + aside


def accounts_of(store: Store, dataset: str, *, is_source: bool = False) -> list[Account]:
    """The account of every slice of a dataset that has a receipt that counts, in order."""
    found = [store.receipts.live(dataset, slice_id) for slice_id in store.receipts.live_slices(dataset)]
    receipts = sorted((r for r in found if r is not None), key=lambda r: Slice.parse(r.slice_id))
    return [_account(receipt, is_source) for receipt in receipts]


def _account(receipt: Receipt, is_source: bool) -> Account:
    counters = receipt.counters
    kept = counters.written
    if is_source and kept is not None:
        # In bronze every row stays; those without a usable event time are told aside and no reader sees them.
        kept -= counters.rejected_rows + (counters.corrected or 0)
    return Account(
        dataset=receipt.dataset,
        slice_id=receipt.slice_id,
        read=counters.read,
        kept=kept,
        rejected=counters.rejected,
        duplicates=counters.duplicates,
        late=counters.late,
        filtered={} if counters.filtered is None else counters.filtered.removed,
        held=counters.held,
        corrected=counters.corrected or 0,
        is_source=is_source,
    )
