"""Kafka, one broker that is its own controller (KRaft), from jars that Ivy fetches.

Guarantee:
    It listens on the loopback interface only. The data folder appears by one rename when it is formatted, and
    carries the cluster's id: data of another cluster or format, or that a newer broker ran on, is refused and left as
    it is.

The client is ``confluent-kafka``: it has wheels for every platform of ours and, unlike ``kafka-python``, the
transactional producer of the reference C library, which the Kafka connector's writer needs too.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lakewright.runtime.jars import JarSet, Progress, ensure_jars, jar_folder, packages
from lakewright.runtime.java import find_java
from lakewright.runtime.services import processes
from lakewright.runtime.services.accounts import MYSELF
from lakewright.runtime.services.contract import Address, NotReadyError, failed_command, foreign_data
from lakewright.runtime.services.ports import HOST, accepts
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.state import Place, State

__all__ = ["KAFKA_JARS", "KafkaService"]

KAFKA_JARS = JarSet(Path(__file__).with_name("kafka-jars.ivy.xml"), "a Kafka broker needs")
NODE = 1
# A small heap and the quick compiler: up in about 4 s, 150 MB resident.
JVM = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
LOGGER = "-Dorg.slf4j.simpleLogger."
LOGGING = (
    f"{LOGGER}showDateTime=true",
    f"{LOGGER}dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    f"{LOGGER}log.kafka.server.KafkaConfig=warn",  # or each start writes out all 300 settings
    f"{LOGGER}log.org.apache.kafka.common.config.AbstractConfig=warn",
)
PROPERTIES = """\
# Written by lakewright at every start.
process.roles=broker,controller
node.id={node}
controller.quorum.voters={node}@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.partitions=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
# What a compacted topic may drop goes while one looks, not some 15 s later.
log.cleaner.backoff.ms=1000
# A killed broker may come back when its session has run out: 6 s instead of 14 s.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=1000
"""


@dataclass(frozen=True, slots=True)
class KafkaService:
    """The Kafka of a project."""

    name: str = "kafka"
    title: str = "Kafka"
    port_names: tuple[str, ...] = ("port", "controller")
    timeout_seconds: float = 90  # replaying a log after a kill, on a machine that is busy

    @property
    def packages(self) -> Mapping[str, str]:
        return {"confluent_kafka": "kafka"}

    def require(self, say: Progress) -> None:
        find_java()
        ensure_jars(say, KAFKA_JARS)

    def prepare(self, place: Place, state: State, say: Progress, held: int) -> State:
        if place.data.exists():
            return replace(state, cluster_id=_refuse_foreign(place, state))
        cluster_id = _short(uuid.uuid4())
        _format(place, state, cluster_id, held)
        return replace(state, cluster_id=cluster_id)

    def clear(self, place: Place) -> None:
        for process in processes.working_in(place.folder, "java"):
            processes.end(process, signal.SIGTERM, 20)

    def start(self, place: Place, state: State, held: int) -> Process:
        command = [*_java(place), "kafka.Kafka", _write_properties(place, state, place.folder / "data")]
        return processes.spawn(
            command,
            folder=place.folder,
            log=place.log,
            account=MYSELF,
            environ=_environment(place),
            inherit=[held],
        )

    def ask(self, place: Place, state: State) -> str:
        port = state.ports["port"]
        if not accepts(port):  # a client would wait, and talk about it
            raise NotReadyError(f"nobody listens on port {port}")
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0, "socket.timeout.ms": 5000})
        try:
            found = client.list_topics(timeout=5)
        except KafkaException as error:
            raise NotReadyError(str(error)) from error
        if found.cluster_id != state.cluster_id:
            raise NotReadyError(f"another Kafka (cluster {found.cluster_id}) answers on port {port}")
        if NODE not in found.brokers:
            raise NotReadyError("the broker is not registered yet")
        return _version()

    def stop(self, place: Place, process: Process) -> None:
        processes.end(process, signal.SIGTERM, 30)

    def address(self, place: Place, state: State) -> Address:
        servers = f"{HOST}:{state.ports['port']}"
        return Address(url=servers, shown=servers)


def _version() -> str:
    return packages(KAFKA_JARS)[0].rpartition(":")[2]


def _java(place: Place) -> list[str | Path]:
    crash_report = f"-XX:ErrorFile={place.folder}/jvm-crash-%p.log"
    return [find_java().command, *JVM, crash_report, *LOGGING, "-cp", f"{jar_folder(KAFKA_JARS)}/*"]


def _format(place: Place, state: State, cluster_id: str, held: int) -> None:
    """Format a folder beside the final place, and move it there when it is complete."""
    fresh = place.folder / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)  # of a start that was killed
    properties = _write_properties(place, state, fresh)
    since = place.log_size()
    with place.log.open("ab") as record:
        done = subprocess.run(
            [*_java(place), "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", properties],
            cwd=place.folder,
            env=_environment(place),
            stdin=subprocess.DEVNULL,
            stdout=record,
            stderr=subprocess.STDOUT,
            pass_fds=[held],
            check=False,
        )
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise failed_command("Kafka could not format its data folder; nothing was left behind", place, since)
    fresh.rename(place.folder / "data")


def _refuse_foreign(place: Place, state: State) -> str:
    """The id of the cluster that the data belongs to, if it is one that we can run."""
    try:
        lines = (place.data / "meta.properties").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise foreign_data("Kafka", place.data, "it is not a Kafka data folder", "kafka") from None
    found = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    cluster_id = found.get("cluster.id", "")
    if found.get("version") != "1":
        why = f"its format is version {found.get('version', 'unknown')}, and this release reads version 1"
        raise foreign_data("Kafka", place.data, why, "kafka")
    if state.cluster_id not in (None, cluster_id) or found.get("node.id") != str(NODE):
        why = f"it belongs to another cluster ({cluster_id or 'unknown'}, node {found.get('node.id', 'unknown')})"
        raise foreign_data("Kafka", place.data, why, "kafka")
    if _release(state.version or "") > _release(_version()):
        why = f"Kafka {state.version} ran on it last, and this release of Lakewright brings {_version()}"
        raise foreign_data("Kafka", place.data, why, "kafka")
    return cluster_id


def _release(version: str) -> tuple[int, ...]:
    """What the format of the data depends on.

    >>> _release("4.1.1")
    (4, 1)
    """
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _write_properties(place: Place, state: State, data: Path) -> Path:
    file = place.folder / "server.properties"
    # By its name in the folder where Kafka runs: a whole path would end at a comma, and is read as Latin-1.
    file.write_text(PROPERTIES.format(node=NODE, host=HOST, data=data.name, **state.ports), encoding="ascii")
    return file


def _short(cluster: uuid.UUID) -> str:
    """Kafka's way to write a UUID; one that begins with a dash it would take for an option.

    >>> _short(uuid.UUID("08b145b6-d329-4523-ad5e-e3a81710c1e5"))
    'CLFFttMpRSOtXuOoFxDB5Q'
    """
    text = base64.urlsafe_b64encode(cluster.bytes).decode().rstrip("=")
    return text if not text.startswith("-") else _short(uuid.uuid4())


def _environment(place: Place) -> dict[str, str]:
    return {"PATH": os.defpath, "HOME": str(place.folder), "LC_ALL": "C.UTF-8"}
