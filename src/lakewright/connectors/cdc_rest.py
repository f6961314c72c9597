"""A Kafka Connect worker over its REST interface: what it can run, what it runs, and how that stands.

Guarantee:
    A worker that is busy with sharing out its work (409) is asked again for a while. One that does not answer, and
    what it refuses, comes out in words; a request holds no password, only the place where the worker finds it.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from lakewright.errors import ConfigurationError, TargetError
from lakewright.model.connections import Connection

__all__ = ["ConnectWorker", "RefusedError"]

_SECONDS = 60.0
"""How long one request may take, and how long a busy worker is asked again."""
_PAUSE_SECONDS = 0.2
_NOT_YET = (HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE)


class RefusedError(TargetError):
    """The worker understood and said no; ``text`` is what it said."""

    def __init__(self, message: str, *, code: int, text: str) -> None:
        super().__init__(message)
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class ConnectWorker:
    """A worker, and who asks."""

    who: str
    """For errors: the dataset."""
    url: str
    password_folder: Path | None = None
    """Where it finds passwords, by Kafka's DirectoryConfigProvider under the name ``dir``."""

    @classmethod
    def at(cls, connection: Connection, *, asked_by: str) -> ConnectWorker:
        """The worker of a connection; nothing is asked yet."""
        parts = urlsplit(connection.url)
        scheme = "https" if parts.scheme.endswith("+https") else "http"
        if unknown := sorted(set(connection.options) - {"password_folder"}):
            raise ConfigurationError(
                f"{asked_by}: the connection '{connection.name}' has the option '{unknown[0]}', which is not known.",
                hint="A Kafka Connect worker has one: password_folder.",
            )
        folder = connection.revealed_options().get("password_folder")
        return cls(asked_by, f"{scheme}://{parts.netloc}", None if folder is None else Path(folder))

    def cluster(self) -> str | None:
        """The id of the Kafka cluster that it works for."""
        found = self._ask("GET", "/")
        if not isinstance(found, dict) or "kafka_cluster_id" not in found:
            raise TargetError(
                f"{self.who}: what answers at {self.url} is no Kafka Connect worker.",
                hint="Correct the connection's url: it is the worker's REST interface.",
            )
        return None if found["kafka_cluster_id"] is None else str(found["kafka_cluster_id"])

    def plugins(self) -> dict[str, str]:
        """The connectors that it can run: class -> version."""
        return {one["class"]: one.get("version") or "unknown" for one in self._ask("GET", "/connector-plugins")}

    def config(self, name: str) -> dict[str, str] | None:
        """The settings of a connector as they were given; None where there is no such connector."""
        found: dict[str, str] | None = self._known("GET", f"{_path(name)}/config")
        return found

    def configure(self, name: str, settings: Mapping[str, str]) -> None:
        """Make a connector, or give it other settings; `RefusedError` where they do not fit."""
        self._ask("PUT", f"{_path(name)}/config", dict(settings))

    def create_stopped(self, name: str, settings: Mapping[str, str]) -> None:
        """Make a connector that does nothing yet; `RefusedError` where its settings do not fit."""
        body = {"name": name, "config": dict(settings), "initial_state": "STOPPED"}
        self._ask("POST", "/connectors", body)

    def status(self, name: str) -> dict[str, Any] | None:
        """The states of a connector and its tasks; None where there is no such connector (or not yet)."""
        found: dict[str, Any] | None = self._known("GET", f"{_path(name)}/status")
        return found

    def resume(self, name: str) -> None:
        self._ask("PUT", f"{_path(name)}/resume")

    def stop(self, name: str) -> bool:
        """Let a connector stop, which ends its tasks soon; False where there is none."""
        return self._known("PUT", f"{_path(name)}/stop", otherwise=False) is not False

    def restart(self, name: str, *, only_failed: bool) -> None:
        """Start a connector and its tasks again."""
        wanted = f"includeTasks=true&onlyFailed={str(only_failed).lower()}"
        self._ask("POST", f"{_path(name)}/restart?{wanted}")

    def offsets(self, name: str) -> list[Any]:
        """The positions that the worker has kept for a connector."""
        return list(self._ask("GET", f"{_path(name)}/offsets").get("offsets", []))

    def forget_offsets(self, name: str) -> None:
        """Forget the positions of a stopped connector, so that it begins anew."""
        self._ask("DELETE", f"{_path(name)}/offsets", again_on=HTTPStatus.BAD_REQUEST)

    def delete(self, name: str) -> None:
        self._known("DELETE", _path(name))

    def _known(self, method: str, path: str, *, otherwise: Any = None) -> Any:
        try:
            return self._ask(method, path)
        except RefusedError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return otherwise
            raise

    def _ask(self, method: str, path: str, body: object = None, *, again_on: int | None = None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        # A proxy could not reach a worker on this machine, and need not know of one in the same network.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                with opener.open(request, timeout=_SECONDS) as answer:
                    text = answer.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                # Tasks of a connector that was just stopped may still be there, which is told as a bad request.
                if (error.code in _NOT_YET or error.code == again_on) and time.monotonic() < deadline:
                    time.sleep(_PAUSE_SECONDS)
                    continue
                said = _words(error)
                message = f"{self.who}: the Kafka Connect worker at {self.url} refuses ({error.code}): {said}"
                raise RefusedError(message, code=error.code, text=said) from None
            except (OSError, ValueError) as error:
                raise TargetError(
                    f"{self.who}: no Kafka Connect worker answers at {self.url} ({_reason(error)}).",
                    hint="Is it running, and is the address right? `lakewright services up debezium` starts the "
                    "project's own.",
                ) from error


def _path(name: str) -> str:
    return f"/connectors/{quote(name, safe='')}"


def _words(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300] or str(error)


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)
