"""How a service stands, found by asking it. Looking waits for nobody and changes nothing."""

from __future__ import annotations

from pathlib import Path

from lakewright.errors import first_words
from lakewright.runtime.services import processes
from lakewright.runtime.services.contract import NotReadyError, Service, ServiceStatus, had_no_room, require_packages
from lakewright.runtime.services.ports import accepts
from lakewright.runtime.services.state import Place, State

__all__ = ["describe", "look"]


def look(folder: Path, service: Service, *, ask: bool = True) -> ServiceStatus:
    """The service below ``folder``: its state file, its process and, where that runs, its answer.

    Without ``ask`` an open port is answer enough: for whoever is about to ask something else, and more often.
    """
    place = Place(folder / service.name)
    state = place.load()
    if state is None or state.process is None or not processes.is_running(state.process):
        return describe(place, service, state, None, None)
    require_packages([service])
    try:
        answer = service.ask(place, state) if ask else _open_port(service, state)
        return describe(place, service, state, answer, None)
    except NotReadyError as error:
        return describe(place, service, state, None, first_words(error))


def _open_port(service: Service, state: State) -> str:
    port = state.ports[service.port_names[0]]
    if not accepts(port):
        raise NotReadyError(f"nobody listens on port {port}")
    return state.version or "unknown"


def describe(
    place: Place, service: Service, state: State | None, answered: str | None, silence: str | None
) -> ServiceStatus:
    """What is known in one object; ``answered`` is the version it told, ``silence`` what came instead."""
    process = None if state is None else state.process
    running = process is not None and (answered is not None or silence is not None)
    note = silence
    if process is not None and not running:
        again = f"`lakewright services up {service.name}` starts it again on its data"
        note = f"process {process.pid} is gone; {again}"
        if had_no_room(place):
            note = f"process {process.pid} is gone: there is no room to write in {place.data}; free some space on its "
            note += f"disk, then {again}"
    return ServiceStatus(
        name=service.name,
        title=service.title,
        state=(
            "absent" if state is None
            else "stopped" if process is None
            else "running" if answered is not None
            else "not ready" if silence is not None
            else "died"
        ),
        version=answered or (None if state is None else state.version),
        port=None if state is None else state.ports.get(service.port_names[0]),
        pid=process.pid if process is not None and running else None,
        address=None if state is None or not state.ports else service.address(place, state),
        data=place.data,
        log=place.log,
        note=note,
    )  # fmt: skip
