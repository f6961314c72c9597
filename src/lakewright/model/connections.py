"""Connections: databases and brokers by name, as ``[connections.NAME]`` of the settings declares them.

Guarantee:
    A connection never holds a password, only a reference to one: an address with a password in it is refused. One
    that names a service of this project (``service = "postgres"``) is looked up when it is asked for, because the
    port is known only while the service runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, urlsplit

from lakewright.errors import ConfigurationError, UnknownNameError, did_you_mean
from lakewright.model.secrets import Secret, is_reference

__all__ = ["SERVICES", "Connection", "ConnectionKind", "Connections", "ServiceConnection"]

ConnectionKind = Literal["postgresql", "kafka", "debezium"]
SERVICES: Mapping[str, ConnectionKind] = {"postgres": "postgresql", "kafka": "kafka", "debezium": "debezium"}
"""What `lakewright services up` starts -> the kind of connection that it makes."""

_SCHEMES: Mapping[str, ConnectionKind] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "kafka": "kafka",
    "debezium": "debezium",
    "debezium+https": "debezium",
}
_ADDRESSES = (
    "Write it as postgresql://USER@HOST:5432/DATABASE, as kafka://HOST:9092,HOST:9092, or, for the Kafka Connect "
    "worker that runs Debezium, as debezium://HOST:8083."
)
_SECRET_OPTION = re.compile(r"(password|passphrase|secret|token)$|jaas", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach one database or broker.

    >>> Connection("blog_db", "postgresql://blog@db.example.com:5432/blog").kind
    'postgresql'
    """

    name: str
    url: str
    password: Secret | None = None
    options: Mapping[str, str | Secret] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_url(self.name, self.url)
        if self.password is not None and self.kind == "kafka":
            raise ConfigurationError(
                f"The connection '{self.name}' gives a password, which a Kafka client takes as one of its options.",
                hint=f'Write options = {{ "sasl.password" = "{self.password}" }}, with the mechanism beside it.',
            )
        if self.password is not None and self.kind == "debezium":
            raise ConfigurationError(
                f"The connection '{self.name}' gives a password, which a Kafka Connect worker does not take.",
                hint="The password of a database belongs to the database's own connection.",
            )
        for key, value in self.options.items():
            if isinstance(value, str) and _SECRET_OPTION.search(key):
                raise ConfigurationError(
                    f"The connection '{self.name}' holds a secret as plain text, in the option '{key}'.",
                    hint=f'{_cure(self.name)} and write "{key}" = "secret://env/{_variable(self.name)}".',
                )

    @property
    def kind(self) -> ConnectionKind:
        return _SCHEMES[urlsplit(self.url).scheme]

    def revealed_options(self) -> dict[str, str]:
        """The options with the values of their secrets, for the client that is about to connect."""
        return {key: one.reveal() if isinstance(one, Secret) else one for key, one in self.options.items()}


@dataclass(frozen=True, slots=True)
class ServiceConnection:
    """A connection to a service of this project, before it is looked up."""

    name: str
    service: str

    def __post_init__(self) -> None:
        if self.service not in SERVICES:
            raise UnknownNameError(f"service (in the connection '{self.name}')", self.service, SERVICES)

    @property
    def kind(self) -> ConnectionKind:
        return SERVICES[self.service]


@dataclass(frozen=True)
class Connections:
    """The connections of a target, by name."""

    declared: Mapping[str, Connection | ServiceConnection] = field(default_factory=dict)
    resolve: Callable[[ServiceConnection], Connection] | None = field(default=None, repr=False, compare=False)
    """Finds a running service of the project; the runtime knows how."""

    def get(self, name: str, *, kind: str, asked_by: str) -> Connection:
        """The connection that ``asked_by`` wants; an error says what is declared, or what to start."""
        if name not in self.declared:
            unknown = UnknownNameError(f"connection (wanted by {asked_by})", name, self.declared)
            unknown.hint = unknown.hint or f"Declare it in lakewright.toml, as [connections.{name}] with a url."
            raise unknown
        found = self.declared[name]
        if found.kind != kind:
            raise ConfigurationError(
                f"{asked_by} needs a connection of the kind {kind}, and '{name}' is of the kind {found.kind}.",
                hint=_fitting([one.name for one in self.declared.values() if one.kind == kind], kind),
            )
        if isinstance(found, Connection):
            return found
        if self.resolve is None:
            raise ConfigurationError(
                f"The connection '{name}', wanted by {asked_by}, names the service {found.service}, and there is no "
                "project here whose services could be asked.",
                hint="Give a url instead.",
            )
        return self.resolve(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)

    def __contains__(self, name: object) -> bool:
        return name in self.declared


def _check_url(name: str, url: str) -> None:
    what = f"The url of the connection '{name}'"
    if is_reference(url):
        raise ConfigurationError(
            f"{what} is a reference to a secret; only its password may be one.",
            hint=f'{_ADDRESSES} Put the password beside it: password = "secret://env/{_variable(name)}".',
        )
    try:
        parts = urlsplit(url)
        inside = parts.password is not None or any(_SECRET_OPTION.search(key) for key, _ in parse_qsl(parts.query))
        # A password with / ? or # in it ends the host early: the @ that follows it stands in the rest.
        inside |= "@" not in parts.netloc and "@" in f"{parts.path}{parts.query}{parts.fragment}"
    except ValueError:
        raise ConfigurationError(f"{what} cannot be read.", hint=_ADDRESSES) from None
    if inside:
        raise ConfigurationError(
            f"{what} holds a password, which would stand in the file for everybody to read.",
            hint=f'{_cure(name)}, take it out of the url, and write password = "secret://env/{_variable(name)}".',
        )
    if parts.scheme not in _SCHEMES:
        shown = parts.scheme or url.partition(":")[0]
        near = did_you_mean(shown.removeprefix("jdbc:"), _SCHEMES)
        raise ConfigurationError(
            f"{what} begins with '{shown}:', which is no kind of connection.",
            hint=_ADDRESSES if near is None else f"{near} {_ADDRESSES}",
        )
    if not parts.netloc.rpartition("@")[2]:
        raise ConfigurationError(f"{what} names no host.", hint=_ADDRESSES)
    if _SCHEMES[parts.scheme] != "kafka" and not _has_one_port(parts):
        # Not shown: it may be a password that was written without its user.
        raise ConfigurationError(
            f"{what} has something behind the host that is no port. It is one host, and one number up to 65535.",
            hint=_ADDRESSES,
        )
    if _SCHEMES[parts.scheme] == "kafka" and "@" in parts.netloc:
        raise ConfigurationError(
            f"{what} names a user, which a Kafka client takes as one of its options.",
            hint='Write options = { "sasl.username" = "...", "sasl.password" = "secret://env/..." }.',
        )
    if _SCHEMES[parts.scheme] == "debezium" and "@" in parts.netloc:
        raise ConfigurationError(f"{what} names a user, which a Kafka Connect worker does not take.", hint=_ADDRESSES)


def _has_one_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or "," not in parts.netloc
    except ValueError:
        return False


def _fitting(names: list[str], kind: str) -> str:
    return f"Of the kind {kind}: {', '.join(names)}." if names else f"No connection of the kind {kind} is declared."


def _cure(name: str) -> str:
    return f"Put it into the environment variable {_variable(name)}"


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name).upper() + "_PASSWORD"
