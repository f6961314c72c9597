"""Spark sessions: a small, fast, quiet local one, and a plain one for clusters.

Guarantee:
    A session from here speaks UTC, knows Delta, and raises Delta's errors with their types. A local one
    writes nothing to the terminal (the JVM's log, its standard output and error go to
    ``.lakewright/logs``), leaves nothing in the current folder, listens on 127.0.0.1 only and needs no
    network once the jars are cached. On a cluster only what Delta needs is set; tuning is the cluster's.
    The value of a setting that is a reference to a secret stands on no command line, and Spark's own pages and
    event log do not show it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError
from lakewright.masking import watch
from lakewright.model.connections import Connection
from lakewright.model.secrets import Secret, is_reference
from lakewright.runtime.class_archive import archive_options
from lakewright.runtime.cluster import cluster_settings, refuse_incomplete
from lakewright.runtime.connect import connect_session, is_connect
from lakewright.runtime.jars import ensure_jars, find_java, pyspark_folder
from lakewright.runtime.secret_settings import LOG_PROPERTY, REDACTION, java_pattern, redaction
from lakewright.runtime.settings import Target

if TYPE_CHECKING:  # importing PySpark costs half a second: only a command that starts Spark pays it
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

__all__ = ["DELTA", "check_session", "local_session", "logstore_setting", "spark_session", "stop_session"]

LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
}
# Without Hadoop's native library Delta's own for files starts 16 processes with each commit, a fifth of a small one's
# time; this one starts none. Neither guards against another process: the lake's locks do.
LOCAL_LOG = {"spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore"}
# C1 and the serial collector: half the CPU for short runs, wrong for long ones (docs: runtime). With C1 alone Java
# reserves 48 MB for compiled code, which Spark fills in minutes: then a third of a core only makes room. Classes have
# room from the start too: to make it, Java collects all garbage at each step.
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=192m"
# What pays for itself on large data only: generating code is a quarter of a small write, planning anew while a query
# runs a fifth, and a second task for a few kilobytes (of a table's log or of its rows) an eighth.
SHORT_WORK = {
    "spark.sql.adaptive.enabled": "false",
    # Without generated code a join fails where Spark looks up partitions while the query runs: "has not finished".
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    # With each call on a column PySpark tells Java the line of the call, which is most of what the call costs.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


def spark_session(target: Target, app_name: str = "lakewright") -> SparkSession:
    """The session that ``target`` asks for: local, a cluster's (spark://, yarn, k8s://) or Connect (sc://)."""
    if target.is_local:
        return local_session(target, app_name)
    import delta.exceptions  # noqa: F401  (before any session: it teaches PySpark the types)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    _quieten_pyspark()
    refuse_incomplete(target)
    secrets = target.reveal_spark()
    if is_connect(target.master):
        wanted = {"spark.sql.session.timeZone": "UTC", **target.spark, **secrets}
        return check_session(connect_session(target, wanted, _secret_keys(target)))
    _leave_connect_mode()
    # Workers start the Python of this path; where theirs is another one, the target says so.
    os.environ["PYSPARK_PYTHON"] = target.spark.get("spark.pyspark.python") or sys.executable
    settings = {**cluster_settings(target, app_name, DELTA), **logstore_setting(target), **_redaction(target)}
    with _kept_interrupt_handler():
        if SparkContext._gateway is None:
            shown = _conf({key: value for key, value in settings.items() if key not in secrets})
            SparkContext._ensure_initialized(gateway=_launch(target, shown), conf=shown)
            watch(_mask_log)
        return check_session(SparkSession.builder.config(conf=_conf({**settings, **secrets})).getOrCreate())


def local_session(target: Target, app_name: str = "lakewright") -> SparkSession:
    """Spark inside this process's own JVM, tuned for small work; the running one, if there is one."""
    import delta.exceptions  # noqa: F401  (before any session: it teaches PySpark the types)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    _quieten_pyspark()
    _leave_connect_mode()
    if SparkContext._active_spark_context is not None:
        return check_session(SparkSession.builder.getOrCreate())
    settings, secrets = _local_settings(target, app_name), target.reveal_spark()
    with _kept_interrupt_handler():
        if SparkContext._gateway is None:
            shown = _conf({key: value for key, value in settings.items() if key not in secrets})
            SparkContext._ensure_initialized(gateway=_launch(target, shown), conf=shown)
            watch(_mask_log)
        return check_session(SparkSession.builder.config(conf=_conf({**settings, **secrets})).getOrCreate())


def check_session(spark: SparkSession) -> SparkSession:
    """Refuse a session that does not speak UTC: its dates would depend on the machine."""
    zone = spark.conf.get("spark.sql.session.timeZone", "the machine's")
    if zone not in ("UTC", "Etc/UTC", "GMT", "Z", "+00:00"):
        raise ConfigurationError(
            f"The Spark session's time zone is {zone}; Lakewright works in UTC only. Nothing was started.",
            hint='Set it before the first use: spark.conf.set("spark.sql.session.timeZone", "UTC")',
        )
    return spark


def stop_session(spark: SparkSession) -> None:
    """End the session and its Spark; the JVM ends with this process. One that was killed has ended already."""
    from py4j.protocol import Py4JError

    if getattr(spark, "newSession", None) is None:  # Connect: a server that is gone has forgotten the session anyway
        spark.client.set_retry_policies([])
    with contextlib.suppress(Py4JError, ConnectionError):
        spark.stop()


