"""What `lakewright doctor` looks at: each thing that a run needs, found to be well or with the cure.

Guarantee:
    Looking changes nothing, and starts Spark only when asked to (``deep``), which then writes and reads
    one tiny Delta table in the lake and, on a local lake, removes it again.
"""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from lakewright.errors import LakewrightError
from lakewright.model.secrets import Secret
from lakewright.runtime.check import Check
from lakewright.runtime.cluster import cluster_checks
from lakewright.runtime.connect import is_connect
from lakewright.runtime.jars import jar_folder, present_jars
from lakewright.runtime.java import find_java
from lakewright.runtime.settings import Settings, Target

__all__ = ["Check", "checks"]

LOW_DISK_BYTES = 2 * 1024**3
POSTGRES_PORT = 5432


def checks(settings: Settings | None, *, deep: bool = False) -> list[Check]:
    """Look at everything, in the order in which a run would need it; ``settings`` None: outside a project."""
    here = settings is None or not _is_client(settings.target)
    found = [
        _python(),
        *([_java()] if here else []),
        _package("PySpark", "pyspark", "4.2.0"),
        _package("Delta", "delta-spark", "4.4.0"),
        *([_jars()] if here else []),
        _time_zone(),
    ]
    if settings is None:
        return [*found, Check("Project", "warn", "no lakewright.toml here", "lakewright init NAME")]
    target = settings.target
    found += [Check("Project", "ok", f"{settings.name}, target {target.name}"), *_secrets(target)]
    found += [*cluster_checks(target), *_computes(target), _store(target), _lake(target)]
    found += [_upstream(upper) for upper in settings.upstreams]
    return [*found, _session(target)] if deep else found


def _is_client(target: Target) -> bool:
    """Whether no Spark of this machine is ever started: Java and jars are the servers' own."""
    return all(is_connect(one.master) for one in (target, *map(target.with_compute, target.compute)))


def _python() -> Check:
    return Check("Python", "ok", f"{sys.version.split()[0]} at {sys.executable}")  # older ones cannot import us


def _java() -> Check:
    try:
        java = find_java()
    except LakewrightError as error:
        return Check("Java", "fail", error.message.strip(), error.hint)
    return Check("Java", "ok", f"{java.version} at {java.home}")


def _package(name: str, package: str, wanted: str) -> Check:
    cure = f"pip install {package}=={wanted}"
    try:
        installed = version(package)
    except PackageNotFoundError:
        return Check(name, "fail", "not installed", cure)
    if installed != wanted:
        return Check(name, "fail", f"{installed} is installed, {wanted} is what Lakewright was tested with", cure)
    if package == "pyspark" and _is_installed("pyspark-client"):
        return Check(name, "fail", "pyspark-client overwrote files of pyspark", f"pip uninstall pyspark-client; {cure}")
    return Check(name, "ok", installed)


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _jars() -> Check:
    jars = present_jars()
    if not jars:
        return Check("Jars", "warn", f"not in {jar_folder()} yet", "The first run fetches them (network needed).")
    return Check("Jars", "ok", f"{len(jars)} in {jar_folder()}")


def _time_zone() -> Check:
    return Check("Time zone", "ok", f"sessions run in UTC (this machine is in {time.tzname[0]}, which does not matter)")


def _secrets(target: Target) -> list[Check]:
    """Whether each reference leads to a value; the values are not shown."""
    found = [_secret(secret) for secret in target.secrets]
    bad = [check for check in found if check is not None]
    if bad or not found:
        return bad
    names = ", ".join(secret.reference for secret in target.secrets)
    return [Check("Secrets", "ok", f"{len(found)} found: {names}")]


def _secret(secret: Secret) -> Check | None:
    try:
        secret.reveal()
    except LakewrightError as error:
        return Check("Secrets", "fail", error.message, error.hint)
    if secret.file is not None and secret.file.stat().st_mode & 0o077:
        return Check("Secrets", "warn", f"{secret}: others may read {secret.file}", f"chmod 600 {secret.file}")
    return None


def _computes(target: Target) -> list[Check]:
    """What the computes of the target need, where that is another Spark than its own."""
    found = []
    for name in target.compute:
        other = target.with_compute(name)
        if other is not target:
            found += [replace(check, name=f"{check.name} ({name})") for check in cluster_checks(other)]
    return found


