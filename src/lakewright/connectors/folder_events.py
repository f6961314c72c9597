"""A watched folder: notifications that are dropped there as files, or data files whose arrival is the event.

Guarantee:
    A file is one event per version, and is handed over again until that event is finished. Files that are still being
    written (a name with a leading ``.`` or ``_``, or the suffix ``.tmp``) are not seen.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from lakewright.connectors.listing import list_files, resolve_folder, version_of
from lakewright.errors import ConfigurationError
from lakewright.model.arrivals import FileVersion
from lakewright.model.triggers import ChannelContext, Message

__all__ = ["FolderEvents"]


@dataclass(frozen=True, slots=True)
class FolderEvents:
    """Each file of a folder is an event: what it holds, or (``of="files"``) that it is there."""

    path: str
    _: KW_ONLY
    of: Literal["notifications", "files"] = "notifications"
    pattern: str = "*"
    after: Literal["keep", "delete"] = "keep"
    """What becomes of a notification that is finished."""
    every_seconds: float = 1.0
    """How often the folder is listed."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigurationError("FolderEvents: the path is empty. Name a folder, such as 'landing/events'.")
        if self.of not in ("notifications", "files"):
            raise ConfigurationError(f"FolderEvents: of is 'notifications' or 'files', not '{self.of}'.")
        if self.after not in ("keep", "delete"):
            raise ConfigurationError(f"FolderEvents: after is 'keep' or 'delete', not '{self.after}'.")
        if self.of == "files" and self.after == "delete":
            raise ConfigurationError("FolderEvents: data files are not deleted: repeats read them again.")

    @property
    def name(self) -> str:
        return f"folder {self.path}"

    def open(self, ctx: ChannelContext) -> OpenFolder:
        """Begin with the files whose events are not finished."""
        folder = resolve_folder(self.path, ctx.project)
        list_files(folder, self.pattern)  # one that is not there is told now
        return OpenFolder(self, folder, once=ctx.once, seen=ctx.places())


@dataclass(slots=True)
class OpenFolder:
    """A folder that is listed again and again."""

    channel: FolderEvents
    folder: Path
    once: bool
    seen: set[str]
    _queue: list[FileVersion] = field(default_factory=list)
    _next_look: float = 0.0

    def take(self, timeout_seconds: float) -> Message | None:
        """The next file by name."""
        if not self._queue:
            self._look(timeout_seconds)
        while self._queue:
            file = self._queue.pop(0)
            try:
                return self._message(file)
            except FileNotFoundError:
                continue  # taken away since it was listed
        return None

    def done(self, message: Message) -> None:
        """Do not hand it over again."""
        self.seen.add(message.place)
        if self.channel.after == "delete" and self.channel.of == "notifications":
            file = self.folder / str(message.handle)
            try:
                if _place(str(message.handle), version_of(os.stat(file))) == message.place:
                    file.unlink()
            except FileNotFoundError:
                return

    def reject(self, body: bytes, event_id: str, reason: str) -> None:
        """Nothing: a folder has no place for dead letters but the store."""

    def close(self) -> None:
        """Nothing is held."""

    def _look(self, timeout_seconds: float) -> None:
        pause = self._next_look - time.monotonic()
        if pause > 0 and not self.once:
            time.sleep(min(pause, timeout_seconds))
            if pause > timeout_seconds:
                return
        self._next_look = time.monotonic() + self.channel.every_seconds
        listed = list_files(self.folder, self.channel.pattern)
        self._queue = [file for file in listed if _place(file.path, file.version) not in self.seen]

    def _message(self, file: FileVersion) -> Message:
        place = _place(file.path, file.version)
        moment = datetime.fromtimestamp(int(file.version.rpartition("-")[2]) / 1000, UTC)
        if self.channel.of == "notifications":
            return Message((self.folder / file.path).read_bytes(), place, moment, file.path)
        told = {
            "specversion": "1.0",
            "id": place,
            "type": "file",
            "source": self.channel.path,
            "time": moment.isoformat(),
            "files": [os.fspath(self.folder / file.path)],
            "size": file.size,
        }
        return Message(json.dumps(told).encode(), place, moment, file.path)


def _place(path: str, version: str) -> str:
    return f"{path}@{version}"
