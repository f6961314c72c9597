"""What is new in a folder: the window of one arrival, and whether it can still be read as it was recorded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from lakewright.connectors.listing import list_files, resolve_folder, version_of
from lakewright.errors import InputError
from lakewright.model.arrivals import Arrival, FileVersion, JsonValue
from lakewright.model.protocols import Found, SourceContext
from lakewright.patterns.ingestion.folder_readiness import FolderReadiness

__all__ = [
    "find_named_files",
    "find_new_files",
    "find_new_partitions",
    "gone_files",
    "left_files",
    "refuse_gone_files",
    "unready_folders",
    "window_files",
    "window_folder",
]


def find_new_files(
    path: str,
    ctx: SourceContext,
    *,
    pattern: str,
    max_files: int | None,
    max_bytes: int | None,
    ready: FolderReadiness | None = None,
) -> Found | None:
    """The files that no arrival holds in their present version, bounded; None where there are none.

    A deleted file is no arrival: what was taken from it stays. With ``ready``, files of folders that are not complete
    are none of them.
    """
    new = _complete_files(path, ctx, pattern, ready)
    if not new:
        return None
    taken = _bounded(new, max_files, max_bytes)
    return _found(path, ctx, taken, more=len(new) - len(taken))


def find_new_partitions(
    path: str, key: str, ctx: SourceContext, *, pattern: str, ready: FolderReadiness
) -> Sequence[Found]:
    """The same, an arrival per partition folder such as ``date=2026-01-05``, in their order; incomplete ones wait."""
    parts: dict[str, list[FileVersion]] = {}
    for file in _complete_files(path, ctx, pattern, ready):
        named = [part for part in file.path.split("/")[:-1] if part.startswith(f"{key}=")]
        if not named:
            raise InputError(
                f"{path}/{file.path} lies in no partition {key}=..., so it belongs to no arrival. Nothing was read.",
                hint=f"Deliver it to {path}/{key}=.../, or exclude it by 'pattern'.",
            )
        parts.setdefault(named[0], []).append(file)
    return [_found(path, ctx, parts[name], more=0, of=name) for name in sorted(parts)]


def find_named_files(path: str, names: Iterable[str], ctx: SourceContext, *, pattern: str) -> Found | None:
    """Those of the named files that lie here and that no arrival holds in their present version; None without any.

    A name is absolute, or relative to this folder or to the project; one that leads elsewhere is none of these files.
    """
    root = resolve_folder(path, ctx.project)
    named = {
        os.path.relpath(place, root)
        for name in names
        for place in (os.path.abspath(ctx.project / name), os.path.abspath(root / name))
        if place.startswith(f"{root}{os.sep}")
    }
    taken = [file for file in _new_files(path, ctx, pattern) if file.path in named]
    return _found(path, ctx, taken, more=0) if taken else None


def _complete_files(path: str, ctx: SourceContext, pattern: str, ready: FolderReadiness | None) -> list[FileVersion]:
    new = _new_files(path, ctx, pattern)
    if ready is None or not new:
        return new
    complete = {folder for folder, reason in _reasons(path, ctx, new, ready).items() if reason is None}
    # Listed once more, after the folders were seen complete: one may have got its last file in between.
    return [file for file in _new_files(path, ctx, pattern) if _folder_of(file) in complete]


def _found(path: str, ctx: SourceContext, taken: Sequence[FileVersion], *, more: int, of: str | None = None) -> Found:
    for file in taken:
        _refuse_unreadable_name(path, file.path)
    supersedes = tuple(
        (ctx.known_files[file.path][1], _file_version(file.path, ctx.known_files[file.path][0]))
        for file in taken
        if file.path in ctx.known_files
    )
    files: list[JsonValue] = [[file.path, file.version, file.size] for file in taken]
    return Found(
        window={"root": path, "files": files},
        files=tuple(taken),
        supersedes=supersedes,
        summary=("" if of is None else f"{of}: ") + _summary(taken, len(supersedes), more),
    )


def unready_folders(path: str, ctx: SourceContext, *, pattern: str, ready: FolderReadiness) -> dict[str, str]:
    """The folders with new files that may not be read yet, as people know them, each with the reason.

    So is one that is marked as complete and holds nothing, and never did: the marker came before its data.
    """
    reasons = _reasons(path, ctx, _new_files(path, ctx, pattern), ready)
    root, marked = resolve_folder(path, ctx.project), getattr(ready, "marked", None)
    held = [*ctx.known_files, *[file.path for file in list_files(root, pattern)]]
    for folder in () if marked is None else marked(root):
        if not any(name.startswith(f"{folder}/") for name in held):
            reasons[folder] = "is marked as complete, and holds no file"
    return {"/".join(filter(None, (path, folder))): why for folder, why in reasons.items() if why is not None}


def _new_files(path: str, ctx: SourceContext, pattern: str) -> list[FileVersion]:
    listed = list_files(resolve_folder(path, ctx.project), pattern)
    return [file for file in listed if _known_version(ctx, file.path) != file.version]


def _reasons(
    path: str, ctx: SourceContext, files: Iterable[FileVersion], ready: FolderReadiness
) -> dict[str, str | None]:
    root = resolve_folder(path, ctx.project)
    return {folder: ready.not_yet(root, folder) for folder in sorted({_folder_of(file) for file in files})}


def _folder_of(file: FileVersion) -> str:
    return file.path.rpartition("/")[0]


def window_folder(arrival: Arrival, ctx: SourceContext) -> Path:
    """Where the files of a recorded window lie."""
    return resolve_folder(cast(str, arrival.window["root"]), ctx.project)


def window_files(arrival: Arrival) -> tuple[FileVersion, ...]:
    """The files of a recorded window."""
    rows = cast("list[tuple[str, str, int]]", arrival.window["files"])
    return tuple(FileVersion(path, version, size) for path, version, size in rows)


def gone_files(arrival: Arrival, ctx: SourceContext) -> list[str]:
    """The files of a window that vanished or changed since it was recorded, in words."""
    return [f"{file.path} {why}" for file, why in _gone(arrival, ctx)]


def left_files(arrival: Arrival, ctx: SourceContext) -> Found:
    """The files of a window that are as they were recorded; those that are not are noted in it as lost."""
    gone = {file.path for file, _ in _gone(arrival, ctx)}
    files = window_files(arrival)
    left = tuple(file for file in files if file.path not in gone)
    before = cast("list[JsonValue]", arrival.window.get("lost", []))
    lost: list[JsonValue] = [[file.path, file.version, file.size] for file in files if file.path in gone]
    held: list[JsonValue] = [[file.path, file.version, file.size] for file in left]
    summary = f"{len(left)} of {len(files)} {'file' if len(files) == 1 else 'files'}"
    return Found(window={**arrival.window, "files": held, "lost": [*before, *lost]}, files=left, summary=summary)


def _gone(arrival: Arrival, ctx: SourceContext) -> list[tuple[FileVersion, str]]:
    folder = window_folder(arrival, ctx)
    gone = []
    for file in window_files(arrival):
        try:
            stat = os.stat(os.path.join(folder, file.path))
        except (FileNotFoundError, NotADirectoryError):
            gone.append((file, "is no longer there"))
        else:
            if version_of(stat) != file.version:
                gone.append((file, f"has changed since (was {file.version}, is {version_of(stat)})"))
    return gone


def refuse_gone_files(arrival: Arrival, ctx: SourceContext) -> None:
    """Refuse a window that is not as recorded: other rows under an old arrival would be there twice later."""
    gone = gone_files(arrival, ctx)
    if gone:
        more = f", and {len(gone) - 3} more" if len(gone) > 3 else ""
        raise InputError(
            f"{ctx.dataset}: arrival {arrival.number} can no longer be read as it was recorded from "
            f"{window_folder(arrival, ctx)}: {'; '.join(gone[:3])}{more}. Nothing was read.",
            hint="Put the files back as they were. If the arrival is already in bronze, repeat from bronze.",
        )


def _known_version(ctx: SourceContext, path: str) -> str | None:
    known = ctx.known_files.get(path)
    return None if known is None else known[0]


def _file_version(path: str, version: str) -> FileVersion:
    size = version.partition("-")[0]
    return FileVersion(path, version, int(size) if size.isdigit() else 0)


def _bounded(files: Sequence[FileVersion], max_files: int | None, max_bytes: int | None) -> list[FileVersion]:
    """As many files as fit, in order; at least one, or a file over the limit would block the source."""
    taken: list[FileVersion] = []
    size = 0
    for file in files[:max_files]:
        size += file.size
        if taken and max_bytes is not None and size > max_bytes:
            break
        taken.append(file)
    return taken


def _refuse_unreadable_name(root: str, path: str) -> None:
    if ":" in path:
        problem = "Hadoop's local file system cannot open a name that holds a ':'"
    elif not _is_unicode(path):
        problem = "its name is no valid UTF-8"
    else:
        return
    raise InputError(
        f"{root}/{path.encode(errors='replace').decode()} cannot be read: {problem}. Nothing was read.",
        hint="Rename it (2026-01-05T0700.json, not 2026-01-05T07:00.json), or exclude it by 'pattern'.",
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a byte that the file system's encoding does not know
        return False
    return True


def _summary(taken: Sequence[FileVersion], replaced: int, waiting: int) -> str:
    new = len(taken) - replaced
    parts = [f"{new} new {'file' if new == 1 else 'files'}"] if new else []
    parts += [f"{replaced} replaced"] if replaced else []
    parts.append(_size(file.size for file in taken))
    parts += [f"{waiting} more for the next arrival"] if waiting else []
    return ", ".join(parts)


def _size(sizes: Iterable[int]) -> str:
    size = float(sum(sizes))
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
