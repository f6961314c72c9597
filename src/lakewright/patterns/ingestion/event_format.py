"""Reading notifications: CloudEvents, object-store (S3 style) notifications, and JSON of one's own.

Guarantee:
    Whatever the bytes are, the answer is an ``Event`` or a ``Malformed`` with the reason; nothing is raised. The same
    notification gives the same id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_plus

from lakewright.errors import ConfigurationError
from lakewright.model.times import parse_time
from lakewright.model.triggers import Event, Malformed

__all__ = ["EventFormat", "read_event"]

_LONGEST_ID = 512
_LONGEST_RAW = 100_000
_FILES = ("data.files", "files")
_MILLISECONDS = 100_000_000_000
"""A number above this is no time in seconds: it would lie after the year 5000."""


class _Unreadable(Exception):
    """Why a notification cannot be read; stays within this module."""


@dataclass(frozen=True, slots=True)
class EventFormat:
    """Where a notification of one's own keeps what: dotted paths. The defaults are those of CloudEvents."""

    id: str = "id"
    type: str = "type"
    source: str = "source"
    time: str = "time"
    files: str | None = None
    """The path of a file's name, or a list of them; one that is named here must be there."""
    url_encoded: bool = False
    """Whether the names of files are URL-encoded; in object-store notifications they always are."""

    def __post_init__(self) -> None:
        for name in ("id", "type", "source", "time"):
            if not getattr(self, name):
                raise ConfigurationError(f"EventFormat: '{name}' is empty. Give a path, such as 'data.{name}'.")


def read_event(
    body: bytes,
    *,
    place: str,
    now: datetime,
    time: datetime | None = None,
    format: EventFormat | None = None,
    trigger: str = "",
    version: str = "1",
) -> Event | Malformed:
    """Read one notification; ``place`` is its id, and ``time`` its time, where it tells none.

    >>> moment = datetime(2026, 1, 5, tzinfo=UTC)
    >>> read_event(b'{"id": "r1", "type": "release"}', place="p", now=moment).id
    'r1'
    >>> read_event(b'{"id": ', place="p", now=moment).reason
    'it is not JSON (Expecting value, character 7)'
    """
    try:
        payload = _parsed(body)
        if _is_object_store(payload):
            told = _object_store(payload["Records"])
        else:
            told = _plain(payload, format or EventFormat())
        moment = told.pop("event_time") or time or now
        event_id = told.pop("id") or place
        if len(event_id) > _LONGEST_ID:
            raise _Unreadable(f"its id has {len(event_id)} characters; {_LONGEST_ID} are allowed")
    except _Unreadable as problem:
        raw = body.decode(errors="replace")[:_LONGEST_RAW]
        return Malformed(place, str(problem), raw, now, place)
    return Event(
        id=event_id,
        event_time=moment,
        processing_time=now,
        payload=payload,
        trigger=trigger,
        trigger_version=version,
        place=place,
        **told,
    )


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        payload = json.loads(body)
        json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeError:
        raise _Unreadable("it is no valid Unicode text") from None
    except json.JSONDecodeError as error:
        raise _Unreadable(f"it is not JSON ({error.msg}, character {error.pos})") from None
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"it is not JSON that can be kept ({error})") from None
    if not isinstance(payload, dict):
        raise _Unreadable(f"it is a JSON {type(payload).__name__}, not an object")
    return payload


def _is_object_store(payload: Mapping[str, Any]) -> bool:
    records = payload.get("Records")
    return isinstance(records, list) and any(isinstance(one, dict) and "s3" in one for one in records)


def _object_store(records: Sequence[Any]) -> dict[str, Any]:
    """The records of one notification belong together: its id is made of what tells each of them from any other."""
    keys, marks, buckets = [], [], []
    for number, record in enumerate(records):
        key = _at(record, "s3.object.key")
        if not isinstance(key, str) or not key:
            raise _Unreadable(f"Records[{number}] names no object key")
        keys.append(unquote_plus(key))
        buckets.append(_at(record, "s3.bucket.name"))
        parts = ("s3.object.sequencer", "s3.object.versionId", "s3.object.eTag", "eventTime", "eventName")
        marks.append([buckets[-1], key, *(_at(record, part) for part in parts)])
    identity = json.dumps(marks, separators=(",", ":"))
    return {
        "id": hashlib.sha256(identity.encode()).hexdigest()[:32],
        "type": str(_at(records[0], "eventName") or ""),
        "source": f"s3://{buckets[0] or ''}",
        "event_time": _time(_at(records[0], "eventTime")),
        "records": tuple(keys),
    }


def _plain(payload: Mapping[str, Any], format: EventFormat) -> dict[str, Any]:
    event_id = _at(payload, format.id)
    if event_id is not None and (isinstance(event_id, bool) or not isinstance(event_id, str | int)):
        raise _Unreadable(f"its id ({format.id}) is neither text nor a number")
    return {
        "id": "" if event_id is None else str(event_id),
        "type": _words(payload, format.type),
        "source": _words(payload, format.source),
        "event_time": _time(_at(payload, format.time)),
        "records": _files(payload, format),
    }


def _files(payload: Mapping[str, Any], format: EventFormat) -> tuple[str, ...]:
    for path in _FILES if format.files is None else (format.files,):
        value = _at(payload, path)
        names = [value] if isinstance(value, str) else value
        if isinstance(names, list) and names and all(isinstance(name, str) and name for name in names):
            return tuple(unquote_plus(name) if format.url_encoded else name for name in names)
        if format.files is not None or value not in (None, []):
            raise _Unreadable(f"it names no file at '{path}'")
    return ()


def _words(payload: Mapping[str, Any], path: str) -> str:
    value = _at(payload, path)
    return "" if value is None else str(value)


def _time(value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > _MILLISECONDS else value, UTC)
        if isinstance(value, str):
            return parse_time(value)
    except (ConfigurationError, OverflowError, ValueError, OSError):
        pass
    raise _Unreadable(f"its time, {str(value)[:60]!r}, is no time")


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
