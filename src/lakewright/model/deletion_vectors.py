"""Deletion vectors: small files beside the data that mark rows as gone. A version of a table needs those it names.

Spark's ``inputFiles`` tells the data files alone, and a RESTORE looks at no others: a version whose vectors were
vacuumed would be restored, and could not be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID

__all__ = ["lost_by_log", "lost_vectors", "vector_file"]

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\.\d{10}\.\d{10})?\.parquet")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_ENCODED = 20
"""The signs of a UUID in base 85."""


def lost_vectors(folder: Path, version: int) -> list[str]:
    """The files of vectors that a version of the table in a local folder names, and that are no longer there."""
    return _missing(folder, (vector_file(told.get("deletionVector")) for told in _live(folder, version)))


def lost_by_log(folder: Path, version: int) -> list[str]:
    """All files that a version names and that are no longer there, data and vectors. Needs no Spark."""
    live = _live(folder, version)
    data = (unquote(str(told["path"])).removeprefix("file:") for told in live)
    return [*_missing(folder, data), *_missing(folder, (vector_file(told.get("deletionVector")) for told in live))]


def _live(folder: Path, version: int) -> list[Mapping[str, Any]]:
    """The files of a version, as far as its log still tells."""
    named: dict[str, Mapping[str, Any] | None] = {}
    for action in _newest_first(folder / "_delta_log", version):
        for word in ("add", "remove"):
            if (file := action.get(word)) is not None:
                # A file that gets a vector is removed and added by one commit: what was added counts.
                named.setdefault(file["path"], file if word == "add" else None)
    return [told for told in named.values() if told is not None]


def _missing(folder: Path, names: Iterable[str | None]) -> list[str]:
    return sorted({name for name in names if name is not None and not (folder / name).exists()})


def vector_file(told: Mapping[str, Any] | None) -> str | None:
    """Where a vector lies, within the table's folder or absolutely; None for one that the log itself holds.

    >>> vector_file({"storageType": "u", "pathOrInlineDv": "fxI2aprMaENGA&3w1D-@"})
    'deletion_vector_2fe5dd6c-4ecb-4672-9a03-08b2639e56f8.bin'
    """
    if not told or told["storageType"] not in ("u", "p"):
        return None
    place = str(told["pathOrInlineDv"])
    if told["storageType"] == "p":
        return place.removeprefix("file:").replace("///", "/", 1)
    prefix, encoded = place[:-_ENCODED], place[-_ENCODED:]
    name = f"deletion_vector_{UUID(bytes=_decoded(encoded))}.bin"
    return f"{prefix}/{name}" if prefix else name


def _newest_first(log: Path, version: int) -> Iterator[Mapping[str, Any]]:
    """The actions that make up a version, additions of a commit before its removals."""
    checkpoint = max((one for one in _checkpoints(log) if one <= version), default=-1)
    for number in range(version, checkpoint, -1):
        file = log / f"{number:020d}.json"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for kind in ('{"add"', '{"remove"'):
            yield from (json.loads(line) for line in lines if line.startswith(kind))
    for name in sorted(log.glob(f"{checkpoint:020d}.checkpoint*.parquet")) if checkpoint >= 0 else ():
        yield from _of_checkpoint(name)


def _checkpoints(log: Path) -> set[int]:
    return {int(found[1]) for one in log.iterdir() if (found := _CHECKPOINT.fullmatch(one.name))}


def _of_checkpoint(file: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet

    parquet = pyarrow.parquet.ParquetFile(file)
    wanted = ["add.path"]
    if "add.deletionVector.storageType" in {parquet.schema.column(n).path for n in range(len(parquet.schema))}:
        wanted += ["add.deletionVector.storageType", "add.deletionVector.pathOrInlineDv"]
    yield from (row for row in parquet.read(columns=wanted).to_pylist() if row["add"] is not None)


def _decoded(text: str) -> bytes:
    words = []
    for start in range(0, len(text), 5):
        value = 0
        for sign in text[start : start + 5]:
            value = value * 85 + _DIGITS.index(sign)
        words.append(value.to_bytes(4, "big"))
    return b"".join(words)
