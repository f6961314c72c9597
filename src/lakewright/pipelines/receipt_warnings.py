"""What people are told of a slice by its receipt, whoever made it: a run, a stream, or the recovery of a dead step."""

from __future__ import annotations

from lakewright.model.findings import Finding
from lakewright.model.receipts import Receipt
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.filtering import filter_warnings
from lakewright.pipelines.lateness import late_warnings
from lakewright.pipelines.letter_policies import key_warnings, letter_warnings
from lakewright.pipelines.workshop import Workshop

__all__ = ["warnings_of"]


def warnings_of(shop: Workshop, dataset: Dataset, receipt: Receipt) -> tuple[Finding, ...]:
    """Rows removed, late or set aside, where there are more of them than the dataset's limits say.

    Runs a job where a Dead-Letter guard warns per key, and has set enough rows aside.
    """
    return (
        *filter_warnings(shop.store, dataset, receipt),
        *late_warnings(dataset, receipt),
        *letter_warnings(dataset, receipt),
        *key_warnings(shop, dataset, receipt),
    )
