"""What the Spark services have in common: programs of the installed PySpark, with its Java and Python."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lakewright.runtime.jars import Progress, pyspark_folder
from lakewright.runtime.java import find_java
from lakewright.runtime.services import processes
from lakewright.runtime.services.accounts import MYSELF
from lakewright.runtime.services.ports import HOST
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.state import Place, State

__all__ = ["SparkService", "program", "start"]

_LOGGING = """\
# Written by lakewright at every start: warnings and errors go to the log of the service.
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p %c{1}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class SparkService:
    """What every service of Spark does alike: it needs Java, keeps no data, and can be killed."""

    __slots__ = ()

    @property
    def packages(self) -> Mapping[str, str]:
        return {}

    def require(self, say: Progress) -> None:
        find_java()

    def prepare(self, place: Place, state: State, say: Progress, held: int) -> State:
        return state

    def clear(self, place: Place) -> None:
        for process in processes.working_in(place.folder, "java"):
            self.stop(place, process)

    def stop(self, place: Place, process: Process) -> None:
        processes.end(process, signal.SIGTERM, 15)


def program(name: str) -> Path:
    """A start script of the installed PySpark; it is replaced by the JVM that it starts."""
    return pyspark_folder() / "bin" / name


def start(place: Place, command: Sequence[str | Path], held: int, environ: Mapping[str, str] | None = None) -> Process:
    """Start a program of Spark in the service's folder, which takes all that it leaves."""
    place.data.mkdir(exist_ok=True)
    (place.folder / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
    return processes.spawn(
        command,
        folder=place.folder,
        log=place.log,
        account=MYSELF,
        environ={**_environment(place), **(environ or {})},
        inherit=[held],
    )


def _environment(place: Place) -> dict[str, str]:
    # Nothing of ours is inherited: a SPARK_CONF_DIR or SPARK_REMOTE of the user would change what is started.
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(place.folder),
        "LC_ALL": "C.UTF-8",
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(pyspark_folder()),
        "SPARK_CONF_DIR": str(place.folder),
        "SPARK_LOCAL_DIRS": str(place.data),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
    }
