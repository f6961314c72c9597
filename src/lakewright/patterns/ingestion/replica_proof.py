"""The proof of a copy: how many rows there are, and a checksum of what they hold, whatever their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import TargetError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Proof", "compare_copies", "prove_rows"]


@dataclass(frozen=True, slots=True)
class Proof:
    """What two copies have in common: equal proofs mean equal rows."""

    rows: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.rows:,} rows, checksum {self.checksum}"


def prove_rows(frame: DataFrame, columns: Sequence[str] | None = None) -> Proof:
    """Runs one job over the rows: their number, and the sum and the exclusive or of their hashes."""
    from pyspark.sql import functions as F

    names = sorted(frame.columns if columns is None else columns)
    # As JSON, because a hash skips NULL and knows no maps: (NULL, 'a') and ('a', NULL) differ there.
    whole = F.to_json(F.struct(*[F.col(f"`{name}`") for name in names]), {"ignoreNullFields": "false"})
    hashed = F.xxhash64(whole) if names else F.lit(0).cast("long")
    found = frame.agg(
        F.count(F.lit(1)).alias("rows"),
        F.coalesce(F.sum(hashed.cast("decimal(38,0)")), F.lit(0)).cast("string").alias("sum"),
        F.coalesce(F.bit_xor(hashed), F.lit(0)).cast("string").alias("mixed"),
    ).first()
    assert found is not None
    return Proof(found["rows"], f"{found['sum']}/{found['mixed']}")


def compare_copies(source: Proof, copy: Proof, *, what: str) -> Proof:
    """The proof, where both are equal; refuses a copy that differs."""
    if source == copy:
        return copy
    if source.rows != copy.rows:
        raise TargetError(f"{what}: the source has {source.rows:,} rows and the copy {copy.rows:,}.", hint=_CURE)
    raise TargetError(f"{what}: the copy has as many rows as the source ({copy.rows:,}), but other ones.", hint=_CURE)


_CURE = "Somebody wrote to one of them meanwhile, or something changed values on the way: replicate again."
