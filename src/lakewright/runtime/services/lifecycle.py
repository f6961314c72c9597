"""Start, find and stop the services of a folder.

Guarantee:
    After `up` every service that was asked for has answered a real request; it lives on when the caller ends, and
    any later command finds it. A service that was killed is started again on the same data and, unless somebody
    else has taken it, the same port. What cannot start leaves nothing running, and the error shows the end of its
    log. Two callers at once wait for each other; `status` waits for nobody and changes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from lakewright.errors import ConfigurationError, LakewrightError, TargetError, UnknownNameError
from lakewright.runtime.jars import Progress
from lakewright.runtime.services import guard, processes
from lakewright.runtime.services.connect import ConnectService
from lakewright.runtime.services.contract import Service, ServiceStatus, require_packages
from lakewright.runtime.services.debezium import DebeziumService
from lakewright.runtime.services.kafka import KafkaService
from lakewright.runtime.services.looking import look
from lakewright.runtime.services.postgres import PREFIX, PostgresService
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.standalone import MASTER, WORKERS, StandaloneMaster, StandaloneWorker
from lakewright.runtime.services.starting import Start
from lakewright.runtime.services.state import Place, State, only_one

__all__ = ["NAMES", "down", "names_here", "status", "up"]

_USUAL: dict[str, Service] = {"postgres": PostgresService(), "kafka": KafkaService()}
# Started only when they are named: few projects want change capture, or a Spark beside their own.
_SERVICES: dict[str, Service] = {
    **_USUAL,
    "debezium": DebeziumService(),
    "connect": ConnectService(),
    MASTER: StandaloneMaster(),
    **{name: StandaloneWorker(name) for name in WORKERS},
}
_THROWAWAY: dict[str, Service] = {
    **_SERVICES,
    "postgres": PostgresService(throwaway=True),
    "connect": ConnectService(throwaway=True),
}
NAMES = tuple(_USUAL)
_NEEDS: Mapping[str, tuple[str, ...]] = {"debezium": ("kafka",)}
"""Which service works only with others: they are started with it, before it, and stopped after it."""


def up(
    folder: Path,
    names: Iterable[str] = NAMES,
    *,
    ports: Mapping[str, int] | None = None,
    say: Progress | None = None,
    only_while: Process | None = None,
) -> list[ServiceStatus]:
    """Start the named services below ``folder`` unless they run, side by side, and wait until they answer.

    What a service needs is started too, before it, and is among the answers.
    ``ports`` fixes the port of a service; 0 leaves the choice to us again. With ``only_while`` the services are
    thrown away, data and all, when that process has ended, however it ended.
    """
    tell = say or (lambda line: None)
    named = list(names)
    needed = [one for name in named for one in _NEEDS.get(name, ())]
    chosen = _chosen([*named, *needed], _SERVICES if only_while is None else _THROWAWAY)
    wanted = dict(ports or {})
    if stray := sorted(set(wanted) - {service.name for service in chosen}):
        raise ConfigurationError(
            f"A port is given for {', '.join(stray)}, which is not among the services to start.",
            hint=f"Name it too: lakewright services up {' '.join([*(s.name for s in chosen), *stray])}",
        )
    fixed = [port for port in wanted.values() if port]
    if len(set(fixed)) < len(fixed):
        raise ConfigurationError(f"Two services cannot share port {fixed[0]}. Nothing was started.")
    require_packages(chosen)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with only_one(folder, tell):
            if only_while is not None:
                guard.ensure(folder, only_while)
            return _all_up(folder, chosen, wanted, tell)
    except OSError as error:
        raise TargetError(
            f"The services cannot be started: {error.filename or folder}: {error.strerror or error}.",
            hint=f"Check the rights of {folder} and the room on its disk, then repeat the command.",
        ) from error


def down(
    folder: Path, names: Iterable[str] | None = None, *, delete: bool = False, say: Progress | None = None
) -> list[ServiceStatus]:
    """Stop the named services (all of this folder) cleanly; with ``delete`` remove their data, logs, passwords too."""
    tell = say or (lambda line: None)
    chosen = _chosen(names or names_here(folder), _SERVICES)
    if not folder.exists():
        return [look(folder, service) for service in chosen]
    try:
        with only_one(folder, tell):
            errors = _all_down(folder, chosen, delete, tell)
            if errors:
                raise errors[0] if isinstance(errors[0], PermissionError) else _told(folder, errors)
            return [look(folder, service) for service in chosen]
    except PermissionError as error:
        raise TargetError(
            f"The services in {folder} were started by another user: {error.strerror or error}.",
            hint="Repeat the command as that user.",
        ) from error


def status(folder: Path, names: Iterable[str] | None = None, *, ask: bool = True) -> list[ServiceStatus]:
    """How the named services (all of this folder) stand, by asking them, or by their open port."""
    return [look(folder, service, ask=ask) for service in _chosen(names or names_here(folder), _SERVICES)]


def names_here(folder: Path) -> list[str]:
    """The usual services, and of those that start only when named the ones that were."""
    return [name for name in _SERVICES if name in NAMES or (folder / name).exists()]


def _chosen(names: Iterable[str], services: Mapping[str, Service]) -> list[Service]:
    wanted = list(dict.fromkeys(names)) or list(NAMES)
    for name in wanted:
        if name not in services:
            raise UnknownNameError("service", name, services)
    return [service for name, service in services.items() if name in wanted]


def _all_up(folder: Path, chosen: list[Service], wanted: Mapping[str, int], say: Progress) -> list[ServiceStatus]:
    tasks: list[Start] = []
    taken: set[int] = set(wanted.values())
    for service in chosen:
        task = Start(service, Place(folder / service.name), say)
        task.choose_ports(wanted.get(service.name), taken)
        tasks.append(task)
    for task in tasks:
        if not task.runs:
            task.service.require(say)
    for needy in (False, True):
        together = [task for task in tasks if (task.service.name in _NEEDS) is needy]
        if together and (errors := _run(together)):
            raise _joined(errors, tasks) from errors[0]
    return [task.found() for task in tasks]


def _run(tasks: list[Start]) -> list[BaseException]:
    """Run starts side by side; what went wrong."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        running = [pool.submit(task.run) for task in tasks]
        try:
            return [error for future in running if (error := future.exception()) is not None]
        except BaseException:  # Ctrl-C: what has not answered yet is stopped, then the pool is left
            for task in tasks:
                task.cancelled.set()
            raise


