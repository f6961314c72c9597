"""Contract: what a dataset promises to those who read it, independent of the code that makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, did_you_mean
from lakewright.model.columns import SYSTEM_PREFIX
from lakewright.model.ddl import data_type
from lakewright.model.times import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["Contract", "ContractColumn", "ContractError", "check_frame", "refuse_nulls"]

BROKEN_CONTRACT = "the contract is broken:"


class ContractError(ConfigurationError):
    """A contract that contradicts itself; ``where`` leads to the wrong value: ``("columns", 2, "type")``."""

    def __init__(self, message: str, *, where: tuple[str | int, ...], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.where = where


@dataclass(frozen=True, slots=True)
class ContractColumn:
    """One column: its type as DDL text (``DECIMAL(10, 2)``), and what it means."""

    name: str
    type: str
    nullable: bool = True
    description: str = ""
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ContractError("A column has no name.", where=("name",))
        if self.name.lower().startswith(SYSTEM_PREFIX):
            raise ContractError(
                f"The column '{self.name}' has a name that the lake keeps for itself.",
                where=("name",),
                hint=f"Choose one that does not begin with '{SYSTEM_PREFIX}'.",
            )
        try:
            data_type(self.type)
        except ConfigurationError as error:
            raise ContractError(
                f"The type of the column '{self.name}' is wrong: {error.message}",
                where=("type",),
                hint=error.hint,
            ) from error


@dataclass(frozen=True, slots=True)
class Contract:
    """A dataset's promise: its columns, keys and event time, who owns it, and how long rows are kept."""

    name: str
    columns: tuple[ContractColumn, ...]
    description: str = ""
    owner: str | None = None
    layer: str | None = None
    keys: tuple[str, ...] = ()
    event_time: str | None = None
    retention: str | None = None
    """How long rows are kept: ``"90 days"``; None is for good."""
    tags: tuple[str, ...] = ()
    version: int = 1

    def __post_init__(self) -> None:
        if not self.name:
            raise ContractError("The contract has no name.", where=("name",))
        if not self.columns:
            raise ContractError(f"The contract '{self.name}' has no columns.", where=("columns",))
        if self.version < 1:
            raise ContractError(f"The version is {self.version}; versions begin at 1.", where=("version",))
        self._check_columns()
        if self.retention is not None:
            try:
                parse_duration(self.retention)
            except ConfigurationError as error:
                raise ContractError(f"The retention is wrong: {error.message}", where=("retention",)) from error

    def schema(self) -> StructType:
        """The columns as a Spark schema; needs no session."""
        from pyspark.sql.types import StructField, StructType

        return StructType(
            [StructField(column.name, data_type(column.type), column.nullable) for column in self.columns]
        )

    def _check_columns(self) -> None:
        seen: set[str] = set()
        for place, column in enumerate(self.columns):
            if column.name.lower() in seen:  # Spark tells columns apart regardless of case
                raise ContractError(f"The column '{column.name}' is there twice.", where=("columns", place, "name"))
            seen.add(column.name.lower())
        kinds = {column.name: column.type for column in self.columns}
        for place, key in enumerate(self.keys):
            if key not in kinds:
                raise _unknown_column("key", key, kinds, ("keys", place))
            if key in self.keys[:place]:
                raise ContractError(f"The key '{key}' is there twice.", where=("keys", place))
        if self.event_time is None:
            return
        if self.event_time not in kinds:
            raise _unknown_column("event time", self.event_time, kinds, ("event_time",))
        kind = data_type(kinds[self.event_time]).simpleString()
        if kind not in ("timestamp", "timestamp_ntz", "date", "string"):
            raise ContractError(
                f"The event time '{self.event_time}' is {kind}; it must be a timestamp, a date, or text.",
                where=("event_time",),
            )


def check_frame(contract: Contract, schema: StructType) -> list[str]:
    """How a frame differs from its contract, in words; empty where it does not. System columns are left out.

    Whether a column that must not be NULL is NULL shows only in its rows: Spark marks nearly every column as
    nullable, whatever it holds. ``refuse_nulls`` looks at the rows, on the way to the write.
    """
    found = {field.name: field for field in schema.fields if not field.name.startswith(SYSTEM_PREFIX)}
    differences: list[str] = []
    for column in contract.columns:
        field = found.pop(column.name, None)
        if field is None:
            differences.append(f"the column '{column.name}' ({column.type}) is missing")
            continue
        declared, actual = data_type(column.type).simpleString(), field.dataType.simpleString()
        if actual != declared:
            differences.append(f"the column '{column.name}' is {actual}, but the contract says {declared}")
    for field in found.values():
        differences.append(f"the column '{field.name}' ({field.dataType.simpleString()}) is not in the contract")
    return differences


def refuse_nulls(contract: Contract, frame: DataFrame) -> DataFrame:
    """The same frame, which fails when it is written if a column that must not be NULL is NULL in a row."""
    from pyspark.sql import functions as F

    strict = [column.name for column in contract.columns if not column.nullable]
    if not strict:
        return frame
    told = {
        name: F.coalesce(F.col(f"`{name}`"), F.raise_error(F.lit(f"{BROKEN_CONTRACT} {name} is NULL in a row")))
        for name in strict
    }
    return frame.withColumns(told)


def _unknown_column(what: str, name: str, known: dict[str, str], where: tuple[str | int, ...]) -> ContractError:
    return ContractError(
        f"The {what} '{name}' is no column. The columns are {', '.join(known)}.",
        where=where,
        hint=did_you_mean(name, known),
    )
