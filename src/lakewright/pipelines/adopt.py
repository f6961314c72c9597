"""Adopting an existing Delta table: a name of the lake stands for it, and its history is in the store."""

from __future__ import annotations

from dataclasses import dataclass

from lakewright.errors import ConfigurationError
from lakewright.lake.lake import Lake
from lakewright.lake.log import DeltaLog
from lakewright.model.paths import local_folder
from lakewright.pipelines.harvest import receipt_of
from lakewright.store import Store

__all__ = ["AdoptSummary", "adopt_table"]


@dataclass(frozen=True, slots=True)
class AdoptSummary:
    """The table as it was found."""

    name: str
    path: str
    version: int
    rows: int | None
    columns: tuple[str, ...]


def adopt_table(lake: Lake, store: Store, path: str, name: str, *, declared: bool) -> AdoptSummary:
    """Let ``name`` stand for the table at ``path``; the table itself is not changed.

    A declared dataset of that name then writes into the table; otherwise steps can read it by the name.
    """
    local = local_folder(path)
    where = path if local is None else str(local.absolute())
    log = DeltaLog(where, None if local is not None else lake.session)
    version = log.latest()
    if version is None:
        raise ConfigurationError(
            f"There is no Delta table at {where}.", hint="Give the folder that holds `_delta_log`."
        )
    if name in lake.names() and not declared:
        raise ConfigurationError(f"The lake already has a dataset '{name}'.", hint="Choose another name with --as.")
    if declared and DeltaLog(lake.resolve(name)).exists():
        raise ConfigurationError(
            f"'{name}' already has a table of its own at {lake.resolve(name)}.",
            hint="Adopt under another name, or move that table away first.",
        )
    lake.adopt(name, where)
    store.receipts.add([receipt_of(name, commit) for commit in log.commits()])
    columns = tuple(lake.read_path(where, name=name, version=version, system_columns=True).columns)
    return AdoptSummary(name, where, version, store.receipts.rows_total(name, version), columns)