def _store(target: Target) -> Check:
    try:
        revealed = target.reveal_store()
    except LakewrightError as error:
        return Check("Store", "fail", error.message, error.hint)
    if revealed.startswith("sqlite:///"):
        return _writable("Store", Path(revealed.removeprefix("sqlite:///")).parent, f"SQLite, {target.shown_store}")
    shown = target.shown_store.partition("?")[0]
    address = urlsplit(revealed)
    if address.scheme.partition("+")[0] not in ("postgresql", "postgres") or address.hostname is None:
        return Check("Store", "warn", f"{shown}: not looked at", "Write it as postgresql://USER@HOST/DATABASE.")
    shown = f"PostgreSQL, {shown}"
    if not _is_installed("psycopg"):
        return Check("Store", "fail", f"{shown}: psycopg is not installed", 'pip install "lakewright[postgres]"')
    try:
        place = (address.hostname, address.port or POSTGRES_PORT)
    except ValueError:  # its text may hold a piece of the password
        return Check("Store", "fail", f"{shown} cannot be read", "In a password write @ as %40, / as %2F and : as %3A.")
    try:
        socket.create_connection(place, timeout=3).close()
    except OSError as error:
        cure = "Start it, or correct 'store' in the target."
        return Check("Store", "fail", f"{shown} does not answer: {error}", cure)
    return Check("Store", "ok", f"{shown} answers")


def _lake(target: Target) -> Check:
    folder = target.lake_path
    if folder is not None:
        return _writable("Lake", folder, target.lake)
    if target.lake.startswith(("s3:", "s3a:", "s3n:")) and target.logstore is None:
        return Check(
            "Lake",
            "warn",
            f"{target.lake}: without a log store, two drivers that write one table lose commits",
            'Set logstore = "io.delta.storage.S3DynamoDBLogStore" in the target, or let one driver write.',
        )
    return Check("Lake", "ok", f"{target.lake} (not looked at; `doctor --deep` writes to it)")


def _upstream(target: Target) -> Check:
    """A lake that is only read: it need not take a file."""
    folder = target.lake_path
    if folder is None:
        return Check("Upstream", "ok", f"{target.name}: {target.lake} (not looked at)")
    try:
        there = any(folder.iterdir())
    except FileNotFoundError:
        there = False
    except OSError as error:
        return Check("Upstream", "fail", f"{target.name}: {folder}: {error.strerror}", f"Give read rights on {folder}.")
    if not there:
        return Check(
            "Upstream", "warn", f"{target.name}: no table in {folder} yet", f"lakewright run --target {target.name}"
        )
    return Check("Upstream", "ok", f"{target.name}: {folder}")


def _writable(name: str, folder: Path, shown: str) -> Check:
    """Whether the folder, or the nearest existing one above it, takes a file, and how much room there is."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"lakewright")
    except OSError as error:
        return Check(
            name,
            "fail",
            f"{shown}: {there} takes no file: {error.strerror}",
            f"Check the owner and rights of {there}.",
        )
    free = shutil.disk_usage(there).free
    room = f"{free / 1024**3:.1f} GiB free"
    if free < LOW_DISK_BYTES:
        return Check(name, "warn", f"{shown}, only {room}", f"Make room on the disk of {there}.")
    return Check(name, "ok", f"{shown}, {room}")


def _session(target: Target) -> Check:
    from lakewright.runtime.session import spark_session, stop_session

    started = time.monotonic()
    folder = target.lake_path
    name = "_doctor" if folder is None else f"_doctor-{uuid.uuid4().hex[:8]}"
    table = f"{target.lake.rstrip('/')}/{name}"
    try:
        spark = spark_session(target, "lakewright doctor")
        try:
            spark.range(3).write.format("delta").mode("overwrite").save(table)
            rows = spark.read.format("delta").load(table).count()
        finally:
            stop_session(spark)
    # Whatever Spark, Delta or the file system raises is the finding here.
    except Exception as error:
        return Check("Session", "fail", str(error).strip().split("\n")[0], f"The log is in {target.state / 'logs'}.")
    finally:
        if folder is not None:
            shutil.rmtree(folder / name, ignore_errors=True)
    seconds = time.monotonic() - started
    state: Literal["ok", "fail"] = "ok" if rows == 3 else "fail"
    return Check("Session", state, f"wrote and read {rows} of 3 rows of a Delta table in {seconds:.1f} s")
