"""A small Spark standalone cluster on this machine: a master and two workers, from the installed PySpark.

Guarantee:
    All listen on the loopback interface only; a worker is ready when the master lists it as alive. What tasks leave
    lies in the folder of their worker.
"""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakewright.errors import ConfigurationError
from lakewright.runtime.services import spark_processes
from lakewright.runtime.services.contract import Address, NotReadyError
from lakewright.runtime.services.ports import HOST, accepts
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.spark_processes import SparkService
from lakewright.runtime.services.state import Place, State

__all__ = ["MASTER", "WORKERS", "StandaloneMaster", "StandaloneWorker"]

MASTER = "spark-master"
WORKERS = ("spark-worker-1", "spark-worker-2")
WORKER_CORES, WORKER_MEMORY = 1, "1g"
_SMALL = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
_DEPLOY = "org.apache.spark.deploy"


@dataclass(frozen=True, slots=True)
class StandaloneMaster(SparkService):
    """The master, to which a target connects."""

    name: str = MASTER
    title: str = "Spark master"
    port_names: tuple[str, ...] = ("port", "pages")
    timeout_seconds: float = 60

    def start(self, place: Place, state: State, held: int) -> Process:
        ports = ["--host", HOST, "--port", str(state.ports["port"]), "--webui-port", str(state.ports["pages"])]
        command: list[str | Path] = [spark_processes.program("spark-class"), f"{_DEPLOY}.master.Master", *ports]
        return spark_processes.start(place, command, held, _SMALL)

    def ask(self, place: Place, state: State) -> str:
        if not accepts(state.ports["port"]):
            raise NotReadyError(f"nobody listens on port {state.ports['port']}")
        _asked(state)
        return _version()

    def address(self, place: Place, state: State) -> Address:
        url = f"spark://{HOST}:{state.ports['port']}"
        return Address(url=url, shown=url)


@dataclass(frozen=True, slots=True)
class StandaloneWorker(SparkService):
    """One worker of the master beside it, with one core and a gigabyte."""

    name: str
    port_names: tuple[str, ...] = ("port", "pages")
    timeout_seconds: float = 90

    @property
    def title(self) -> str:
        return f"Spark worker {self.name.rpartition('-')[2]}"

    def start(self, place: Place, state: State, held: int) -> Process:
        master = _started_beside(place)
        options = ["--host", HOST, "--port", str(state.ports["port"]), "--webui-port", str(state.ports["pages"])]
        options += ["--cores", str(WORKER_CORES), "--memory", WORKER_MEMORY, "--work-dir", str(place.data)]
        command: list[str | Path] = [spark_processes.program("spark-class"), f"{_DEPLOY}.worker.Worker", *options]
        environ = {**_SMALL, "SPARK_WORKER_DIR": str(place.data)}
        return spark_processes.start(place, [*command, f"spark://{HOST}:{master.ports['port']}"], held, environ)

    def ask(self, place: Place, state: State) -> str:
        if not accepts(state.ports["port"]):
            raise NotReadyError(f"nobody listens on port {state.ports['port']}")
        workers = _asked(_master_of(place))["workers"]
        if not any(one["port"] == state.ports["port"] and one["state"] == "ALIVE" for one in workers):
            raise NotReadyError("the master does not list it yet")
        return _version()

    def address(self, place: Place, state: State) -> Address:
        shown = f"{HOST}:{state.ports['port']}"
        return Address(url=shown, shown=shown)


def _started_beside(place: Place) -> State:
    """The master's ports; one that is started by the same command has them in a moment."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return _master_of(place)
        except NotReadyError:
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"{place.name} has no master to work for. Nothing was started.",
                    hint=f"Start both: lakewright services up {MASTER} {place.name}",
                ) from None
            time.sleep(0.1)


def _master_of(place: Place) -> State:
    state = Place(place.folder.parent / MASTER).load()
    if state is None or "port" not in state.ports:
        raise NotReadyError(f"there is no {MASTER}")
    return state


def _asked(master: State) -> dict[str, Any]:
    """What the master tells about itself; asked without a proxy, which could not reach the loopback interface."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{HOST}:{master.ports['pages']}/json/", timeout=5) as answer:
            told: dict[str, Any] = json.load(answer)
    except (OSError, ValueError) as error:
        raise NotReadyError(f"the master's page does not answer: {error}") from error
    if told.get("status") != "ALIVE":
        raise NotReadyError(f"the master is {told.get('status')}")
    return told


def _version() -> str:
    from importlib.metadata import version

    return version("pyspark")
