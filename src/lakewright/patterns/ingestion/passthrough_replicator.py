"""Passthrough Replicator: copy data as it is to a place of the same kind, with what describes it, and prove it.

Problem:
    Staging needs exactly what production has. To load it there again gives other data, and a copy that reads and writes
    values changes some of them: rounded numbers, dates of an unusual form, files without their log.
Guarantee:
    ``replicate_unchanged`` copies a Delta table at one definite version, with its partitions and properties, and
    replaces the replica in one commit. ``replicate_text`` copies lines as bytes: nothing is parsed. ``mirror_folder``
    copies files with their names; ``replicate_topic`` (``lakewright.connectors.kafka_replica``) messages with key,
    headers, partition and order. Each compares counts and checksums of both sides, and tells them.
Consequences:
    - Number and names of files stay the same only with ``mirror_folder``.
    - It is pushed by the side that owns the data, which decides when and how much: give it a pool of its own
      (``spark.scheduler.pool``) and a schedule of its own.
    - What may not leave its environment must not be copied so: a contract with tagged columns refuses it. See
      Transformation Replicator.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.contracts import Contract
from lakewright.model.overwrites import overwriting
from lakewright.patterns.idempotency.delta_paths import newest_version, table_exists
from lakewright.patterns.idempotency.file_swap import overwrite_files
from lakewright.patterns.ingestion.mirror_folder import mirror_folder
from lakewright.patterns.ingestion.replica_proof import Proof, compare_copies, prove_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "PRIVATE",
    "PassthroughReplicator",
    "mirror_folder",
    "refuse_private",
    "replicate_text",
    "replicate_unchanged",
]

PRIVATE = ("pii",)
"""The tags of what may not leave its environment, unless others are named."""
_OWN = ("delta.minReaderVersion", "delta.minWriterVersion", "delta.feature.", "delta.columnMapping.")
"""Properties that a table gets by itself."""


@dataclass(frozen=True, slots=True)
class PassthroughReplicator:
    """For ``Pipeline.replicate``: the rows as they are. A dataset whose contract tags it as private is refused.

    Of files, ``deleted`` says what becomes of a copied one that is deleted at the source: it stays (``"keep"``), or is
    deleted in the copy, too (``"delete"``), which is then a mirror.
    """

    private: Sequence[str] = PRIVATE
    deleted: Literal["keep", "delete"] = "keep"

    def __post_init__(self) -> None:
        if self.deleted not in ("keep", "delete"):
            raise ConfigurationError(f"PassthroughReplicator: deleted is 'keep' or 'delete', not {self.deleted!r}.")

    def check_contract(self, dataset: str, contract: Contract | None) -> None:
        refuse_private(contract, what=dataset, tags=self.private)

    def copy(self, frame: DataFrame, contract: Contract | None) -> DataFrame:
        """All of them; lazy."""
        return frame

    def prove(self, original: DataFrame, copied: DataFrame, contract: Contract | None, *, what: str) -> str:
        """Runs a job over each side."""
        names = original.columns
        return str(compare_copies(prove_rows(original, names), prove_rows(copied, names), what=what))


def refuse_private(contract: Contract | None, *, what: str, tags: Collection[str] = PRIVATE) -> None:
    """Refuse to copy what a contract tags as private."""
    if contract is None:
        return
    private = [column.name for column in contract.columns if set(column.tags) & set(tags)]
    if private or set(contract.tags) & set(tags):
        named = f"the columns {', '.join(private)}" if private else "the dataset"
        raise ConfigurationError(
            f"{what}: the contract '{contract.name}' tags {named} as {' or '.join(sorted(tags))}, which may not leave "
            "its environment as it is. Nothing was copied.",
            hint="Use the Transformation Replicator, which takes such columns out or alters them.",
        )


def replicate_unchanged(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    version: int | None = None,
    where: str | None = None,
    contract: Contract | None = None,
    private: Collection[str] = PRIVATE,
) -> Proof:
    """Runs a job that copies a Delta table at a version (the newest now) and one for each side's proof.

    ``where`` copies and replaces only these rows. The version is noted in the replica's commit.
    """
    what = f"Passthrough Replicator, {target}"
    refuse_private(contract, what=what, tags=private)
    if not table_exists(spark, source):
        raise InputError(f"{what}: there is no Delta table at {source}. Nothing was copied.")
    pinned = newest_version(spark, source) if version is None else version
    rows = spark.read.format("delta").option("versionAsOf", pinned).load(source)
    rows = rows if where is None else rows.where(where)
    described = spark.sql(f"DESCRIBE DETAIL delta.`{source}`").select("partitionColumns", "properties").first()
    assert described is not None
    writer = overwriting(rows).option("userMetadata", json.dumps({"replica_of": pinned}))
    writer = writer.option("replaceWhere", where) if where is not None else writer.option("overwriteSchema", "true")
    if not table_exists(spark, target):
        kept = {k: v for k, v in described["properties"].items() if k.startswith("delta.") and not k.startswith(_OWN)}
        writer = writer.options(**kept)
    if described["partitionColumns"]:
        writer = writer.partitionBy(*described["partitionColumns"])
    writer.save(target)
    copied = spark.read.format("delta").load(target)
    return compare_copies(prove_rows(rows), prove_rows(copied if where is None else copied.where(where)), what=what)


def replicate_text(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    contract: Contract | None = None,
    private: Collection[str] = PRIVATE,
) -> Proof:
    """Runs a job that copies the lines of text files, byte for byte, and swaps them in, and two for the proof.

    A line ends with a line feed: a carriage return before it belongs to the line. Number and names of files differ.
    """
    what = f"Passthrough Replicator, {target}"
    refuse_private(contract, what=what, tags=private)

    def lines(path: str) -> Proof:
        found = spark.read.format("text").option("lineSep", "\n").option("recursiveFileLookup", "true").load(path)
        return prove_rows(found.selectExpr("base64(CAST(value AS BINARY)) AS value"))

    rows = spark.read.format("text").option("lineSep", "\n").option("recursiveFileLookup", "true").load(source)
    overwrite_files(rows, target, file_format="text", options={"lineSep": "\n"})
    return compare_copies(lines(source), lines(target), what=what)
