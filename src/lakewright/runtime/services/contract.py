"""Service: what PostgreSQL, Kafka and the others have in common, so that one piece of code starts and stops all."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from lakewright.errors import ConfigurationError, TargetError
from lakewright.runtime.jars import Progress
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.state import Place, State

__all__ = ["Address", "Condition", "NotReadyError", "Service", "ServiceStatus", "require_packages"]

Condition = Literal["running", "not ready", "died", "stopped", "absent"]


class NotReadyError(Exception):
    """The service does not answer yet; the text says what came instead."""


@dataclass(frozen=True, slots=True)
class Address:
    """How a client reaches a service. Nothing in it is secret but what ``password_file`` holds."""

    url: str
    """PostgreSQL: a URL that names the password file. Kafka: the value of ``bootstrap.servers``. Debezium: its REST."""
    shown: str
    """The same for people."""
    jdbc_url: str | None = None
    user: str | None = None
    password_file: Path | None = None


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How one service stands."""

    name: str
    title: str
    state: Condition
    version: str | None
    port: int | None
    pid: int | None
    address: Address | None
    data: Path
    log: Path
    note: str | None = None


class Service(Protocol):
    """One kind of service. Its methods are called in this order, with the services' lock held."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def port_names(self) -> tuple[str, ...]:
        """The ports that it listens on; the first is the clients'."""

    @property
    def timeout_seconds(self) -> float:
        """How long a start may take."""

    @property
    def packages(self) -> Mapping[str, str]:
        """The packages that it needs, each with our extra that installs it."""

    def require(self, say: Progress) -> None:
        """Refuse, before anything is started, where something is missing on this machine; fetch what can be fetched."""

    def prepare(self, place: Place, state: State, say: Progress, held: int) -> State:
        """Make the data folder where there is none, and refuse one that this release cannot run on.

        From here on nobody else works on the data: a program that makes it inherits the handle of `Place.hold`.
        """

    def clear(self, place: Place) -> None:
        """End what is seen to work on the data without being known, such as the children of a server that was killed.

        It leaves the data alone: whether anybody out of sight works on it only `Place.hold` tells.
        """

    def start(self, place: Place, state: State, held: int) -> Process:
        """Start the server, which inherits the handle of `Place.hold`; returns at once."""

    def ask(self, place: Place, state: State) -> str:
        """A real request to the server: its version, or `NotReadyError`."""

    def stop(self, place: Place, process: Process) -> None:
        """Stop the server cleanly, and wait for its end."""

    def address(self, place: Place, state: State) -> Address: ...


def require_packages(services: Iterable[Service]) -> None:
    """Refuse where an extra is not installed, with the one command that installs all that are missing."""
    missing: dict[str, str] = {}
    for service in services:
        missing |= {name: extra for name, extra in service.packages.items() if not importlib.util.find_spec(name)}
    if missing:
        raise ConfigurationError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed. Nothing was started.",
            hint=f"Run: pip install 'lakewright[{','.join(dict.fromkeys(missing.values()))}]'",
        )


def foreign_data(title: str, data: Path, why: str, name: str) -> ConfigurationError:
    """The data folder cannot be used, and is left as it is."""
    return ConfigurationError(
        f"{title} cannot use the data in {data}: {why}. Nothing was started or changed.",
        hint=f"Move that folder away to keep it, or delete it with: lakewright services down {name} --delete",
    )


def failed_command(what: str, place: Place, since: int) -> TargetError:
    """A program of ours ended with an error; what it said is in the log."""
    return TargetError(f"{what}. The end of {place.log}:\n{_indented(place.log_tail(since))}", hint=_cure(place, since))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines()) or "  (nothing)"


def had_no_room(place: Place, since: int = 0) -> bool:
    """Whether the end of a service's log tells of a full disk."""
    text = place.log_tail(since, lines=200).lower()
    return "no space left" in text or "file too large" in text or "quota exceeded" in text


def _cure(place: Place, since: int) -> str:
    text = place.log_tail(since, lines=200).lower()
    if had_no_room(place, since):
        return f"There is no room to write in {place.data}: free some space on its disk, then repeat the command."
    if "address already in use" in text:
        return "Somebody took the port a moment ago: repeat the command."
    return "Repeat the command; if it fails again, the whole log tells more."
