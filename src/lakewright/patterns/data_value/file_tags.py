"""Tags of files: what is known of the run that wrote each file of a folder, in a small file beside it.

Guarantee:
    A tag belongs to the bytes that it was made for (size and time of the file). A file that was rewritten has no tag
    until it is tagged anew; a file that was not keeps its own.
Consequences:
    - For folders on this machine's file systems. In a bucket, use the object's own tags.
    - Spark does not see tags: their names begin with a point.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lakewright.errors import InputError
from lakewright.patterns.data_value.context_facts import check_facts, facts_as_json

__all__ = ["read_tags", "tag_files"]

_ENDING = ".tag.json"


def tag_files(folder: str | Path, *, facts: Mapping[str, object]) -> int:
    """Tag every file that is new or was rewritten since it was tagged; returns how many. Tags of lost files go."""
    check_facts("Metadata Decorator", facts)
    root = Path(folder)
    fresh = read_tags(root)
    for file, known in fresh.items():
        if known is None:
            tag = _tag_of(root / file)
            draft = tag.with_name(f"{tag.name}.{os.getpid()}")
            draft.write_text(json.dumps({"of": _bytes_of(root / file), "facts": json.loads(facts_as_json(facts))}))
            os.replace(draft, tag)
    for tag in root.rglob(f".*{_ENDING}"):
        if not tag.with_name(tag.name[1 : -len(_ENDING)]).exists():
            tag.unlink(missing_ok=True)
    return sum(known is None for known in fresh.values())


def read_tags(folder: str | Path) -> dict[str, dict[str, Any] | None]:
    """File -> its facts; None for a file without a tag, or whose tag was made for other bytes."""
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder, so no file has a tag.")
    return {str(file.relative_to(root)): _facts_of(file) for file in _files(root)}


def _files(root: Path) -> Iterator[Path]:
    for file in sorted(root.rglob("*")):
        hidden = any(part.startswith((".", "_")) for part in file.relative_to(root).parts)
        if file.is_file() and not hidden:
            yield file


def _facts_of(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(_tag_of(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return dict(found["facts"]) if found.get("of") == _bytes_of(file) else None


def _tag_of(file: Path) -> Path:
    return file.with_name(f".{file.name}{_ENDING}")


def _bytes_of(file: Path) -> list[int]:
    state = file.stat()
    return [state.st_size, state.st_mtime_ns]
