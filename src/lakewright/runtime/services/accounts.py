"""Account: who a service runs as. PostgreSQL refuses root, so root starts it as somebody who may do nothing else."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakewright.errors import ConfigurationError

__all__ = ["MYSELF", "Account", "unprivileged"]


@dataclass(frozen=True, slots=True)
class Account:
    """A user to run programs as; without a number: the one who runs this."""

    uid: int | None = None
    gid: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What `subprocess` needs to know."""
        return {} if self.uid is None else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give a file or folder to this user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def can_write_to(self, folder: Path) -> bool:
        """Whether this user gets through all the folders above and can make a file; asked by trying."""
        attempt = ["/bin/sh", "-c", 'cd "$1" && : > .probe && rm .probe', "sh", str(folder)]
        return subprocess.run(attempt, **_SILENT, **self.options).returncode == 0

    def can_run(self, program: Path) -> bool:
        """Whether this user can start a program; asked by trying."""
        try:
            return subprocess.run([program, "--version"], **_SILENT, **self.options).returncode == 0
        except PermissionError:
            return False


_SILENT: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.DEVNULL,
    "stderr": subprocess.DEVNULL,
    "cwd": "/",
    "check": False,
}
MYSELF = Account()


def unprivileged(data: Path) -> Account:
    """Myself or, for root, the owner of a data folder that is there already, else nobody."""
    if os.geteuid() != 0:
        return MYSELF
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise ConfigurationError(
            "PostgreSQL does not run as root, and this machine has no user 'nobody' to run it as.",
            hint="Run the command as an ordinary user.",
        ) from None
    return Account(nobody.pw_uid, nobody.pw_gid)
