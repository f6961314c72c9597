"""The commits of a local Delta table, as its log tells them, for a source that follows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lakewright.errors import InputError

__all__ = ["TableCommit", "TableHistory", "TableState"]

_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class TableState:
    """What the table was declared as at a version; its id changes when it is dropped and made anew."""

    id: str
    schema_json: str
    has_feed: bool


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit: the files whose rows it brought, and whether it took rows away. Compaction does neither."""

    version: int
    operation: str
    added: tuple[str, ...]
    removes_rows: bool
    state: TableState | None

    @property
    def changes_data(self) -> bool:
        """Whether rows came or went."""
        return bool(self.added) or self.removes_rows


class TableHistory:
    """The log of one table in a local folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "_delta_log"

    def versions(self) -> list[int]:
        """The versions whose commits are still in the log, in order; never empty."""
        names = [path.name for path in self._log.iterdir()] if self._log.is_dir() else []
        found = sorted(int(match.group(1)) for name in names if (match := _COMMIT.fullmatch(name)))
        if not found:
            raise InputError(
                f"There is no Delta table at {self.folder}. Nothing was read.",
                hint="Correct the path (relative ones start at the project), or write the table first.",
            )
        return found

    def commit(self, version: int) -> TableCommit:
        """What one version did."""
        adds: list[dict[str, Any]] = []
        removes: list[dict[str, Any]] = []
        state, operation = None, "an unknown operation"
        for action in self._actions(version):
            if "add" in action:
                adds.append(action["add"])
            elif "remove" in action:
                removes.append(action["remove"])
            elif "metaData" in action:
                state = _state(action["metaData"])
            elif "commitInfo" in action:
                operation = str(action["commitInfo"].get("operation", operation))
        return TableCommit(
            version=version,
            operation=operation,
            added=tuple(_name(add) for add in adds if add.get("dataChange", True)),
            removes_rows=any(remove.get("dataChange", True) for remove in removes),
            state=state,
        )

    def committed_at(self, version: int) -> datetime:
        """When a version was committed, as it says itself; else when its file was written."""
        for action in self._actions(version):
            told = action.get("commitInfo", {})
            if (millis := told.get("inCommitTimestamp", told.get("timestamp"))) is not None:
                return datetime.fromtimestamp(int(millis) / 1000, UTC)
        return datetime.fromtimestamp((self._log / f"{version:020d}.json").stat().st_mtime, UTC)

    def state_at(self, version: int) -> TableState:
        """The declaration that holds at a version: the last one in the commits or a checkpoint before it."""
        for earlier in reversed([v for v in self.versions() if v <= version]):
            for action in self._actions(earlier):
                if "metaData" in action:
                    return _state(action["metaData"])
        return self._state_in_checkpoint(version)

    def _state_in_checkpoint(self, version: int) -> TableState:
        import pyarrow.parquet

        for path in sorted(self._log.glob("*.checkpoint*.parquet"), reverse=True):
            if int(path.name[:20]) > version:
                continue
            column = pyarrow.parquet.read_table(path, columns=["metaData"]).column("metaData")
            for value in column.to_pylist():
                if value is not None:
                    return _state({**value, "configuration": dict(value.get("configuration") or ())})
        raise InputError(
            f"The log of {self.folder} does not tell the schema of version {version}. Nothing was read.",
            hint="The log is damaged or was cleaned by hand; rebuild the table or restore its log.",
        )

    def _actions(self, version: int) -> Iterator[dict[str, Any]]:
        path = self._log / f"{version:020d}.json"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise InputError(
                f"The log of {self.folder} no longer holds version {version}. Nothing was read.",
                hint="The table was not read for longer than its log retention (delta.logRetentionDuration): "
                "declare the source under a new name to take the whole table again.",
            ) from None
        return (json.loads(line) for line in lines if line.strip())


def _state(declared: Mapping[str, Any]) -> TableState:
    feed = str(declared.get("configuration", {}).get("delta.enableChangeDataFeed", "false"))
    return TableState(str(declared["id"]), str(declared["schemaString"]), feed.lower() == "true")


def _name(file: Mapping[str, Any]) -> str:
    """The name of a data file, unique in its table; the folders before it are in URI encoding."""
    return str(file["path"]).rpartition("/")[2]
