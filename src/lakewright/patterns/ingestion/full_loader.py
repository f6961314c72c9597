"""Full Loader: take the whole of a source each time, and swap it in at once.

Problem:
    A small dataset of somebody else (devices, countries) has no column that tells what changed, so that only a
    complete load is right; readers must never meet half of one, and a bad delivery must not replace a good one.
Guarantee:
    A load is judged before anything is changed, by one pass over it, and then replaces the table in one commit: a
    reader sees all of the old or all of the new. The versions before stay readable, and ``rollback_load`` (or
    ``lakewright rollback``) goes back to one without a load. A load that dies leaves the table as it was, and its
    repeat leaves what one load would have left. An older version never replaces a newer one unless that is asked for.
Consequences:
    - The whole source is read each time, twice if it is judged: for what grows without end use Incremental Loader.
    - Going back is possible as far as the table keeps its history (``delta.deletedFileRetentionDuration``).
    - For a database see ``PostgresVersions``: versioned tables behind a view; for folders see ``mirror_folder``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.model.arrivals import Arrival
from lakewright.model.loads import LoadLimits
from lakewright.model.overwrites import overwriting
from lakewright.model.protocols import Found, LoadContext, Source, SourceContext
from lakewright.patterns.idempotency.delta_paths import table_exists
from lakewright.patterns.ingestion.load_checks import judge_rows
from lakewright.patterns.ingestion.mirror_folder import mirror_folder
from lakewright.patterns.ingestion.own_session import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FullLoader", "load_whole", "mirror_folder", "rollback_load"]

_NOTE = "lakewright_full_load"


@dataclass(frozen=True, slots=True)
class FullLoader:
    """The option of a source: each arrival is the whole of it, and replaces all that was there.

    A load is refused, and the table stays as it was, with fewer rows than ``min_rows``, with more than the share
    ``max_loss`` of the last load's rows gone, with a row that breaks one of the ``rules`` (SQL), or with a record that
    cannot be read (``unreadable="keep"`` keeps those with their text, as other sources do).
    """

    min_rows: int = 1
    max_loss: float | None = None
    rules: Mapping[str, str] = field(default_factory=dict, hash=False)
    unreadable: Literal["refuse", "keep"] = "refuse"

    def __post_init__(self) -> None:
        if self.unreadable not in ("refuse", "keep"):
            raise ConfigurationError(f"Full Loader: unreadable is 'refuse' or 'keep', not {self.unreadable!r}.")
        self.limits  # noqa: B018  (a wrong limit is told when the file is loaded)

    @property
    def limits(self) -> LoadLimits:
        """What a load must fulfil."""
        return LoadLimits(self.min_rows, self.max_loss, self.rules)

    @property
    def replaces_all(self) -> bool:
        return True

    def check_source(self, dataset: str, source: Source) -> None:
        """Refuse a source of which an arrival is only a part."""
        part = getattr(source, "takes_part", "it cannot be read whole")
        if part is not None:
            raise ConfigurationError(
                f"{dataset}: FullLoader takes the whole of a source, but of {type(source).__name__} {part}.",
                hint="Leave load=FullLoader() out, or the limit.",
            )

    @property
    def apart(self) -> bool:
        return False

    def look(self, source: Source, ctx: SourceContext) -> Sequence[Found]:
        """Everything that is there, if anything of it differs from the last time."""
        found = source.look(replace(ctx, known_files={}, last_window=None))
        if found is None:
            if ctx.last_window is None:
                return ()
            raise InputError(
                f"{ctx.dataset}: the source is empty now, and a full load would replace all rows by none. "
                "The data was kept.",
                hint="Deliver it again, and run.",
            )
        return () if found.window == ctx.last_window else (found,)

    def prepare(self, frame: DataFrame, arrival: Arrival, held: Callable[[], DataFrame | None]) -> DataFrame:
        """All rows, as they came."""
        return frame

    def judge(self, frame: DataFrame, ctx: LoadContext) -> None:
        """Runs one job over the load and refuses it where it cannot be right."""
        keep = self.unreadable == "keep"
        judge_rows(frame, self.limits, what=ctx.what, rows_before=ctx.rows_before, keep_unreadable=keep)


def load_whole(
    df: DataFrame,
    path: str,
    *,
    version: int | None = None,
    min_rows: int = 1,
    max_loss: float | None = None,
    rules: Mapping[str, str] = MappingProxyType({}),
    older: Literal["refuse", "replace"] = "refuse",
    partition_by: Sequence[str] = (),
) -> None:
    """Runs a job that judges the rows and one that replaces the table by them, in one Delta commit.

    ``version`` (a number that rises, such as 20260105) is kept with the commit: a load of an older one than the table
    holds is refused, unless ``older="replace"``.

    >>> devices = spark.createDataFrame([("phone", "1.0"), ("tablet", "2.1")], "type string, version string")
    >>> load_whole(devices, folder, version=1)
    >>> load_whole(devices.where("type = 'phone'"), folder, version=2)
    >>> rollback_load(spark, folder, version=1)
    >>> spark.read.format("delta").load(folder).count()
    2
    """
    if older not in ("refuse", "replace"):
        raise ConfigurationError(f"Full Loader: older is 'refuse' or 'replace', not {older!r}.")
    spark, what = df.sparkSession, f"Full Loader, {path}"
    loads = _loads(spark, path)
    if version is not None and older == "refuse" and (newest := _current(loads)) is not None and newest > version:
        raise InputError(
            f"{what}: version {newest} is there, which is newer than {version}. Nothing was written.",
            hint='If the older one is to replace it, say older="replace".',
        )
    before = spark.read.format("delta").load(path).count() if loads and max_loss is not None else None
    judge_rows(df, LoadLimits(min_rows, max_loss, rules), what=what, rows_before=before)
    writer = overwriting(df).option("overwriteSchema", "true")
    if version is not None:
        writer = writer.option("userMetadata", json.dumps({_NOTE: version}))
    (writer.partitionBy(*partition_by) if partition_by else writer).save(path)


def rollback_load(spark: SparkSession, path: str, *, version: int | None = None) -> None:
    """Restore the table as a load of ``load_whole`` left it (by default the one before the last), without reading the
    source.
    """
    loads = [load for load in _loads(spark, path) if load["operation"] == "WRITE"]
    if version is not None:
        chosen = [load for load in loads if _noted(load) == version]
    else:
        current = _current(_loads(spark, path))
        chosen = [load for load in loads if _noted(load) != current] if current is not None else loads[1:]
    if not chosen:
        known = ", ".join(str(one) for one in dict.fromkeys(_noted(load) for load in loads) if one is not None)
        wanted = "no earlier load" if version is None else f"no load of version {version}"
        raise TargetError(f"Full Loader, {path}: there is {wanted} to go back to. It holds: {known or 'none'}.")
    note = {"spark.databricks.delta.commitInfo.userMetadata": json.dumps({_NOTE: _noted(chosen[0])})}
    with own_session(spark, note) as session:  # RESTORE takes its note from the settings, and yours stay as they are
        session.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {chosen[0]['version']}")


def _loads(spark: SparkSession, path: str) -> list[Any]:
    """The commits of the table that replaced or restored it, the newest first; none where there is no table."""
    if not table_exists(spark, path):
        return []
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").select("version", "operation", "userMetadata")
    return [row for row in history.collect() if row["operation"] in ("WRITE", "RESTORE")]


def _current(loads: Sequence[Any]) -> int | None:
    return next((noted for load in loads if (noted := _noted(load)) is not None), None)


def _noted(load: Any) -> int | None:
    """The version that a load was given."""
    try:
        noted = json.loads(load["userMetadata"] or "{}")
    except ValueError:  # somebody else's note
        return None
    return noted.get(_NOTE) if isinstance(noted, dict) else None
