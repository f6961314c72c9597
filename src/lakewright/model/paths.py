"""Where a path leads: to a folder of this machine, or into an object store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

__all__ = ["local_folder"]


def local_folder(path: str) -> Path | None:
    """The place on this machine's file system, or None for an object store."""
    if "://" not in path and not path.startswith("file:"):
        return Path(path)
    parsed = urlparse(path)
    return Path(unquote(parsed.path)) if parsed.scheme == "file" else None
