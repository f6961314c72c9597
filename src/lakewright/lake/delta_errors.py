"""Delta's and Spark's write errors in words for people: what happened, whether anything was written, the cure."""

from __future__ import annotations

import re
from urllib.parse import unquote

from lakewright.errors import InputError, LakewrightError, SchemaChangeError, TargetError

__all__ = [
    "OUTSIDE_SLICE",
    "explain_gone_file",
    "explain_gone_version",
    "explain_write_error",
    "is_transient",
    "root_message",
]

OUTSIDE_SLICE = "a row lies outside the slice:"
"""How a row that fails on its way to the write says so."""

_TRANSIENT = (
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentTransactionException",
    "ConcurrentWriteException",
    "DELTA_CONCURRENT_",
    "MetadataChangedException",
    "ProtocolChangedException",
    "DELTA_METADATA_CHANGED",
    "Python worker failed to connect back",
    "Connection refused",
    "Connection reset",
    "ConnectionResetError",
    "timed out",
)
_GONE_FILE = ("DELTA_FILE_NOT_FOUND", "FILE_NOT_EXIST", "Not all files from version")
_GONE_VERSION = ("DELTA_VERSION_NOT_FOUND", "DELTA_UNSUPPORTED_TIME_TRAVEL")
_FILE = re.compile(r"(?:file:)?/\S+?\.parquet")
_SQLSTATE = re.compile(r"SQLSTATE:? ?\(?(08|40|53|57)[0-9A-Z]{3}")


def is_transient(error: BaseException) -> bool:
    """Whether the same work may succeed if it is simply done again: an explicit list, nothing else."""
    if isinstance(error, LakewrightError):
        return error.__cause__ is not None and is_transient(error.__cause__)
    if isinstance(error, ConnectionError):
        return True
    text = f"{type(error).__name__}: {error}"
    return any(word in text for word in _TRANSIENT) or _SQLSTATE.search(text) is not None


def explain_write_error(
    error: BaseException, *, dataset: str, path: str, where: str | None = None
) -> LakewrightError | None:
    """A kind error for a known cause, or None."""
    text = root_message(error)
    if found := re.search(OUTSIDE_SLICE + r" (.{1,80}?)(?: SQLSTATE|\n|$)", text):
        return InputError(
            f"{dataset}: a row lies outside the slice that is being replaced ({where}): {found.group(1)}. "
            "Nothing was written.",
            hint="Filter the step's output to its slice, or correct the column that tells the event time.",
        )
    if "DELTA_REPLACE_WHERE_MISMATCH" in text or "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES" in text:
        values = re.findall(r"^ - (\S+) : (.*)$", text, re.MULTILINE)
        row = ", ".join(f"{name} = {value}" for name, value in values)
        return InputError(
            f"{dataset}: a row lies outside the slice that is being replaced ({where}){': ' + row if row else ''}. "
            "Nothing was written.",
            hint="Filter the step's output to its slice, or correct the column that tells the event time.",
        )
    if found := re.search(r"the (contract is broken:|partition column) \S+ is NULL in a row", text):
        return InputError(
            f"{dataset}: {found.group(0)}. Nothing was written.",
            hint="Set such rows aside with a Dead-Letter rule, or say what stands for NULL.",
        )
    if "No space left on device" in text or "File too large" in text or "Disk quota exceeded" in text:
        return TargetError(
            f"{dataset}: no room to write to {path} ({_first_line(text)}). The table is unchanged.",
            hint="Free some space, then run again: nothing that was done is lost.",
        )
    if "Permission denied" in text or "AccessDenied" in text or "Mkdirs failed" in text:
        return TargetError(
            f"{dataset}: no permission to write to {path}. The table is unchanged.",
            hint="Give this user write permission on that folder, or set another `lake` in lakewright.toml.",
        )
    if "DELTA_FAILED_TO_MERGE_FIELDS" in text or "DELTA_METADATA_MISMATCH" in text:
        return SchemaChangeError(f"{dataset}: the rows do not fit the table {path}: {_first_line(text)}")
    return explain_gone_file(error, dataset=dataset, effect=" Nothing was written.")


def explain_gone_file(error: BaseException, *, dataset: str, effect: str = "") -> TargetError | None:
    """For a read or write that met a table whose files somebody has deleted; None for any other failure."""
    text = root_message(error)
    if not any(sign in text for sign in _GONE_FILE):
        return None
    found = _FILE.search(text)
    which = "a data file that the log names" if found is None else re.sub(r"^file:/+", "/", unquote(found.group(0)))
    return TargetError(
        f"{dataset}: {which} is gone.{effect}",
        hint="Somebody deleted or vacuumed files of a table. Bring them back, go back to a version that is whole with "
        "`lakewright rollback`, or make the slice again from its inputs with `lakewright backfill`.",
    )


def explain_gone_version(error: BaseException, *, dataset: str, version: int) -> TargetError | None:
    """For a version that the log can no longer give: it was cleaned, or its retention has passed."""
    text = root_message(error)
    if not any(sign in text for sign in _GONE_VERSION):
        return None
    return TargetError(
        f"{dataset}: version {version} can no longer be read: {_plain(_first_line(text))} Nothing was written.",
        hint=f"Read a newer version. `history` on {dataset} keeps versions for longer, from now on.",
    )


def root_message(error: BaseException) -> str:
    """The text of an error and of what caused it, down to the bottom."""
    texts, seen = [], set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        texts.append(str(at))
        java = getattr(at, "java_exception", None) or getattr(at, "_origin", None)
        while java is not None:
            texts.append(str(java.toString()) if hasattr(java, "toString") else str(java))
            java = java.getCause() if hasattr(java, "getCause") else None
        at = at.__cause__ or at.__context__
    return "\n".join(texts)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]


def _plain(line: str) -> str:
    """A line of Delta's without its codes.

    >>> _plain("[DELTA_VERSION_NOT_FOUND] Cannot time travel to version 0. SQLSTATE: 22003")
    'Cannot time travel to version 0.'
    """
    return re.sub(r"^\[[\w.]+\] | SQLSTATE: \w+.*$", "", line)
