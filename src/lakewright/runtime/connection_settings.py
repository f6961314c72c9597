"""What may stand in ``[connections.NAME]``, and what it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from lakewright.errors import ConfigurationError
from lakewright.model.connections import Connection, Connections, ServiceConnection
from lakewright.model.secrets import Secret, is_reference

__all__ = ["ConnectionTable", "connect_to_service", "connections_of", "flat"]


class ConnectionTable(BaseModel):
    """The keys of ``[connections.NAME]``. Nothing of it is shown in a repr: somebody may have typed a password."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str | None = Field(None, repr=False)
    password: str | None = Field(None, repr=False)
    options: Mapping[str, str] = Field(default_factory=dict, repr=False)
    service: str | None = Field(None, repr=False)

    @field_validator("options", mode="before")
    @classmethod
    def _flatten_options(cls, table: object) -> object:
        """TOML reads an unquoted ``security.protocol = ...`` as nested tables: put the dotted name back."""
        return flat(table) if isinstance(table, Mapping) else table


def connections_of(tables: Mapping[str, ConnectionTable], *, folder: Path, place: str) -> Connections:
    """The connections of the project in ``folder``; ``place`` says where they were read."""
    declared: dict[str, Connection | ServiceConnection] = {}
    for name, table in tables.items():
        try:
            declared[name] = _connection(name, table, folder)
        except ConfigurationError as error:
            raise ConfigurationError(f"{place}: {error.message}", hint=error.hint) from None
    return Connections(declared, partial(connect_to_service, folder / ".lakewright" / "services"))


def _connection(name: str, table: ConnectionTable, folder: Path) -> Connection | ServiceConnection:
    if table.service is not None:
        if others := [key for key in ("url", "password", "options") if getattr(table, key)]:
            raise ConfigurationError(
                f"The connection '{name}' names a service of this project, and gives '{others[0]}' too.",
                hint="A service brings its own address and password: keep 'service' alone, or leave it out.",
            )
        return ServiceConnection(name, table.service)
    if table.url is None:
        raise ConfigurationError(
            f"The connection '{name}' has neither 'url' nor 'service'.",
            hint='Write url = "postgresql://USER@HOST/DATABASE", or service = "postgres" for the one of this project.',
        )
    if table.password is not None and not is_reference(table.password):
        # The same words as for a password inside the url, and a name to use.
        raise ConfigurationError(
            f"The connection '{name}' gives its password as plain text, for everybody to read.",
            hint=f"Put it into an environment variable, such as {name.upper()}_PASSWORD, and write "
            f'password = "secret://env/{name.upper()}_PASSWORD".',
        )
    return Connection(
        name,
        table.url,
        password=None if table.password is None else Secret(table.password, folder),
        options={key: Secret(one, folder) if is_reference(one) else one for key, one in table.options.items()},
    )


def connect_to_service(services: Path, wanted: ServiceConnection) -> Connection:
    """The address of a service that `lakewright services up` has started and that listens now."""
    from lakewright.runtime.services import status  # what starts and watches processes, for those who need it

    [found] = status(services, [wanted.service], ask=False)
    if found.state != "running" or found.address is None:
        stands = {"absent": "was never started here", "not ready": "does not answer yet"}
        raise ConfigurationError(
            f"The connection '{wanted.name}' is the {found.title} of this project, which "
            f"{stands.get(found.state, f'has {found.state}' if found.state == 'died' else 'is stopped')}.",
            hint=f"Start it: lakewright services up {wanted.service}",
        )
    if wanted.kind == "kafka":
        return Connection(wanted.name, f"kafka://{found.address.url}")
    if wanted.kind == "debezium":
        address, folder = found.address.url.partition("://")[2], str(found.data / "passwords")
        return Connection(wanted.name, f"debezium://{address}", options={"password_folder": folder})
    file = found.address.password_file
    password = None if file is None else Secret(f"secret://file/{file.absolute()}")
    return Connection(wanted.name, found.address.url.partition("?")[0], password=password)


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables as one, with dotted names and text values.

    >>> flat({"sasl": {"mechanism": "PLAIN"}, "check.crcs": True})
    {'sasl.mechanism': 'PLAIN', 'check.crcs': 'true'}
    """
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