def _local_settings(target: Target, app_name: str) -> Mapping[str, str]:
    state = target.state
    cores = _cores(target.master)
    options = [
        "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}",
        f"-Dlakewright.logs={state / 'logs'}",
        f"-Dderby.system.home={state / 'derby'}",
        *(FAST_START.split() if target.fast_start else ()),
        *archive_options(),
        *target.spark.get("spark.driver.extraJavaOptions", "").split(),
    ]
    jars = [str(jar) for jar in ensure_jars()]
    own = {
        "spark.master": target.master,
        "spark.app.name": app_name,
        "spark.driver.memory": target.driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # What Spark keeps for its pages, thousands of plans and tasks by default, nobody sees here: some 80 MB.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "500",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.sql.streaming.ui.retainedQueries": "10",
        "spark.log.structuredLogging.enabled": "false",
        "spark.scheduler.mode": "FAIR",
        # Tasks of a few kilobytes: more of them than cores only costs scheduling.
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        "spark.databricks.delta.snapshotPartitions": "2",
        # VACUUM and wide folders are listed by as many tasks as this says: 10,000 by default.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(max(2, cores)),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(state / "warehouse"),
        **logstore_setting(target),
    }
    quoted = " ".join(f'"{option}"' if " " in option else option for option in options)
    lists = _joined(target, jars) | _redaction(target)
    short = SHORT_WORK if target.fast_start else {}
    return DELTA | LOCAL_LOG | own | short | dict(target.spark) | lists | {"spark.driver.extraJavaOptions": quoted}


def _redaction(target: Target) -> dict[str, str]:
    """Keep the values of what was given as a reference out of Spark's pages and event log, beside its own list."""
    return {REDACTION: redaction(_secret_keys(target), target.spark.get(REDACTION))}


def _secret_keys(target: Target) -> list[str]:
    """The keys of what was given as a reference."""
    keys = [key for key, value in target.spark.items() if is_reference(value)]
    for one in target.connections.declared.values():
        if isinstance(one, Connection):
            secret = [key for key, value in one.options.items() if isinstance(value, Secret)]
            # What a broker's options name for Spark alone, Spark knows without that word.
            keys += [*secret, *(key.removeprefix("spark.") for key in secret if key.startswith("spark."))]
    return keys


def _conf(settings: Mapping[str, str]) -> SparkConf:
    from pyspark import SparkConf

    return SparkConf(loadDefaults=False).setAll(list(settings.items()))


def _mask_log(forms: tuple[str, ...]) -> None:
    """Tell the JVM, not by its command line, what its log must not hold: an error of a task may repeat a secret."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    if jvm is None:
        return
    with contextlib.suppress(Py4JError, OSError):  # a JVM that is gone writes no log either
        jvm.java.lang.System.setProperty(LOG_PROPERTY, java_pattern(forms))
        jvm.org.apache.logging.log4j.LogManager.getContext(False).reconfigure()


def _joined(target: Target, jars: list[str]) -> dict[str, str]:
    """The lists to which a project may add, and from which it may not take what Delta needs."""
    ours = {
        "spark.sql.extensions": (",", DELTA["spark.sql.extensions"]),
        "spark.driver.extraClassPath": (os.pathsep, os.pathsep.join(jars)),
    }
    return {
        key: separator.join(filter(None, (value, target.spark.get(key)))) for key, (separator, value) in ours.items()
    }


def logstore_setting(target: Target) -> dict[str, str]:
    """Delta's commit protocol for an object store, by the scheme of the lake's URI."""
    scheme = re.match(r"^([a-zA-Z][a-zA-Z0-9+.-]*):", target.lake)
    if target.logstore is None or scheme is None:
        return {}
    return {f"spark.delta.logStore.{scheme.group(1)}.impl": target.logstore}


def _cores(master: str) -> int:
    """How many tasks a local master runs at once.

    >>> _cores("local[4]"), _cores("local"), _cores("local[3,2]")
    (4, 1, 3)
    """
    inside = re.match(r"local\[([^,\]]+)", master)
    if inside is None:
        return 1
    return (os.cpu_count() or 1) if inside.group(1) == "*" else int(inside.group(1))


def _launch(target: Target, conf: object) -> object:
    """Start the JVM as PySpark does, but with its output in a file and our Java, Spark and Python."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ["SPARK_HOME"] = str(pyspark_folder())
    if target.is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    logs = target.state / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    output = logs / "spark-output.log"
    if output.exists() and output.stat().st_size > 5_000_000:
        output.replace(logs / "spark-output-1.log")
    with output.open("ab") as sink:
        start = sink.tell()
        try:
            return launch_gateway(conf, popen_kwargs={"stdout": sink, "stderr": sink})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            said = output.read_bytes()[start:].decode(errors="replace").strip()
            raise ConfigurationError(
                f"Spark's JVM did not start. It said:\n{said[-2000:]}",
                hint=f"The whole output is in {output}. `lakewright doctor` checks Java and memory.",
            ) from error


def _leave_connect_mode() -> None:
    """A parent process that used Connect leaves a mark in the environment, by which PySpark would refuse to start."""
    connect = sys.modules.get("pyspark.sql.connect.session")
    if connect is not None and connect.SparkSession._default_session is not None:
        return  # it is this very process that uses it: PySpark says what it thinks of that
    for mark in ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"):
        os.environ.pop(mark, None)


def _quieten_pyspark() -> None:
    """PySpark prints each SQL error as JSON on standard error before it raises it: raising is enough.

    So does py4j with a failed micro-batch and a lost JVM, stack trace and all: partly by a logger of its own, partly
    by the root logger.
    """
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).handlers[:] = [logging.NullHandler()]
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


@contextlib.contextmanager
def _kept_interrupt_handler() -> Iterator[None]:
    """PySpark takes over SIGINT when a session starts; a handler that the caller had set stays."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    ours = handler not in (signal.default_int_handler, None)
    if ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
