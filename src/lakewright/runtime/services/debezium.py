"""Debezium: a Kafka Connect worker with the connector for PostgreSQL, from jars that Ivy fetches, beside our Kafka.

Guarantee:
    It listens on the loopback interface only, and sends each change exactly once (``exactly.once.source.support``).
    What it knows (connectors, positions) lies in topics of the Kafka beside it, so it can be killed at any time. A
    password is in a file that only its owner may read; Connect's answers, topics and log hold its place alone.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakewright.errors import ConfigurationError
from lakewright.runtime.jars import JarSet, Progress, ensure_jars, jar_folder, packages
from lakewright.runtime.java import find_java
from lakewright.runtime.services import processes
from lakewright.runtime.services.accounts import MYSELF
from lakewright.runtime.services.contract import Address, NotReadyError
from lakewright.runtime.services.ports import HOST, accepts
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.state import Place, State

__all__ = ["DEBEZIUM_JARS", "PASSWORDS", "DebeziumService"]

DEBEZIUM_JARS = JarSet(Path(__file__).with_name("debezium-jars.ivy.xml"), "Debezium needs")
PASSWORDS = "passwords"
"""The folder below the data in which a connector finds the password of its database."""
MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
JVM = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
LOGGING = """\
# Written by lakewright at every start. Connect itself would write out all its settings several times.
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.debezium.name = io.debezium
logger.debezium.level = info
"""
PROPERTIES = """\
# Written by lakewright at every start.
bootstrap.servers={host}:{kafka}
group.id=lakewright-debezium
listeners=http://{host}:{port}
rest.advertised.host.name={host}
rest.advertised.port={port}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=false
value.converter.schemas.enable=false
config.storage.topic=lakewright-debezium-config
offset.storage.topic=lakewright-debezium-offsets
status.storage.topic=lakewright-debezium-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
status.storage.partitions=1
exactly.once.source.support=enabled
plugin.discovery=service_load
plugin.path=data/plugins
config.providers=dir
config.providers.dir.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider
config.providers.dir.param.allowed.paths={passwords}
# There is one worker: nobody is waited for, and one that was killed is forgotten as soon as the broker allows.
scheduled.rebalance.max.delay.ms=0
session.timeout.ms=6000
heartbeat.interval.ms=2000
"""


@dataclass(frozen=True, slots=True)
class DebeziumService:
    """The Debezium of a project; it works for the Kafka of the same folder."""

    name: str = "debezium"
    title: str = "Debezium"
    port_names: tuple[str, ...] = ("port",)
    timeout_seconds: float = 120  # it reads its topics first, on a machine that is busy

    @property
    def packages(self) -> Mapping[str, str]:
        return {"confluent_kafka": "kafka"}

    def require(self, say: Progress) -> None:
        find_java()
        ensure_jars(say, DEBEZIUM_JARS)

    def prepare(self, place: Place, state: State, say: Progress, held: int) -> State:
        for folder in (place.data, place.data / "plugins", place.data / PASSWORDS):
            folder.mkdir(mode=0o700, exist_ok=True)
        return state

    def clear(self, place: Place) -> None:
        for process in processes.working_in(place.folder, "java"):
            self.stop(place, process)

    def start(self, place: Place, state: State, held: int) -> Process:
        kafka = _kafka_beside(place)
        if kafka is None:
            raise ConfigurationError(
                "Debezium has no Kafka to work for. Nothing was started.",
                hint="Start both: lakewright services up kafka debezium",
            )
        if "," in str(place.data):
            raise ConfigurationError(
                f"Debezium cannot work in {place.data}: a comma would end the name of the folder in its settings. "
                "Nothing was started.",
                hint="Move the project to a folder without a comma in its path.",
            )
        log4j = place.folder / "log4j2.properties"
        log4j.write_text(LOGGING, encoding="utf-8")
        options = [f"-Dlog4j2.configurationFile={log4j.as_uri()}", f"-XX:ErrorFile={place.folder}/jvm-crash-%p.log"]
        jars = f"{jar_folder(DEBEZIUM_JARS)}/*"
        return processes.spawn(
            [find_java().command, *JVM, *options, "-cp", jars, MAIN, _write_properties(place, state, kafka)],
            folder=place.folder,
            log=place.log,
            account=MYSELF,
            environ={"PATH": os.defpath, "HOME": str(place.folder), "LC_ALL": "C.UTF-8"},
            inherit=[held],
        )

    def ask(self, place: Place, state: State) -> str:
        port, kafka = state.ports["port"], _kafka_beside(place)
        if not accepts(port):
            raise NotReadyError(f"nobody listens on port {port}")
        _answer(port, "/health")  # fails until connectors can be asked for
        cluster = _answer(port, "/").get("kafka_cluster_id")
        if kafka is None or cluster != kafka.cluster_id:
            raise NotReadyError(f"it works for another Kafka (cluster {cluster})")
        if f"bootstrap.servers={HOST}:{kafka.ports['port']}\n" not in _properties(place).read_text(encoding="utf-8"):
            raise NotReadyError(f"Kafka has moved to port {kafka.ports['port']} since it was started")
        return packages(DEBEZIUM_JARS)[0].rpartition(":")[2]

    def stop(self, place: Place, process: Process) -> None:
        processes.end(process, signal.SIGTERM, 20)  # without its Kafka it would wait for long

    def address(self, place: Place, state: State) -> Address:
        url = f"http://{HOST}:{state.ports['port']}"
        return Address(url=url, shown=url)


def _kafka_beside(place: Place) -> State | None:
    state = Place(place.folder.parent / "kafka").load()
    return state if state is not None and "port" in state.ports else None


def _properties(place: Place) -> Path:
    return place.folder / "worker.properties"


def _write_properties(place: Place, state: State, kafka: State) -> Path:
    file, passwords = _properties(place), _escaped(str(place.data / PASSWORDS))
    ports = {"port": state.ports["port"], "kafka": kafka.ports["port"]}
    file.write_text(PROPERTIES.format(host=HOST, passwords=passwords, **ports), encoding="ascii")
    return file


def _escaped(text: str) -> str:
    r"""A value as Java reads it from properties, which are Latin-1.

    >>> _escaped("/home/jörg\\x")
    '/home/j\\u00f6rg\\\\x'
    """
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join("\\\\" if one == 0x5C else chr(one) if 0x20 <= one < 0x7F else f"\\u{one:04x}" for one in codes)


def _answer(port: int, path: str) -> dict[str, Any]:
    """What the worker tells; asked without a proxy, which could not reach the loopback interface."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{HOST}:{port}{path}", timeout=5) as answer:
            told: dict[str, Any] = json.load(answer)
    except (OSError, ValueError) as error:
        raise NotReadyError(f"its interface does not answer yet: {error}") from error
    return told
