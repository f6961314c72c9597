"""What may stand in ``[targets.NAME.compute.COMPUTE]``, and what it makes of the target's own Spark.

Guarantee:
    An empty table changes nothing: steps that ask for it are made in the target's own session. A wrong one is refused
    when the file is read, as a target is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from lakewright.errors import ConfigurationError
from lakewright.runtime.connection_settings import flat
from lakewright.runtime.secret_settings import check_master, check_references

__all__ = ["MEMORY", "ComputeTable", "check_compute", "dotted", "overlaid"]

MEMORY = r"^\d+[kmgt]$"
"""How much memory a local Spark gets, as Java writes it."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def dotted(table: object) -> object:
    """TOML reads an unquoted ``spark.sql.x = 1`` as nested tables: put the dotted name back."""
    if not isinstance(table, Mapping):
        return table
    return {key if key.startswith("spark.") else f"spark.{key}": value for key, value in flat(table).items()}


class ComputeTable(BaseModel):
    """The keys of a compute, each in place of the target's own; what is left out stays as it is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    master: str | None = None
    spark: Mapping[str, str] = Field(default_factory=dict, repr=False)
    driver_memory: str | None = Field(None, pattern=MEMORY)
    fast_start: bool | None = None

    @field_validator("spark", mode="before")
    @classmethod
    def _flatten_spark_keys(cls, table: object) -> object:
        return dotted(table)


def check_compute(name: str, table: ComputeTable, *, place: str) -> None:
    """Refuse a name that cannot be one, and what no target may say either; looks nothing up."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{place}: '{name}' is no name for a compute: letters, digits, _ and -, beginning with a letter."
        )
    where = f"{place}, compute {name}"
    check_master(table.master or "", place=where)
    check_references("", None, table.spark, place=where)


def overlaid(table: ComputeTable, *, master: str, spark: Mapping[str, str]) -> dict[str, Any]:
    """The keys of a target with this master and these settings that the compute changes.

    Settings add to those of the target. Between a Connect server and a Spark of our own there is nothing to add to:
    what one of them is started with, the other one refuses.
    """
    changes = table.model_dump(include={"master", "driver_memory", "fast_start"}, exclude_none=True)
    alike = master.startswith("sc://") == (table.master or master).startswith("sc://")
    settings = {**(spark if alike else {}), **table.spark}
    return changes if settings == dict(spark) else {**changes, "spark": settings}
