"""Rows as messages: key, value, headers and, where a map says so, the partition.

The value is the row's business columns as JSON, with NULL where a column is NULL and times to the microsecond, or a
column as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakewright.connectors.kafka_producer import Headers, Message
from lakewright.errors import ConfigurationError, InputError, MissingColumnsError, TargetError
from lakewright.model.columns import business_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["MessageMaker"]

_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",  # the default would cut microseconds off
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True, slots=True)
class MessageMaker:
    """Which column goes where; refuses what cannot work before anything is sent."""

    who: str
    key: str | None = None
    value: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partition_of: Mapping[str, int] = field(default_factory=dict)
    other: int | None = None
    system: Mapping[str, str] = field(default_factory=dict)
    """Headers of Lakewright's own -> the column that gives them."""

    def __post_init__(self) -> None:
        if self.partition_of and self.key is None:
            raise ConfigurationError(f"{self.who}: 'partition_of' chooses by the key, and no 'key' is named.")
        if self.other is not None and not self.partition_of:
            raise ConfigurationError(f"{self.who}: 'other' is for the keys that 'partition_of' does not name.")
        if wrong := [number for number in self._partitions() if number < 0]:
            raise ConfigurationError(f"{self.who}: {wrong[0]} is no partition; the first one is 0.")
        if taken := [name for name in self.headers if name.startswith("lw-")]:
            raise ConfigurationError(f"{self.who}: the header '{taken[0]}': names with 'lw-' are the system's.")

    def check_partitions(self, topic: str, present: int) -> None:
        """Refuse a map that names a partition which the topic lacks."""
        if missing := sorted({number for number in self._partitions() if number >= present}):
            raise TargetError(
                f"{self.who}: 'partition_of' sends to partition {', '.join(map(str, missing))}, but the topic "
                f"'{topic}' has {present} (0 to {present - 1}). Nothing was sent.",
                hint="Correct the map, or give the topic more partitions.",
            )

    def prepare(self, frame: DataFrame) -> DataFrame:
        """The frame's messages, in its order: key, value and a column per header; lazy."""
        from pyspark.sql import functions as F

        columns = frame.columns
        own = business_columns(columns)
        told = {**self.headers, **self.system}
        named = [name for name in (self.key, self.value, *told.values()) if name is not None]
        if missing := [name for name in named if name not in columns]:
            raise MissingColumnsError(pattern=self.who, missing=list(dict.fromkeys(missing)), present=own)
        if self.value is None:
            value: Column = F.to_json(F.struct(*[F.col(f"`{name}`") for name in own]), _JSON)
        else:
            value = F.col(f"`{self.value}`")
            if frame.schema[self.value].dataType.simpleString() not in ("string", "binary"):
                raise InputError(
                    f"{self.who}: the value '{self.value}' is neither text nor bytes. Nothing was sent.",
                    hint="Cast it, or leave 'value' out to send all columns as JSON.",
                )
        key = F.lit(None) if self.key is None else F.col(f"`{self.key}`")
        headers = [F.col(f"`{column}`").cast("string").cast("binary") for column in told.values()]
        return frame.select(
            # Text first: bytes of a number would not be its digits.
            _as_bytes(key, frame, self.key).alias("key"),
            value.cast("binary").alias("value"),
            *[header.alias(f"header{place}") for place, header in enumerate(headers)],
        )

    def messages(self, frame: DataFrame, *, system: Headers = ()) -> Iterator[Message]:
        """Runs a job per partition that brings the frame's rows to the driver, one partition at a time."""
        for row in self.prepare(frame).toLocalIterator():
            key, value, *headers = row
            if key is None and self.key is not None:
                raise InputError(
                    f"{self.who}: a row has no '{self.key}', which is the key. Nothing was published.",
                    hint="A message without a key cannot be replaced by its repeat. Set such rows aside.",
                )
            named = zip((*self.headers, *self.system), headers, strict=True)
            own = [(name, bytes(text)) for name, text in named if text is not None]
            yield Message(
                None if key is None else bytes(key),
                None if value is None else bytes(value),
                [*system, *own],
                -1 if key is None else self.partition(bytes(key)),
            )

    def partition(self, key: bytes) -> int:
        """The partition that the map gives a key; -1 leaves it to the key's hash."""
        if not self.partition_of:
            return -1
        other = -1 if self.other is None else self.other
        return self.partition_of.get(key.decode(errors="replace"), other)

    def _partitions(self) -> list[int]:
        return [*self.partition_of.values(), *([] if self.other is None else [self.other])]


def _as_bytes(column: Column, frame: DataFrame, name: str | None) -> Column:
    if name is not None and frame.schema[name].dataType.simpleString() == "binary":
        return column
    return column.cast("string").cast("binary")
