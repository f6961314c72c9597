"""Notifiers: findings carried out to a file of JSON lines, or to an address that takes a POST.

Guarantee:
    A finding was taken when ``notify`` returns, and otherwise an error tells why: whoever calls keeps it and tries
    again. So one may come twice, never not at all; its ``id`` is the same each time, so that receivers can tell.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from pathlib import Path

from lakewright.connectors.http_calls import Caller, HttpFailure
from lakewright.errors import ConfigurationError, TargetError
from lakewright.model.findings import Finding
from lakewright.model.secrets import Secret, is_reference

__all__ = ["FileNotifier", "WebhookNotifier", "as_message"]

_ANY_PACE = 1e9
"""Requests a second: there is one at a time."""


def as_message(finding: Finding) -> dict[str, object]:
    """A finding as others receive it."""
    said = "|".join([finding.dataset, finding.slice_id or "", finding.message])
    return {
        "id": hashlib.sha256(said.encode()).hexdigest()[:16],
        "dataset": finding.dataset,
        "slice": finding.slice_id,
        "severity": finding.severity,
        "message": finding.message,
        "cure": finding.cure,
        "found_at": None if finding.found_at is None else finding.found_at.astimezone(UTC).isoformat(),
    }


@dataclass(frozen=True, slots=True)
class FileNotifier:
    """Appends each finding as a line of JSON; a relative path begins at the project's folder."""

    path: str
    folder: Path | None = field(default=None, repr=False, compare=False)
    """The project's, filled in by a run."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigurationError("FileNotifier: the path is empty. Name a file, such as 'notices.jsonl'.")

    @property
    def name(self) -> str:
        return f"file {self.path}"

    def within(self, project: Path) -> FileNotifier:
        """The same, with paths that begin at the project's folder."""
        return replace(self, folder=project)

    def notify(self, finding: Finding) -> None:
        """Append one line, whole: several processes may write to the file."""
        file = (self.folder or Path()) / self.path
        line = json.dumps(as_message(finding), ensure_ascii=False) + "\n"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(opened, line.encode())
                os.fsync(opened)
            finally:
                os.close(opened)
        except OSError as error:
            raise TargetError(f"{file} cannot be written: {error.strerror}.") from error


@dataclass(frozen=True, slots=True)
class WebhookNotifier:
    """Sends each finding as JSON by HTTP POST. Too many requests, errors of the server and lost connections are tried
    again; any other answer that is no success is an error.
    """

    url: str
    """``https://...``, or a reference such as ``secret://env/HOOK`` where the address itself is a secret."""
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """A secret among them is a reference: ``{"Authorization": "secret://env/HOOK_TOKEN"}``."""
    tries: int = 3
    timeout_seconds: float = 10.0
    folder: Path | None = field(default=None, repr=False, compare=False)
    """The project's, filled in by a run."""
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not is_reference(self.url):
            parsed = urllib.parse.urlsplit(self.url)
            if parsed.scheme not in ("http", "https") or not parsed.hostname:
                raise ConfigurationError("WebhookNotifier: the url is no address such as https://example.com/hooks/1.")
        if self.tries < 1:
            raise ConfigurationError(f"WebhookNotifier: tries is {self.tries}. It must be at least 1.")
        for value in (self.url, *self.headers.values()):
            if is_reference(value):
                Secret(value)

    @property
    def name(self) -> str:
        """The host and a fingerprint: the path of an address may be as good as a password."""
        where = "secret" if is_reference(self.url) else urllib.parse.urlsplit(self.url).hostname
        return f"webhook {where} {hashlib.sha256(self.url.encode()).hexdigest()[:8]}"

    def within(self, project: Path) -> WebhookNotifier:
        """The same, with files of secrets that begin at the project's folder."""
        return replace(self, folder=project)

    def notify(self, finding: Finding) -> None:
        """Deliver one finding, with pauses between the tries."""
        headers = {key: self._reveal(value) for key, value in self.headers.items()}
        caller = Caller(headers, self.tries, self.timeout_seconds, per_second=_ANY_PACE, sleep=self.sleep)
        try:
            caller.post(self._reveal(self.url), json.dumps(as_message(finding)).encode())
        except HttpFailure as failure:
            raise TargetError(f"{self.name} did not take the notification: it {failure.problem}.") from None

    def _reveal(self, text: str) -> str:
        return Secret(text, self.folder).reveal() if is_reference(text) else text
