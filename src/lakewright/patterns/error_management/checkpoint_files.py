"""What lies in a checkpoint: read for people, checked before a start, copied to another place.

A checkpoint is Spark's: ``metadata`` (which query), ``offsets/N`` (what micro-batch N reads), ``commits/N`` (that it is
done), ``state`` (what it remembers). Nothing here ever changes one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.model.paths import local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CheckpointState",
    "check_checkpoint",
    "copy_checkpoint",
    "open_storage",
    "read_checkpoint",
    "starting_offsets",
]

_NUMBER = re.compile(r"[0-9]+")
_PROOF = "metadata"


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """How far a stream is: ``batch`` was begun last, ``committed`` was done last."""

    query_id: str
    batch: int
    committed: int | None
    offsets: tuple[Any, ...]
    """Per source, up to where ``batch`` reads: for Kafka ``{topic: {partition: offset}}``."""
    watermark: datetime | None
    before: tuple[Any, ...] | None = None
    """Where ``batch`` begins to read, which is as far as the one before it has; None: there was none, or it is not
    known."""

    @property
    def is_pending(self) -> bool:
        """Whether a micro-batch was begun that is not known to be done: a start repeats it."""
        return self.committed is None or self.batch > self.committed


def read_checkpoint(spark: SparkSession, path: str) -> CheckpointState | None:
    """What the newest files of a checkpoint tell; None where no micro-batch has begun."""
    files = _read(spark, path)
    if not files:
        return None
    query = _parsed(files.get("metadata"), f"{path}/metadata", _query_id)
    begun, done = _numbers(files, "offsets"), _numbers(files, "commits")
    for number in done[-1:]:
        _parsed(files[f"commits/{number}"], f"{path}/commits/{number}", _commit)
    if not begun:
        # Spark would begin at micro-batch 0, whatever it has done before.
        for number in done[-1:]:
            _parsed(None, f"{path}/offsets/{number}", _offsets)
        return None
    newest = begun[-1]
    # The one before is read as well, by a start.
    told = {n: _parsed(files[f"offsets/{n}"], f"{path}/offsets/{n}", _offsets) for n in begun}
    (watermark, offsets), (_, before) = told[newest], told.get(newest - 1, (None, None))
    return CheckpointState(query, newest, done[-1] if done else None, offsets, watermark, before)


def check_checkpoint(spark: SparkSession, path: str) -> CheckpointState | None:
    """Refuse a checkpoint that cannot be read, or on which another query of this session is at work; else tell it."""
    state = read_checkpoint(spark, path)
    if state is not None and any(str(query.id) == state.query_id for query in spark.streams.active):
        raise ConfigurationError(
            f"Checkpointer: a stream is already at work on {path}. Nothing was started.",
            hint="Stop it first, or give this one a place of its own.",
        )
    return state


def copy_checkpoint(spark: SparkSession, source: str, target: str) -> CheckpointState:
    """Copy a checkpoint to another, empty place; the stream has to be stopped.

    ``metadata``, without which nothing is a checkpoint, comes last, so that part of a copy is never taken for one.
    Where a stream was at work meanwhile, the copy is refused.
    """
    from pyarrow import fs

    before = read_checkpoint(spark, source)
    if before is None:
        raise ConfigurationError(f"Checkpointer: there is no checkpoint in {source}. Nothing was copied.")
    check_checkpoint(spark, source)
    (here, inside), (there, outside) = (open_storage(place) for place in (source, target))
    if there.get_file_info(fs.FileSelector(outside, allow_not_found=True)):
        raise ConfigurationError(
            f"Checkpointer: {target} already holds a checkpoint, part of one, or something else. Nothing was copied.",
            hint="Name an empty folder, or delete what lies there.",
        )
    sizes = _sizes(here, inside)
    there.create_dir(outside, recursive=True)
    try:
        for one in here.get_file_info(fs.FileSelector(inside)):
            if one.base_name != _PROOF:
                _copy(here, one, there, f"{outside}/{one.base_name}")
        copied = _sizes(there, outside)
        if _sizes(here, inside) != sizes or copied != {name: size for name, size in sizes.items() if name != _PROOF}:
            raise TargetError(
                f"Checkpointer: {source} changed while it was copied. The copy was deleted.",
                hint="Stop the stream, then copy again.",
            )
        _copy(here, here.get_file_info(f"{inside}/{_PROOF}"), there, f"{outside}/{_PROOF}")
    except Exception:
        there.delete_dir(outside)
        raise
    return before


def open_storage(place: str) -> tuple[Any, str]:
    """The file system of a place, and the path there; refused where it is of a kind that cannot be copied to."""
    import pyarrow as pa
    from pyarrow import fs

    local = local_folder(place)
    if local is not None:
        return fs.LocalFileSystem(), str(local)
    scheme, rest = place.split("://", 1) if "://" in place else (place.split(":", 1)[0], "")
    try:
        # Hadoop's name for what Arrow calls s3.
        return fs.FileSystem.from_uri(f"s3://{rest}" if scheme in ("s3a", "s3n") else place)  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigurationError(
            f"Checkpointer: {place} is no place that a checkpoint can be copied to or from ({error}). "
            "Nothing was copied.",
            hint="A folder, or a URI of s3, s3a, gs, abfss or hdfs. Others: stop the stream and copy the folder by "
            "the tools of that storage.",
        ) from error
    except OSError as error:
        raise TargetError(
            f"Checkpointer: {place} cannot be reached ({error}). Nothing was copied.",
            hint="A copy is made by Arrow, which knows nothing of Spark's settings: it takes credentials from where "
            "the storage's own tools do, such as AWS_ACCESS_KEY_ID.",
        ) from error


def _copy(here: Any, one: Any, there: Any, target: str) -> None:
    """A file, or a folder with all that is in it."""
    from pyarrow import fs

    if not one.is_file:
        there.create_dir(target, recursive=True)
    fs.copy_files(one.path, target, source_filesystem=here, destination_filesystem=there)


def starting_offsets(state: CheckpointState, source: int = 0) -> str:
    """Where another query goes on, for Kafka's option ``startingOffsets``: from the end of the last micro-batch done.

    Refused while one is pending: whether it was written is not known here.
    """
    if state.is_pending:
        raise ConfigurationError(
            f"Checkpointer: micro-batch {state.batch} was begun and is not known to be done.",
            hint="Start the old query once more, until it has nothing to do; then go over to the new one.",
        )
    return json.dumps(state.offsets[source])


def _numbers(files: Mapping[str, str], folder: str) -> list[int]:
    """The micro-batches of which a folder has files, in order."""
    return sorted(int(name.removeprefix(f"{folder}/")) for name in files if name.startswith(f"{folder}/"))


_NEWEST = {"offsets": 2, "commits": 1}
"""How many files of a folder a start needs."""


def _read(spark: SparkSession, path: str) -> dict[str, str]:
    """The text of ``metadata``, and of the files of offsets and of commits that a start needs, by name."""
    local = local_folder(path)
    if local is None:
        return _read_by_spark(spark, path)
    found: dict[str, str] = {}
    for folder, count in _NEWEST.items():
        place = local / folder
        numbers = [int(file.name) for file in place.glob("*") if _NUMBER.fullmatch(file.name)] if place.is_dir() else []
        for number in sorted(numbers)[-count:]:
            found[f"{folder}/{number}"] = (place / str(number)).read_text(errors="replace")
    if (local / "metadata").is_file():
        found["metadata"] = (local / "metadata").read_text(errors="replace")
    return found


def _read_by_spark(spark: SparkSession, path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in ("metadata", *_NEWEST):
        try:
            frame = spark.read.option("wholetext", "true").text(f"{path}/{folder}")
            rows = frame.selectExpr("_metadata.file_name AS name", "value").collect()
        except Exception as error:
            if "PATH_NOT_FOUND" in str(error):
                continue
            raise
        if folder == "metadata":
            found["metadata"] = "".join(row["value"] for row in rows)
            continue
        known = {int(row["name"]): row["value"] for row in rows if _NUMBER.fullmatch(row["name"])}
        found |= {f"{folder}/{number}": known[number] for number in sorted(known)[-_NEWEST[folder] :]}
    return found


def _parsed(text: str | None, file: str, parse: Any) -> Any:
    try:
        if text is None:
            raise ValueError("it is not there")
        return parse(text)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError(
            f"Checkpointer: {file} cannot be read ({error}): the stream cannot tell how far it was. Nothing was "
            "started.",
            hint="Bring the file back from a copy. Or begin with the next version of the checkpoint, at a start that "
            "you choose: records are then read again, or left out.",
        ) from None


def _query_id(text: str) -> str:
    return str(json.loads(text)["id"])


def _offsets(text: str) -> tuple[datetime | None, tuple[Any, ...]]:
    lines = text.splitlines()
    if not lines or not re.fullmatch(r"v[0-9]+", lines[0]):
        raise ValueError("it does not begin with its version")
    told: Mapping[str, Any] = json.loads(lines[1])
    moment = int(told.get("batchWatermarkMs", 0))
    if len(lines) < 3:
        raise ValueError("it ends before its offsets")
    offsets = tuple(None if line == "-" else json.loads(line) for line in lines[2:])
    return (datetime.fromtimestamp(moment / 1000, UTC) if moment else None), offsets


def _commit(text: str) -> None:
    lines = text.splitlines()
    if not lines or not re.fullmatch(r"v[0-9]+", lines[0]):
        raise ValueError("it does not begin with its version")


def _sizes(filesystem: Any, path: str) -> dict[str, int]:
    from pyarrow import fs

    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    return {one.path.removeprefix(path).lstrip("/"): one.size for one in found if one.is_file}
