"""Output types of a job: one class per type, chosen by a required argument before Spark starts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from lakewright.errors import ConfigurationError
from lakewright.patterns.idempotency.file_swap import overwrite_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["CsvOutput", "DeltaOutput", "OutputType", "OutputTypes"]


class OutputType(Protocol):
    """One way to write a job's result."""

    name: ClassVar[str]
    settings: ClassVar[Mapping[str, str]]
    """What the Spark session needs for it."""

    def write(self, df: DataFrame, folder: str) -> None:
        """Runs a job that replaces what is in the folder."""


class DeltaOutput:
    """A Delta table, replaced by one commit."""

    name: ClassVar[str] = "delta"
    settings: ClassVar[Mapping[str, str]] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }

    def write(self, df: DataFrame, folder: str) -> None:
        """Runs a job that replaces the table."""
        df.write.format("delta").mode("overwrite").save(folder)


class CsvOutput:
    """A folder with one CSV file and a header, written aside and swapped in."""

    name: ClassVar[str] = "csv"
    settings: ClassVar[Mapping[str, str]] = {}

    def write(self, df: DataFrame, folder: str) -> None:
        """Runs a job that replaces the folder."""
        overwrite_files(df.coalesce(1), folder, file_format="csv", options={"header": "true"}, empty="allow")


class OutputTypes:
    """The output types that a job knows, each a class of its own: a new one changes none of the others."""

    def __init__(self, *types: type[OutputType]) -> None:
        self._types: dict[str, type[OutputType]] = {}
        for one in types:
            first = self._types.setdefault(one.name, one)
            if first is not one:
                raise ConfigurationError(
                    f"Exclusive Choice: {first.__name__} and {one.__name__} are both called '{one.name}'."
                )
        if not self._types:
            raise ConfigurationError("Exclusive Choice: name at least one output type.")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._types)

    def with_type(self, added: type[OutputType]) -> OutputTypes:
        """The same types and one more."""
        return OutputTypes(*self._types.values(), added)

    def named(self, name: str) -> OutputType:
        """The writer of a type.

        >>> OutputTypes(DeltaOutput, CsvOutput).named("csv").name
        'csv'
        """
        if name not in self._types:
            raise ConfigurationError(
                f"Exclusive Choice: the output type is one of {', '.join(self.names)}, not '{name}'. "
                "Nothing was started."
            )
        return self._types[name]()

    def from_arguments(self, arguments: Sequence[str] | None = None, *, option: str = "--output_type") -> OutputType:
        """The writer that the command line asks for; ends the process with code 2 and the allowed values otherwise.

        Call it before the session is made: nothing of Spark is loaded by it.
        """
        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.add_argument(option, dest="chosen", required=True, choices=self.names)
        known, _ = parser.parse_known_args(arguments)
        return self.named(known.chosen)
