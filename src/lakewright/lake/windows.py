"""Recorded windows as a commit carries them: inside the identity, or beside it where they are large.

Those of files lie beside it in any case. A log forgets its oldest commits in time; which files were taken must be known
for as long as the files may still be there, or they would be taken again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from lakewright.lake.lake import SYSTEM_FOLDER, Lake
from lakewright.model.arrivals import WINDOW_LIMIT_BYTES, Arrival, FileVersion, JsonValue

__all__ = ["kept_windows", "load_window", "store_window"]


def store_window(lake: Lake, arrival: Arrival) -> JsonValue:
    """What to put into the commit's identity so that the arrival can be rebuilt from the log alone."""
    value: dict[str, JsonValue] = {
        "number": arrival.number,
        "recorded_at": arrival.recorded_at.isoformat(),
        "key": arrival.key,
        "window": dict(arrival.window),
        "files": [[f.path, f.version, f.size] for f in arrival.files],
        "supersedes": [[number, f.path, f.version, f.size] for number, f in arrival.supersedes],
    }
    text = json.dumps(value, separators=(",", ":"))
    is_large = len(text.encode()) > WINDOW_LIMIT_BYTES
    if lake.local is None or not (is_large or arrival.files):
        return value
    folder = _folder(lake.local, arrival.source)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{arrival.number:012d}.json"
    draft = file.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, file)
    return {"number": arrival.number, "file": str(file.relative_to(lake.local))} if is_large else value


def kept_windows(lake: Lake, source: str, *, below: int | None) -> Iterator[Arrival]:
    """The arrivals (before a number) whose windows lie beside the log, in order."""
    if lake.local is None:
        return
    for file in sorted(_folder(lake.local, source).glob("*.json")):
        if below is None or int(file.stem) < below:
            yield _arrival(source, json.loads(file.read_text(encoding="utf-8")), run_id=None)


def load_window(lake: Lake, source: str, value: Any, *, run_id: str | None) -> Arrival:
    """The arrival that a commit's identity tells of."""
    if "file" in value and lake.local is not None:
        value = json.loads((lake.local / value["file"]).read_text(encoding="utf-8"))
    return _arrival(source, value, run_id=run_id)


def _folder(lake: Path, source: str) -> Path:
    return lake / SYSTEM_FOLDER / "windows" / source


def _arrival(source: str, value: Any, *, run_id: str | None) -> Arrival:
    return Arrival(
        source=source,
        number=value["number"],
        window=value["window"],
        recorded_at=datetime.fromisoformat(value["recorded_at"]),
        run_id=run_id,
        key=value["key"],
        files=tuple(FileVersion(*file) for file in value["files"]),
        supersedes=tuple((number, FileVersion(*file)) for number, *file in value["supersedes"]),
    )
