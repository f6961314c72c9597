"""The settings of Debezium's connector for PostgreSQL, and the file in which it finds its password.

Guarantee:
    The settings hold no password: they name a file of the worker's own folder that only its owner may read
    (``${dir:FOLDER:NAME}``, Kafka's DirectoryConfigProvider), or what the declaration says where the worker finds it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakewright.connectors.cdc_names import CaptureNames
from lakewright.connectors.postgres_connection import ConnectionArguments
from lakewright.errors import ConfigurationError, TargetError

__all__ = [
    "CONNECTOR",
    "PLACEHOLDER",
    "CaptureOptions",
    "connector_settings",
    "forget_password",
    "keep_password",
    "refuse_ours",
]

CONNECTOR = "io.debezium.connector.postgresql.PostgresConnector"
PLACEHOLDER = "__lakewright_not_sent_b1e6f0c25a9d4e7f__"
"""What stands for a large value that an UPDATE left alone: PostgreSQL does not log it again. No text of a user's."""
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_SSL = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_FIXED: Mapping[str, str] = {
    "connector.class": CONNECTOR,
    "tasks.max": "1",
    "plugin.name": "pgoutput",
    "exactly.once.support": "required",
    "tombstones.on.delete": "false",
    "skipped.operations": "none",  # a TRUNCATE would be lost without a word
    "decimal.handling.mode": "string",
    "interval.handling.mode": "string",
    "time.precision.mode": "microseconds",  # or the unit would depend on the column's declared precision
    "binary.handling.mode": "bytes",
    "unavailable.value.placeholder": PLACEHOLDER,
    "poll.interval.ms": "100",
    # Some minutes without the database are bridged. By default it would try for ever, and call that running.
    "errors.max.retries": "20",
    "key.converter": _JSON,
    "key.converter.schemas.enable": "false",
    "value.converter": _JSON,
    "value.converter.schemas.enable": "false",
    "topic.creation.default.replication.factor": "-1",  # the broker's own
}
_DECIDED = (
    "database.hostname", "database.port", "database.user", "database.password", "database.dbname", "topic.prefix",
    "slot.name", "publication.name", "publication.autocreate.mode", "table.include.list", "snapshot.mode",
    "heartbeat.interval.ms", "topic.creation.default.partitions",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """What a declaration has chosen; ``ChangeDataCapture`` tells what each means."""

    tables: tuple[str, ...]
    snapshot: bool
    heartbeat_seconds: int
    partitions: int
    password_reference: str | None
    more: Mapping[str, str] = field(hash=False)


def refuse_ours(options: Mapping[str, str]) -> None:
    """Refuse an option that decides what this module decides."""
    for name in options:
        if name in _FIXED or name in _DECIDED or "password" in name:
            raise ConfigurationError(
                f"ChangeDataCapture: '{name}' cannot be set here: the capture decides it.",
                hint="Its own options and the connection's say what can be chosen.",
            )


def connector_settings(
    arguments: ConnectionArguments,
    names: CaptureNames,
    options: CaptureOptions,
    *,
    password: str | None,
    publication_is_ready: bool,
) -> dict[str, str]:
    """All settings of the connector; ``password`` is where the worker finds it."""
    values: Mapping[str, Any] = arguments.values
    found = {
        **_FIXED,
        "database.hostname": values["host"],
        "database.port": values["port"],
        "database.dbname": values["dbname"],
        **({"database.user": values["user"]} if "user" in values else {}),
        **({"database.password": password} if password is not None else {}),
        **{f"database.{name}": values[name] for name in _SSL if name in values},
        "topic.prefix": names.topic_prefix,
        "slot.name": names.slot,
        "publication.name": names.publication,
        "publication.autocreate.mode": "disabled" if publication_is_ready else "filtered",
        "table.include.list": ",".join(re.escape(table) for table in options.tables),
        "snapshot.mode": "initial" if options.snapshot else "no_data",
        "heartbeat.interval.ms": str(options.heartbeat_seconds * 1000),
        "topic.creation.default.partitions": str(options.partitions),
        **options.more,
    }
    return {name: str(value) for name, value in found.items()}


def keep_password(folder: Path, name: str, password: str) -> tuple[str, bool]:
    """Put a password where the worker reads it: the reference for its settings, and whether it is another one now."""
    file = folder / name
    try:
        if file.exists() and file.read_text(encoding="utf-8") == password:
            return _reference(folder, name), False
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = folder / f".{name}.part"
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as target:
            target.write(password)
        part.replace(file)
    except OSError as error:
        raise TargetError(
            f"The folder for the passwords of the Kafka Connect worker, {folder}, cannot be used: {error.strerror}.",
            hint="Correct password_folder in the connection's options, or its rights.",
        ) from error
    return _reference(folder, name), True


def forget_password(folder: Path, name: str) -> None:
    """Take the password of a connector away."""
    (folder / name).unlink(missing_ok=True)


def _reference(folder: Path, name: str) -> str:
    return f"${{dir:{folder}:{name}}}"
