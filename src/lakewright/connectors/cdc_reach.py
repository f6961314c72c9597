"""Whom a capture has to do with: the database, the broker and the Kafka Connect worker, found by their connections."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from lakewright.connectors.cdc_preflight import Problem
from lakewright.connectors.cdc_rest import ConnectWorker
from lakewright.connectors.cdc_settings import CONNECTOR
from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.postgres_connection import Session, connecting
from lakewright.errors import ConfigurationError, LakewrightError, TargetError
from lakewright.model.connections import Connection, ConnectionKind, Connections

__all__ = ["Reach"]

_BROKER_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Reach:
    """The connections of one capture; nobody is asked before a method is called."""

    who: str
    """For errors: the dataset."""
    connections: Connections
    database_name: str
    broker_name: str | None = None
    """None: the only one of its kind."""
    worker_name: str | None = None

    def database(self) -> Connection:
        return self.connections.get(self.database_name, kind="postgresql", asked_by=self.who)

    def asking(self) -> AbstractContextManager[Session]:
        """A session of the database for some questions."""
        return connecting(self.database(), what=self.who, reading=True)

    def worker(self) -> ConnectWorker:
        name = self._named(self.worker_name, "debezium")
        return ConnectWorker.at(self.connections.get(name, kind="debezium", asked_by=self.who), asked_by=self.who)

    def broker(self) -> str:
        """The name of the broker's connection."""
        return self._named(self.broker_name, "kafka")

    def broker_problems(self) -> tuple[str | None, list[Problem]]:
        """The id of the broker's cluster, or why it cannot be asked."""
        try:
            name = self._named(self.broker_name, "kafka")
            client = KafkaClient.connect(self.connections, name, asked_by=self.who)
        except LakewrightError as error:
            return None, [self.problem("broker", error)]
        from confluent_kafka import KafkaException

        try:
            return client.cluster_id(timeout_seconds=_BROKER_SECONDS), []
        except KafkaException as error:
            explained = client.explain("", "")(error) or TargetError(str(error))
            explained.__cause__ = explained.__cause__ or error
            return None, [self.problem("broker", explained)]

    def worker_problems(self, cluster: str | None, *, needs_folder: bool) -> tuple[ConnectWorker | None, list[Problem]]:
        """The worker, or why it cannot be asked; and what it lacks."""
        try:
            worker = self.worker()
            theirs, plugins = worker.cluster(), worker.plugins()
        except LakewrightError as error:
            return None, [self.problem("Kafka Connect worker", error)]
        lacks: list[tuple[str, str]] = []
        if CONNECTOR not in plugins:
            cure = "Put debezium-connector-postgres into its plugin.path, and restart it."
            lacks.append((f"has no {CONNECTOR}.", cure))
        if cluster is not None and theirs not in (None, cluster):
            cure = "Name the broker that it writes to: broker='...'."
            lacks.append(("writes to another Kafka cluster than the connection that is to be read.", cure))
        if needs_folder and worker.password_folder is None:
            cure = "Say where it finds the password itself: password_reference='${env:VARIABLE}'."
            lacks.append(("shares no folder for passwords with this project.", cure))
        return worker, [Problem("Kafka Connect worker", f"at {worker.url} {what}", cure) for what, cure in lacks]

    def problem(self, name: str, error: LakewrightError) -> Problem:
        """An error as one of several things that are missing; who asks is said once for all."""
        return Problem(name, error.message.removeprefix(f"{self.who}: "), error.hint or "", error)

    def _named(self, name: str | None, kind: ConnectionKind) -> str:
        """The connection that was named, or the only one of its kind."""
        if name is not None:
            return name
        fitting = [one.name for one in self.connections.declared.values() if one.kind == kind]
        if len(fitting) == 1:
            return fitting[0]
        what = f"{self.who}: change data capture needs a connection of the kind {kind}, and"
        if fitting:
            option = "broker" if kind == "kafka" else "worker"
            raise ConfigurationError(
                f"{what} several are declared: {', '.join(fitting)}.", hint=f"Name one: {option}='...'."
            )
        raise ConfigurationError(
            f"{what} none is declared.",
            hint=f'Declare it in lakewright.toml, as [connections.{kind}] with service = "{kind}", or with a url.',
        )
