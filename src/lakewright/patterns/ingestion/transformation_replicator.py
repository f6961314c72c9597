"""Transformation Replicator: copy data, but take out or alter what must not leave its environment.

Problem:
    Staging needs real data, and production's holds personal data that may not leave it. A list of columns to drop is
    right until somebody adds a field.
Guarantee:
    What leaves is what the contract knows: a column that it does not name stops the copy (or is dropped, by choice),
    and one that it tags as private is dropped or altered, with no change of code when a tag is added. Everything else
    arrives as it was, and as many rows as there were: counts and a checksum of the untouched columns are compared. The
    target is replaced in one commit.
Consequences:
    - Versions of the target from before a column was tagged still hold it: VACUUM (``lakewright maintain``) removes
      them.
    - A rule that reads a column as a type may turn odd values into NULL: read every column as text unless a rule needs
      its type (``as_text``).
    - Where the database can, let it refuse: GRANT SELECT (visit_id, page) ON visits TO replicator. A column that is not
      granted is named by the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, MissingColumnsError, SchemaChangeError
from lakewright.model.contracts import Contract
from lakewright.model.overwrites import overwriting
from lakewright.model.sql import quoted
from lakewright.patterns.idempotency.data_overwrite import overwrite_slice
from lakewright.patterns.ingestion.replica_proof import Proof, compare_copies, prove_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["RowRule", "TransformationReplicator", "as_text", "replicate_transformed", "transform_copy"]


@dataclass(frozen=True, slots=True)
class RowRule:
    """Alter some rows: where the condition is true, and, to be safe, where nobody can tell (it is NULL)."""

    where: str
    set: Mapping[str, str] = field(hash=False)
    """Column -> SQL."""
    unknown: Literal["alter", "keep"] = "alter"


@dataclass(frozen=True, slots=True)
class TransformationReplicator:
    """What to do on the way: tags of the contract first, then ``drop``, ``transform``, ``rows`` and ``function``."""

    contract: Contract | None = None
    tags: Mapping[str, str | None] = field(default_factory=lambda: {"pii": None}, hash=False)
    """Tag -> what becomes of a column that has it: None takes it out, SQL (with ``{column}``) alters it."""
    unknown: Literal["refuse", "drop"] = "refuse"
    """What becomes of a column that the contract does not name."""
    drop: Sequence[str] = ()
    transform: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Column -> SQL."""
    rows: Sequence[RowRule] = ()
    function: Callable[[DataFrame], DataFrame] | None = field(default=None, hash=False)
    """For what SQL cannot say; it keeps the number of rows."""

    def __post_init__(self) -> None:
        if self.unknown not in ("refuse", "drop"):
            raise ConfigurationError(f"TransformationReplicator: unknown is 'refuse' or 'drop', not {self.unknown!r}.")
        if isinstance(self.drop, str):
            raise ConfigurationError('TransformationReplicator: drop is a list, such as drop=["ip"].')
        object.__setattr__(self, "drop", tuple(self.drop))
        object.__setattr__(self, "rows", tuple(self.rows))

    def check_contract(self, dataset: str, contract: Contract | None) -> None:
        """Refuse to go by tags where there is no contract that could have any."""
        if self.contract is None and contract is None and not (self.drop or self.transform or self.rows):
            raise ConfigurationError(
                f"{dataset}: nothing says what may leave: the original has no contract, and no rule is given.",
                hint="Give the original a contract, or name columns in drop or transform.",
            )

    def copy(self, frame: DataFrame, contract: Contract | None) -> DataFrame:
        """What may leave; lazy."""
        return transform_copy(frame, self._with(contract))

    def prove(self, original: DataFrame, copied: DataFrame, contract: Contract | None, *, what: str) -> str:
        """Runs a job over the untouched columns of each side."""
        untouched = _transformed(original, self._with(contract))[1]
        return str(compare_copies(prove_rows(original, untouched), prove_rows(copied, untouched), what=what))

    def _with(self, contract: Contract | None) -> TransformationReplicator:
        return self if self.contract is not None else replace(self, contract=contract)


def transform_copy(df: DataFrame, how: TransformationReplicator) -> DataFrame:
    """The rows as they may leave; lazy."""
    return _transformed(df, how)[0]


