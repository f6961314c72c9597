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
    "read_checkpoint",
    "starting_offsets",
]

_NUMBER = re.compile(r"[0-9]+")


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
    """Copy a checkpoint to another place, whole or not at all; the stream has to be stopped.

    It becomes visible under its name at the end. Where a stream was at work meanwhile, the copy is refused.
    """
    from pyarrow import fs

    before = read_checkpoint(spark, source)
    if before is None:
        raise ConfigurationError(f"Checkpointer: there is no checkpoint in {source}. Nothing was copied.")
    check_checkpoint(spark, source)
    if read_checkpoint(spark, target) is not None:
        raise ConfigurationError(f"Checkpointer: {target} already holds a checkpoint. Nothing was copied.")
    (here, inside), (there, outside) = (_filesystem(place) for place in (source, target))
    draft = f"{outside}.copying"
    if there.get_file_info(draft).type != fs.FileType.NotFound:
        there.delete_dir(draft)
    sizes = _sizes(here, inside)
    there.create_dir(draft, recursive=True)
    fs.copy_files(inside, draft, source_filesystem=here, destination_filesystem=there)
    if _sizes(here, inside) != sizes or _sizes(there, draft) != sizes:
        there.delete_dir(draft)
        raise TargetError(
            f"Checkpointer: {source} changed while it was copied. The copy was deleted.",
            hint="Stop the stream, then copy again.",
        )
    there.move(draft, outside)
    return before


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


def _filesystem(path: str) -> tuple[Any, str]:
    from pyarrow import fs

    local = local_folder(path)
    return (fs.LocalFileSystem(), str(local)) if local is not None else fs.FileSystem.from_uri(path)


def _sizes(filesystem: Any, path: str) -> dict[str, int]:
    from pyarrow import fs

    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    return {one.path.removeprefix(path): one.size for one in found if one.is_file}