def _joined(errors: list[BaseException], tasks: list[Start]) -> BaseException:
    """One error for all; what came up stays up and is named."""
    known = [error for error in errors if isinstance(error, LakewrightError)]
    if len(known) != len(errors):
        return next(error for error in errors if not isinstance(error, LakewrightError))
    well = [task.service.title for task in tasks if task.version is not None]
    message = "\n".join([*(error.message for error in known), *(f"{title} is up." for title in well)])
    hints = dict.fromkeys(error.hint for error in known if error.hint)
    return type(known[0])(message, hint="\n".join(hints) or None)


def _all_down(folder: Path, chosen: list[Service], delete: bool, say: Progress) -> list[Exception]:
    """Each of them, whatever becomes of the others; what went wrong."""
    errors: list[Exception] = []
    for service in sorted(chosen, key=lambda one: one.name not in _NEEDS):
        try:
            _down(Place(folder / service.name), service, delete, say)
        except (OSError, LakewrightError) as error:
            errors.append(error)
    # Another user's service is told as that, whatever else there is.
    return sorted(errors, key=lambda error: not isinstance(error, PermissionError))


def _told(folder: Path, errors: list[Exception]) -> LakewrightError:
    """One error for all; the other services are down."""
    known = [error for error in errors if isinstance(error, LakewrightError)]
    if len(errors) == 1 and known:
        return known[0]
    said = [
        error.message
        if isinstance(error, LakewrightError)
        else f"{getattr(error, 'filename', None) or folder}: {getattr(error, 'strerror', None) or error}."
        for error in errors
    ]
    hints = dict.fromkeys(error.hint for error in known if error.hint)
    usual = f"Check the rights of {folder} and the room on its disk, then repeat the command."
    return TargetError("Not all services are down: " + "\n".join(said), hint="\n".join(hints) or usual)


def _down(place: Place, service: Service, delete: bool, say: Progress) -> None:
    state = place.load() if place.folder.exists() else None
    process = None if state is None else state.process
    if process is not None and processes.is_running(process):
        service.stop(place, process)
        say(f"{service.title} was stopped.")
        _settle(place, service, state, delete, say)
    elif place.folder.exists():
        service.clear(place)
        if delete or process is not None:
            with place.hold():  # or it would be taken from a server in another container
                _settle(place, service, state, delete, say)


def _settle(place: Place, service: Service, state: State | None, delete: bool, say: Progress) -> None:
    """Delete what a service has left, or note that it is down."""
    if delete:
        # Nothing is noted before: on a full disk that would fail, and this is what makes room.
        home = place.data.parent
        if home != place.folder.resolve() and home.name.startswith(PREFIX):
            shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(place.folder)
        say(f"The data of {service.title} was deleted.")
    elif state is not None and state.process is not None:
        place.save(replace(state, process=None))
