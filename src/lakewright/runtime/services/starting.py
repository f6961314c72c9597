"""Start: one service on its way up, from its ports to its first answer.

Guarantee:
    A recorded port is kept where it is free, and one that the user has fixed is never changed. A service that does not
    answer in time, or ends, is stopped and recorded as such, and the error shows the end of its log.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace

from lakewright.errors import ConfigurationError, TargetError
from lakewright.runtime.jars import Progress
from lakewright.runtime.services import processes
from lakewright.runtime.services.contract import NotReadyError, Service, ServiceStatus, failed_command
from lakewright.runtime.services.looking import describe
from lakewright.runtime.services.ports import free_port, is_free
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.state import Place, State

__all__ = ["Start"]

_GLANCE_SECONDS = 0.1
_LAST_BREATH_SECONDS = 1.0


class Start:
    """One service on its way up."""

    def __init__(self, service: Service, place: Place, say: Progress) -> None:
        self.service = service
        self.place = place
        self.say = say
        self.cancelled = threading.Event()
        self.version: str | None = None
        place.make()
        self.state = place.load() or State()
        process = self.state.process
        self.runs = process is not None and self._stays(process)
        if not self.runs:
            service.clear(place)  # before the ports are looked at: what is left may still hold them

    def _stays(self, process: Process) -> bool:
        """Whether the process runs, and is not one that was killed a moment ago and is about to be gone."""
        if not processes.is_running(process):
            return False
        try:
            self.service.ask(self.place, self.state)
        except NotReadyError:
            return not processes.wait_until_gone([process], _LAST_BREATH_SECONDS)
        return True

    def choose_ports(self, wanted: int | None, taken: set[int]) -> None:
        """Keep the recorded ports where they are free; a port that the user has fixed is never changed."""
        state, title, first = self.state, self.service.title, self.service.port_names[0]
        if self.runs:
            if wanted and wanted != state.ports[first]:
                raise ConfigurationError(
                    f"{title} runs on port {state.ports[first]} already. Nothing was changed.",
                    hint=f"First: lakewright services down {self.service.name}",
                )
            return
        fixed = state.fixed if wanted is None else wanted != 0
        ports = {**state.ports, **({first: wanted} if wanted else {})}
        for name in self.service.port_names:
            port = ports.get(name)
            if port is not None and is_free(port) and (port not in taken or port == wanted):
                taken.add(port)
                continue
            if port is not None and fixed and name == first:
                raise TargetError(
                    f"Port {port}, which was chosen for {title}, is in use by another program. Nothing was started.",
                    hint=f"End that program, or take another port: lakewright services up {self.service.name} "
                    f"--{self.service.name}-port PORT (0: any that is free)",
                )
            ports[name] = free_port(taken)
            taken.add(ports[name])
            if port is not None and name == first:
                self.say(f"Port {port} is in use by another program: {title} moves to port {ports[name]}.")
        self.state = replace(state, ports=ports, fixed=fixed)

    def run(self) -> None:
        """Start unless it runs, and wait for an answer."""
        service, place, since = self.service, self.place, 0
        began = time.monotonic()
        if not self.runs:
            with place.hold() as held:
                place.keep_log_small()
                if (died := self.state.process) is not None:
                    self.say(
                        f"{service.title} had died: its process {died.pid} is gone. Starting it again on its data."
                    )
                self.state = service.prepare(place, self.state, self.say, held)
                since = place.log_size()
                process = service.start(place, self.state, held)
                self.state = replace(self.state, process=process)
                try:
                    place.save(self.state)
                except BaseException:  # nobody would ever find it again
                    service.stop(place, process)
                    raise
        self.version = self._answer(since)
        if not self.runs:
            self.state = replace(self.state, version=self.version)
            place.save(self.state)
            shown = service.address(place, self.state).shown
            self.say(f"{service.title} {self.version} is up at {shown} ({time.monotonic() - began:.1f} s).")

    def found(self) -> ServiceStatus:
        return describe(self.place, self.service, self.state, self.version, None)

    def _answer(self, since: int) -> str:
        process = self.state.process
        assert process is not None
        deadline = time.monotonic() + self.service.timeout_seconds
        while True:
            try:
                return self.service.ask(self.place, self.state)
            except NotReadyError as error:
                alive = processes.is_running(process)
                if alive and time.monotonic() < deadline and not self.cancelled.wait(_GLANCE_SECONDS):
                    continue
                raise self._given_up(process, alive, since, error) from error

    def _given_up(self, process: Process, alive: bool, since: int, error: NotReadyError) -> TargetError:
        service = self.service
        if self.runs:
            return TargetError(
                f"{service.title} runs as process {process.pid} and does not answer: {error}. It was left as it is.",
                hint=f"lakewright services down {service.name}; then up again. Its log is {self.place.log}.",
            )
        if alive:
            service.stop(self.place, process)
        with suppress(OSError):  # on a full disk; its process is gone, as everybody sees
            self.place.save(replace(self.state, process=None))
        waited = f"did not answer within {service.timeout_seconds:.0f} s ({error}) and was stopped"
        what = waited if alive else "ended as soon as it was started"
        return failed_command(f"{service.title} {what}", self.place, since)
