"""Find a Java that Spark 4.2 runs on, or say what to install.

Guarantee:
    `find_java` returns a Java 17 or 21, or raises with the command that installs one. The version is
    read from the file ``release`` that every JDK carries, so a good Java costs no process start.

Only the standard library is used: ``make`` runs this module before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lakewright.errors import ConfigurationError

__all__ = ["Java", "find_java"]

SUPPORTED = (17, 21)
INSTALL = """Install one of them, then repeat the command:
  Debian, Ubuntu:  sudo apt install openjdk-17-jre-headless   (or openjdk-21-jre-headless)
  macOS:           brew install openjdk@17
  Fedora:          sudo dnf install java-21-openjdk-headless
If it is installed elsewhere, set JAVA_HOME to its folder."""
USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/opt/homebrew/opt/openjdk@*",
    "/usr/local/opt/openjdk@*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java: its folder, its command, its major version."""

    home: Path
    command: Path
    version: int


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java 17 or 21 of: ``JAVA_HOME``, the ``PATH``, the usual places of the system."""
    env = os.environ if environ is None else environ
    seen: list[str] = []
    for place, command in _candidates(env):
        java = _inspect(command)
        if java is None:
            seen.append(f"{place}: no Java at {command}")
        elif java.version in SUPPORTED:
            return java
        else:
            seen.append(f"{place}: Java {java.version} at {java.command}")
    found = "".join(f"\n  {line}" for line in seen) or "\n  nothing in JAVA_HOME, the PATH or the usual places"
    raise ConfigurationError(f"Spark needs Java 17 or 21. Found:{found}", hint=INSTALL)


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if env.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(env["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    if on_path is not None:
        yield "PATH", Path(on_path)
    for pattern in USUAL_PLACES:
        for folder in sorted(Path("/").glob(pattern.lstrip("/"))):
            if (folder / "bin" / "java").is_file():
                yield str(folder), folder / "bin" / "java"


def _inspect(command: Path) -> Java | None:
    if not command.is_file():
        return None
    real = command.resolve()
    home = real.parent.parent
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = _ask(command)
    # JAVA_VERSION="17.0.15" in the file, openjdk version "17.0.15" from the command, "1.8.0_402" before 9
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return None if match is None else Java(home=home, command=real, version=int(match.group(1)))


def _ask(command: Path) -> str:
    try:
        return subprocess.run(
            [str(command), "-version"], capture_output=True, text=True, timeout=60, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


if __name__ == "__main__":
    try:
        find_java()
    except ConfigurationError as error:
        sys.exit(f"error: {error.message}\n{error.hint}")
