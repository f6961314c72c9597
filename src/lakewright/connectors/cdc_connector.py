"""Change Data Capture: every change of some tables of PostgreSQL, deletes included, as messages in Kafka by Debezium.

Problem:
    To query a table again and again sees changes late, misses what changed twice in between, and never sees a row
    that was deleted.
Guarantee:
    Each committed insert, update and delete of the tables is in the table's topic exactly once, in order per key, from
    the snapshot on (``snapshot=True``: each row that was there before, once) or from the registration on. Whatever is
    missing for it is told by name before anything is started. To register twice is to register once. The database's
    password is in no setting, topic, answer or log of the worker.
Consequences:
    - The replication slot holds back the database's log while nobody reads it: watch ``slot().lag_bytes``, and
      ``decommission()`` what is no longer wanted.
    - A snapshot that is interrupted begins again, and some of its rows come twice: apply them by key.
    - With ``snapshot=False`` the rows that nobody changes since are never seen: load them by other means.
    - Updates of a table with the default REPLICA IDENTITY carry the old values of the key alone, and leave out large
      values that they did not touch (`unwrap_changes` names them).
    - A TRUNCATE comes as one message of its own; it names no rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from lakewright.connectors.cdc_feed import CaptureFeed
from lakewright.connectors.cdc_names import CaptureNames, check_prefix, check_slot_name, derived_name, qualified
from lakewright.connectors.cdc_reach import Reach
from lakewright.connectors.cdc_settings import PLACEHOLDER, CaptureOptions, refuse_ours
from lakewright.connectors.cdc_source import CapturedTable
from lakewright.errors import ConfigurationError, did_you_mean
from lakewright.model.connections import Connections

__all__ = ["ChangeDataCapture"]

_REFERENCE = re.compile(r"\$\{[^}:]+:[^}]+\}")


@dataclass(frozen=True, slots=True)
class ChangeDataCapture:
    """Which tables of which database: ``ChangeDataCapture("blog_db", ["public.visits"])``."""

    connection: str
    """A connection of the kind postgresql."""
    tables: Sequence[str]
    """With their schema; ``public`` where none is given. Each gets a topic of its own."""
    _: KW_ONLY
    snapshot: bool = True
    """Whether the rows that are there already come first; without, only what changes from the registration on."""
    broker: str | None = None
    """The connection of the kind kafka; needed where there are several."""
    worker: str | None = None
    """The connection of the kind debezium; needed where there are several."""
    topic_prefix: str | None = None
    """How the topics begin: ``PREFIX.SCHEMA.TABLE``. By itself, like slot and publication: ``lw_PROJECT_DATASET``."""
    slot: str | None = None
    publication: str | None = None
    heartbeat_seconds: int = 5
    """How often the position is confirmed while these tables rest and others change."""
    partitions: int = 1
    """Of each topic that is made. Changes of one key are in one of them."""
    password_reference: str | None = None
    """Where a worker that is not this project's finds the password: ``${env:BLOG_DB_PASSWORD}``."""
    registers: bool = True
    """Whether the connector is registered here; without, somebody else fills the topics that ``topic_prefix`` names."""
    name: str | None = None
    """What connector, slot, publication and topics are called, where several datasets share the capture."""
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """More settings of Debezium's connector, such as ``snapshot.fetch.size``."""

    def __post_init__(self) -> None:
        if not self.connection:
            raise ConfigurationError("ChangeDataCapture: the connection is empty.")
        object.__setattr__(self, "tables", qualified(self.tables))
        for option in ("slot", "publication"):
            check_slot_name(option, getattr(self, option))
        check_prefix(self.topic_prefix)
        for option in ("heartbeat_seconds", "partitions"):
            if getattr(self, option) < 1:
                raise ConfigurationError(f"ChangeDataCapture: {option} is {getattr(self, option)}. At least 1.")
        if self.password_reference is not None and not _REFERENCE.fullmatch(self.password_reference):
            # Not shown: it is most likely the password itself.
            raise ConfigurationError(
                "ChangeDataCapture: password_reference is no reference of Kafka Connect.",
                hint="Write it as ${env:VARIABLE} or ${file:PATH:KEY}, as the worker's config.providers allow.",
            )
        refuse_ours(self.options)
        if not self.registers and self.topic_prefix is None:
            raise ConfigurationError(
                "ChangeDataCapture: with registers=False somebody else fills the topics, and nothing tells which.",
                hint='Say how they begin: topic_prefix="dbserver1", for dbserver1.public.visits.',
            )

    def of(
        self, table: str, *, full_before: bool = False, placeholder: str = PLACEHOLDER, millis: Sequence[str] = ()
    ) -> CapturedTable:
        """One of its tables as the source of a dataset: ``capture.of("visits")``.

        ``full_before``: the table has REPLICA IDENTITY FULL, so that a deleted row is known in all its columns.

        Of a connector that somebody else has set up: ``placeholder`` is what stands for a value that was not sent
        (Debezium's own: ``__debezium_unavailable_value``), ``millis`` the columns whose times come in milliseconds.
        """
        (found,) = qualified([table])
        if found not in self.tables:
            known = ", ".join(self.tables)
            raise ConfigurationError(
                f"ChangeDataCapture: '{found}' is none of its tables ({known}).",
                hint=did_you_mean(found, self.tables),
            )
        if len(self.tables) > 1 and self.name is None and self.registers:
            raise ConfigurationError(
                f"ChangeDataCapture: {', '.join(self.tables)} share a capture, which needs a name of its own.",
                hint='Give it one: ChangeDataCapture(..., name="blog"); or let each table have its own capture.',
            )
        return CapturedTable(self, found, full_before, placeholder, tuple(millis))

    def names(self, project: str, dataset: str) -> CaptureNames:
        """What the capture of a dataset is called at the worker, in the database and in Kafka."""
        name = derived_name(project, self.name or dataset)
        return CaptureNames(name, self.slot or name, self.publication or name, self.topic_prefix or name)

    def feed(self, connections: Connections, *, project: str, dataset: str) -> CaptureFeed:
        """The capture of one dataset; asks nobody yet."""
        chosen = CaptureOptions(
            tables=tuple(self.tables),
            snapshot=self.snapshot,
            heartbeat_seconds=self.heartbeat_seconds,
            partitions=self.partitions,
            password_reference=self.password_reference,
            more=self.options,
        )
        reach = Reach(dataset, connections, self.connection, self.broker, self.worker)
        return CaptureFeed(dataset, self.names(project, dataset), chosen, reach)
