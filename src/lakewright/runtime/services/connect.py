"""A Spark Connect server on this machine, from the installed PySpark, with the jars that Lakewright needs.

Guarantee:
    It listens on the loopback interface only, knows Delta, speaks UTC, and leaves nothing outside its folder. It keeps
    no data: tables lie where its clients say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lakewright.runtime.class_archive import archive_options
from lakewright.runtime.connect import DELTA_SETTINGS
from lakewright.runtime.jars import Progress, ensure_jars, pyspark_folder
from lakewright.runtime.java import find_java
from lakewright.runtime.secret_settings import TEXT_REDACTION, text_redaction
from lakewright.runtime.services import spark_processes
from lakewright.runtime.services.contract import Address, NotReadyError
from lakewright.runtime.services.ports import HOST, accepts
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.spark_processes import SparkService
from lakewright.runtime.services.state import Place, State
from lakewright.runtime.session import FAST_START, LOCAL_LOG, SHORT_WORK

__all__ = ["ConnectService"]

MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


@dataclass(frozen=True, slots=True)
class ConnectService(SparkService):
    """The Connect server of a project; one that is thrown away after a test run is tuned as the tests' own session."""

    throwaway: bool = False
    name: str = "connect"
    title: str = "Spark Connect"
    port_names: tuple[str, ...] = ("port",)
    timeout_seconds: float = 90

    @property
    def packages(self) -> Mapping[str, str]:
        return {"grpc": "connect", "grpc_status": "connect"}

    def require(self, say: Progress) -> None:
        find_java()
        ensure_jars(say)

    def start(self, place: Place, state: State, held: int) -> Process:
        words = [word for name, value in self._settings(place, state).items() for word in ("--conf", f"{name}={value}")]
        command: list[str | Path] = [spark_processes.program("spark-submit"), "--class", MAIN, *words, "spark-internal"]
        # The conf folder is a part of the class path, which Java compares with that of the class archive.
        return spark_processes.start(place, command, held, {"SPARK_CONF_DIR": str(pyspark_folder() / "conf")})

    def ask(self, place: Place, state: State) -> str:
        port = state.ports["port"]
        if not accepts(port):  # a client would wait
            raise NotReadyError(f"nobody listens on port {port}")
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession(f"sc://{HOST}:{port}")  # by itself: a builder would make it the process's own
        session.client.set_retry_policies([])
        try:
            return str(session.version)
        except Exception as error:
            raise NotReadyError(str(error)) from error
        finally:
            session.stop()

    def address(self, place: Place, state: State) -> Address:
        url = f"sc://{HOST}:{state.ports['port']}"
        return Address(url=url, shown=url)

    def _settings(self, place: Place, state: State) -> dict[str, str]:
        logging = f"-Dlog4j2.configurationFile={(place.folder / 'log4j2.properties').as_uri()}"
        options = ["-Duser.timezone=UTC", f"-Dderby.system.home={place.data}", logging, *archive_options()]
        if self.throwaway:
            options += [*FAST_START.split(), "-Xms2g", "-Xmn900m", "-XX:MetaspaceSize=384m"]
        return {
            **DELTA_SETTINGS,
            **LOCAL_LOG,
            **SMALL,
            **(SHORT_WORK if self.throwaway else {}),
            # Delta remembers every table of the last hour, with its state: those of many projects would fill the heap.
            "spark.databricks.delta.delta.log.cacheSize": "200",
            "spark.master": "local[2]" if self.throwaway else "local[*]",
            "spark.app.name": "lakewright connect",
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(state.ports["port"]),
            "spark.driver.bindAddress": HOST,
            "spark.driver.extraClassPath": os.pathsep.join(map(str, ensure_jars())),
            "spark.driver.extraJavaOptions": " ".join(f'"{o}"' if " " in o else o for o in options),
            "spark.driver.host": HOST,
            "spark.driver.memory": "2g",
            "spark.log.structuredLogging.enabled": "false",
            "spark.scheduler.mode": "FAIR",
            TEXT_REDACTION: text_redaction([]),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(place.data / "warehouse"),
            "spark.ui.enabled": "false",
        }
