"""Jars beside PySpark's own, for sessions and for services: fetched once, then found without network.

Guarantee:
    `ensure_jars` returns files that are all there. They are resolved by the Ivy that PySpark ships, from
    a descriptor in the package, into ``${LAKEWRIGHT_HOME:-~/.cache/lakewright}/jars/<hash of the
    descriptor>``. The folder appears by one rename when it is complete, and only one process at a time
    fills it; a process killed half-way leaves nothing that another one would take for jars.

``LAKEWRIGHT_IVY_SETTINGS`` names an Ivy settings file, for a company's own Maven repository.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from lakewright.errors import ConfigurationError, TargetError
from lakewright.runtime.java import find_java

__all__ = [
    "SPARK_JARS",
    "JarSet",
    "Progress",
    "cache_folder",
    "ensure_jars",
    "find_java",
    "jar_folder",
    "only_one",
    "packages",
    "present_jars",
    "pyspark_folder",
]

MARKER = ".complete"
PATTERN = "[artifact]-[revision](-[classifier]).[ext]"
TIMEOUTS = ("-Dsun.net.client.defaultConnectTimeout=15000", "-Dsun.net.client.defaultReadTimeout=60000")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that belong together: an Ivy descriptor, and what they are for in words."""

    descriptor: Path
    purpose: str


SPARK_JARS = JarSet(Path(__file__).with_name("spark-jars.ivy.xml"), "Spark needs for Delta, Kafka and PostgreSQL")


def packages(jars: JarSet = SPARK_JARS) -> list[str]:
    """The Maven coordinates of the set; of Spark's: what a cluster needs, for ``spark.jars.packages`` or an image.

    >>> packages()[0]
    'io.delta:delta-spark_4.2_2.13:4.4.0'
    """
    tree = ET.parse(jars.descriptor)
    return [f"{d.get('org')}:{d.get('name')}:{d.get('rev')}" for d in tree.iterfind("dependencies/dependency")]


def cache_folder() -> Path:
    """Where Lakewright keeps what it has fetched: ``LAKEWRIGHT_HOME`` or ``~/.cache/lakewright``."""
    return Path(os.environ.get("LAKEWRIGHT_HOME") or "~/.cache/lakewright").expanduser().absolute()


def jar_folder(jars: JarSet = SPARK_JARS) -> Path:
    """The folder of the set's jars, whether it is there yet or not."""
    return cache_folder() / "jars" / _descriptor_hash(jars.descriptor)


def present_jars(jars: JarSet = SPARK_JARS) -> list[Path]:
    """The jars in the cache, or none at all unless every one is there."""
    folder = jar_folder(jars)
    try:
        names = (folder / MARKER).read_text(encoding="utf-8").split("\n")
    except OSError:
        return []
    found = [folder / name for name in names if name]
    return found if all(jar.is_file() for jar in found) else []


def ensure_jars(progress: Progress | None = None, jars: JarSet = SPARK_JARS) -> list[Path]:
    """The jars, fetched first if they are not in the cache; ``progress`` receives lines for people."""
    if found := present_jars(jars):
        return found
    say = progress or (lambda line: None)
    folder = jar_folder(jars)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # One lock for all sets: they share Ivy's own cache, which two runs at once would damage.
        with only_one(folder.parent / "fetch.lock", say, "fetching the jars"):
            if found := present_jars(jars):  # another process has fetched them while we waited
                return found
            _fetch(jars, folder, say)
    except OSError as error:
        raise TargetError(
            f"The jar cache {folder.parent} cannot be used: {error.strerror or error}.",
            hint="Set LAKEWRIGHT_HOME to a folder that you may write to.",
        ) from error
    return present_jars(jars)


def pyspark_folder() -> Path:
    """The folder of the installed PySpark, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("PySpark is not installed.", hint="Run: pip install lakewright")
    return Path(next(iter(spec.submodule_search_locations)))


@cache
def _descriptor_hash(descriptor: Path) -> str:
    return hashlib.sha256(descriptor.read_bytes()).hexdigest()[:16]


@contextmanager
def only_one(lock: Path, say: Progress, doing: str) -> Iterator[None]:
    """Let one process at a time through; whoever waits is told what the other one is doing."""
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process is {doing}; waiting for it ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing the file lets the next one in


def _fetch(jars: JarSet, folder: Path, say: Progress) -> None:
    say(f"Fetching the jars that {jars.purpose} (once, about a minute) ...")
    for leftover in folder.parent.glob(f"{folder.name}.part-*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        log = folder.with_suffix(".log")
        code = _run_ivy(jars, part, log, say)
        names = sorted(jar.name for jar in part.glob("*.jar"))
        missing = [p for p in packages(jars) if "-".join(p.split(":")[1:]) + ".jar" not in names]
        if code != 0 or missing:
            raise _unreachable(jars, folder, log)
        (part / MARKER).write_text("\n".join(names), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # one that lost a jar since it was complete
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    say(f"{len(names)} jars are in {folder}")


def _run_ivy(jars: JarSet, part: Path, log: Path, say: Progress) -> int:
    ivy = next(iter((pyspark_folder() / "jars").glob("ivy-*.jar")), None)
    if ivy is None:
        raise ConfigurationError("The installed PySpark has no Ivy jar.", hint="Reinstall pyspark==4.2.0.")
    settings = os.environ.get("LAKEWRIGHT_IVY_SETTINGS")
    command = [str(find_java().command), *TIMEOUTS, *_proxy_options(), "-jar", str(ivy)]
    command += ["-settings", settings] if settings else []
    command += ["-ivy", str(jars.descriptor), "-confs", "default", "-cache", str(cache_folder() / "ivy")]
    command += ["-types", "jar", "bundle", "-retrieve", f"{part}/{PATTERN}"]
    with (
        log.open("w", encoding="utf-8") as record,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy_run,
    ):
        assert ivy_run.stdout is not None
        for line in ivy_run.stdout:
            record.write(line)
            if line.startswith("downloading "):
                say(f"  {line.split()[1].rpartition('/')[2]}")
    return ivy_run.returncode


def _proxy_options() -> list[str]:
    """Java does not read ``https_proxy`` by itself."""
    proxy = urlsplit(os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY") or "")
    if not proxy.hostname:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]


def _unreachable(jars: JarSet, folder: Path, log: Path) -> TargetError:
    coordinates = "".join(f"\n  {package}" for package in packages(jars))
    return TargetError(
        f"The jars that {jars.purpose} could not be fetched; nothing was left behind. They are:{coordinates}",
        hint=(
            "Repeat the command with network access; or set LAKEWRIGHT_IVY_SETTINGS to an Ivy settings file "
            f"that names your own Maven repository; or copy the folder\n  {folder}\nfrom a machine that has "
            f"it to the same place here. What Ivy said is in {log}."
        ),
    )


if __name__ == "__main__":
    try:
        ensure_jars(lambda line: print(line, file=sys.stderr))  # noqa: T201
    except (ConfigurationError, TargetError) as error:
        sys.exit(f"error: {error.message}\n{error.hint}")