def replicate_transformed(
    df: DataFrame,
    target: str,
    how: TransformationReplicator,
    *,
    where: str | None = None,
    partition_by: Sequence[str] = (),
) -> Proof:
    """Runs a job that replaces the target (or the rows that fulfil ``where``) by what may leave, and two for the proof.

    >>> users = spark.createDataFrame([("u1", "FR", "10.0.0.1")], "user_id string, country string, ip string")
    >>> proof = replicate_transformed(users, folder, TransformationReplicator(drop=["ip"]))
    >>> (proof.rows, spark.read.format("delta").load(folder).columns)
    (1, ['user_id', 'country'])
    """
    allowed, untouched = _transformed(df, how)
    source = df if where is None else df.where(where)
    kept = allowed if where is None else allowed.where(where)
    if where is None:
        overwriting(kept).option("overwriteSchema", "true").partitionBy(*partition_by).save(target)
    else:
        overwrite_slice(kept, target, where=where, empty="allow", partition_by=partition_by)
    copied = df.sparkSession.read.format("delta").load(target)
    copied = copied if where is None else copied.where(where)
    what = f"Transformation Replicator, {target}"
    return compare_copies(prove_rows(source, untouched), prove_rows(copied, untouched), what=what)


def as_text(schema: StructType, *, keep: Mapping[str, str] = MappingProxyType({})) -> StructType:
    """A schema that reads every column as text, but those in ``keep`` (column -> type), which a rule needs."""
    from pyspark.sql.types import StringType, StructField, StructType

    from lakewright.model.ddl import data_type

    return StructType(
        [StructField(name, data_type(keep[name]) if name in keep else StringType()) for name in schema.names]
    )


def _transformed(df: DataFrame, how: TransformationReplicator) -> tuple[DataFrame, list[str]]:
    """The frame, and the columns that nothing touched."""
    from pyspark.sql import functions as F

    columns = list(df.columns)
    named = [*how.drop, *how.transform, *[name for rule in how.rows for name in rule.set]]
    if missing := [name for name in dict.fromkeys(named) if name not in columns]:
        raise MissingColumnsError(pattern="Transformation Replicator", missing=missing, present=columns)
    gone, altered = _by_contract(columns, how)
    gone |= set(how.drop)
    altered |= how.transform
    left = [name for name in columns if name not in gone]
    frame = df
    if altered:  # all at once, so that each sees the columns as they came
        frame = frame.select(*[F.expr(altered[n]).alias(n) if n in altered else F.col(quoted(n)) for n in columns])
    for rule in how.rows:
        hit = F.coalesce(F.expr(rule.where).cast("boolean"), F.lit(rule.unknown == "alter"))
        frame = frame.select(
            *[
                F.when(hit, F.expr(rule.set[n])).otherwise(F.col(quoted(n))).alias(n)
                if n in rule.set
                else F.col(quoted(n))
                for n in columns
            ]
        )
    frame = frame.select(*[F.col(quoted(name)) for name in left])
    touched = {*altered, *[name for rule in how.rows for name in rule.set]}
    if how.function is None:
        return frame, [name for name in left if name not in touched]
    return how.function(frame), []


def _by_contract(columns: Sequence[str], how: TransformationReplicator) -> tuple[set[str], dict[str, str]]:
    if how.contract is None:
        return set(), {}
    known = {column.name: column.tags for column in how.contract.columns}
    gone: set[str] = set()
    altered: dict[str, str] = {}
    strangers = [name for name in columns if name not in known]
    if strangers and how.unknown == "refuse":
        raise SchemaChangeError(
            f"Transformation Replicator: the contract '{how.contract.name}' does not know {', '.join(strangers)}, so "
            "nobody said whether it may leave. Nothing was copied.",
            hint='Add it to the contract, with its tags; or say unknown="drop".',
        )
    gone.update(strangers)
    for name in columns:
        for tag in known.get(name, ()):
            if tag in how.tags:
                rule = how.tags[tag]
                if rule is None:
                    gone.add(name)
                else:
                    altered[name] = rule.replace("{column}", quoted(name))
    return gone, altered
