"""The capture of one dataset: its preflight, and the life of its connector from registration to the end.

Guarantee:
    To register twice is to register once; other settings, or another password, take effect by registering again. A
    connector that has failed is told in words. After `CaptureFeed.decommission` neither slot nor publication is left
    in the database, also where the worker cannot be reached.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lakewright.connectors.cdc_facts import DatabaseFacts, database_facts
from lakewright.connectors.cdc_failures import RunState, failure_of, run_state, trace_of
from lakewright.connectors.cdc_names import CaptureNames
from lakewright.connectors.cdc_preflight import Problem, problems_of
from lakewright.connectors.cdc_reach import Reach
from lakewright.connectors.cdc_rest import ConnectWorker, RefusedError
from lakewright.connectors.cdc_settings import CaptureOptions, connector_settings, forget_password, keep_password
from lakewright.connectors.cdc_slot import SlotState, drop_publication, drop_slot, slot_state
from lakewright.connectors.postgres_connection import connection_arguments
from lakewright.errors import ConfigurationError, LakewrightError, TargetError

__all__ = ["CaptureFeed", "CaptureStatus", "Decommissioned", "Registered"]

Registered = Literal["created", "updated", "restarted", "unchanged"]
_WAIT_SECONDS = 90.0
_NOTICE_SECONDS = 3.0
"""How long the worker may take to show that it has begun what it was asked for."""
_PAUSE_SECONDS = 0.2


class CaptureStatus(NamedTuple):
    """How a connector stands."""

    state: RunState
    problem: str | None = None
    """Why it failed, in words."""
    hint: str | None = None


class Decommissioned(NamedTuple):
    """What was there and is gone now."""

    connector: bool
    slot: bool
    publication: bool
    left: str | None = None
    """What could not be reached, and is to be done later."""


class _Findings(NamedTuple):
    problems: list[Problem]
    worker: ConnectWorker | None
    config: dict[str, str] | None
    """The settings of the connector that is registered already."""
    facts: DatabaseFacts | None


@dataclass(frozen=True, slots=True)
class CaptureFeed:
    """The capture of one dataset. Each method asks those who know: the worker, the broker, the database."""

    dataset: str
    names: CaptureNames
    options: CaptureOptions
    reach: Reach

    @property
    def topics(self) -> dict[str, str]:
        """The topic of each table."""
        return {table: self.names.topic(table) for table in self.options.tables}

    def preflight(self) -> list[Problem]:
        """Everything that is missing, at once: in the database, at the broker, at the worker. Changes nothing."""
        return self._look().problems

    def register(self) -> Registered:
        """Let the connector run with these settings, and wait until it does; refused where something is missing.

        A refusal only because somebody does not answer is one that may pass (`TargetError`).
        """
        found = self._look()
        if found.problems or found.worker is None or found.facts is None:
            raise self._refusal(found.problems)
        password, renewed = self._password(found.worker)
        settings = connector_settings(
            connection_arguments(self.reach.database()),
            self.names,
            self.options,
            password=password,
            publication_is_ready=found.facts.ready_publication(self.options.tables),
        )
        before = run_state(found.worker.status(self.names.connector))
        try:
            done = self._apply(found.worker, settings, found, before, renewed=renewed)
        except RefusedError as error:
            why = failure_of(error.text)
            raise ConfigurationError(
                f"{self.dataset}: the Kafka Connect worker refuses the connector. {why.problem} Nothing was started.",
                hint=why.hint,
            ) from None
        if done != "unchanged":
            self._wait_until_running(found.worker, before)
        return done

    def status(self) -> CaptureStatus:
        """How the connector stands, by asking its worker and, where that says running, the database.

        A connector that cannot get at its database tries again and again, and its worker calls that running.
        """
        told = self.reach.worker().status(self.names.connector)
        state = run_state(told)
        if told is not None and state == "failed":
            why = failure_of(trace_of(told))
            return CaptureStatus(state, why.problem, why.hint)
        if state != "running":
            return CaptureStatus(state)
        try:
            slot = self.slot()
        except LakewrightError as error:
            return CaptureStatus("waiting", error.message, error.hint)
        if slot is not None and slot.active_pid is not None:
            return CaptureStatus("running")
        idle = "The connector does not read its slot just now: it takes the snapshot, or waits to try again."
        return CaptureStatus("waiting", idle, "Look again in some seconds; the log of the worker tells more.")

    def slot(self) -> SlotState | None:
        """The replication slot, with its lag in bytes, by asking the database; None where there is none."""
        with self.reach.asking() as session:
            return slot_state(session, self.names.slot)

    def restart(self) -> bool:
        """Start what has failed again, and wait for it; False where nothing has."""
        worker = self.reach.worker()
        if run_state(worker.status(self.names.connector)) != "failed":
            return False
        worker.restart(self.names.connector, only_failed=True)
        self._wait_until_running(worker, "failed")
        return True

    def decommission(self) -> Decommissioned:
        """Take connector, position, password, slot and publication away; the topics stay. May be repeated.

        Where the worker cannot be reached, slot and publication go all the same, and ``left`` says what stays.
        """
        gone, left = False, None
        try:
            gone = self._unregister(self.reach.worker())
        except LakewrightError as error:
            left = f"{error.message} The connector '{self.names.connector}' stays there: decommission again later."
        with self.reach.asking() as session:
            slot = drop_slot(session, self.names.slot, who=self.dataset)
            return Decommissioned(gone, slot, drop_publication(session, self.names.publication), left)

    def _look(self) -> _Findings:
        options = self.options
        cluster, problems = self.reach.broker_problems()
        worker, more = self.reach.worker_problems(cluster, needs_folder=options.password_reference is None)
        config = None if worker is None else worker.config(self.names.connector)
        facts: DatabaseFacts | None = None
        try:
            with self.reach.asking() as session:
                facts = database_facts(session, self.names, options.tables)
        except LakewrightError as error:
            more.append(self.reach.problem(f"connection {self.reach.database_name}", error))
        if facts is not None:
            more += problems_of(
                facts,
                self.names,
                snapshot=options.snapshot,
                partitions=options.partitions,
                ours=config is not None or worker is None,  # only a worker that answers can tell whose a reader is
            )
        return _Findings([*problems, *more], worker, config, facts)

    def _apply(
        self, worker: ConnectWorker, settings: Mapping[str, str], found: _Findings, state: RunState, *, renewed: bool
    ) -> Registered:
        name = self.names.connector
        if found.config is None:
            self._create(worker, settings, anew=found.facts is not None and found.facts.slot is None)
            return "created"
        if {key: value for key, value in found.config.items() if key != "name"} != settings:
            worker.configure(name, settings)
            return "updated"
        if state in ("stopped", "paused"):
            worker.resume(name)
        elif renewed or state == "failed":
            worker.restart(name, only_failed=not renewed)
        else:
            return "unchanged"
        return "restarted"

    def _create(self, worker: ConnectWorker, settings: Mapping[str, str], *, anew: bool) -> None:
        """Make the connector. Without a slot, a position that the worker still has is worth nothing: it would skip
        the snapshot, and what changed until the new slot was there.
        """
        name = self.names.connector
        if not anew:
            worker.configure(name, settings)
            return
        worker.create_stopped(name, settings)
        if worker.offsets(name):
            worker.forget_offsets(name)
        worker.resume(name)

    def _unregister(self, worker: ConnectWorker) -> bool:
        name = self.names.connector
        try:
            if not worker.stop(name):
                return False
            worker.forget_offsets(name)
            worker.delete(name)
            began = time.monotonic()
            while worker.status(name) is not None and time.monotonic() < began + _WAIT_SECONDS:
                time.sleep(_PAUSE_SECONDS)
        except RefusedError as error:
            raise TargetError(f"{self.dataset}: the Kafka Connect worker does not let go: {error.text}") from None
        if worker.password_folder is not None:
            forget_password(worker.password_folder, name)
        return True

    def _wait_until_running(self, worker: ConnectWorker, before: RunState) -> None:
        """Wait for the task; what the worker told ``before`` it was asked may be told for a moment longer."""
        began = time.monotonic()
        while True:
            told = worker.status(self.names.connector)
            state = run_state(told)
            if state == before and time.monotonic() < began + _NOTICE_SECONDS:
                time.sleep(_PAUSE_SECONDS)
                continue
            before = "absent"
            if state == "running":
                return
            if told is not None and state == "failed":
                why = failure_of(trace_of(told))
                raise TargetError(f"{self.dataset}: the connector has failed. {why.problem}", hint=why.hint)
            if time.monotonic() > began + _WAIT_SECONDS:
                raise TargetError(
                    f"{self.dataset}: the connector does not run after {_WAIT_SECONDS:.0f} s; it is {state}.",
                    hint="The log of the Kafka Connect worker tells more.",
                )
            time.sleep(_PAUSE_SECONDS)

    def _password(self, worker: ConnectWorker) -> tuple[str | None, bool]:
        """Where the worker finds the password, and whether that is another one than before."""
        if self.options.password_reference is not None:
            return self.options.password_reference, False
        values = connection_arguments(self.reach.database()).values
        if "password" not in values or worker.password_folder is None:
            return None, False
        return keep_password(worker.password_folder, self.names.connector, values["password"])

    def _refusal(self, problems: Sequence[Problem]) -> LakewrightError:
        listed = "".join(f"\n  {problem}" for problem in problems)
        count = "something is missing" if len(problems) == 1 else f"{len(problems)} things are missing"
        text = (
            f"{self.dataset}: changes of {', '.join(self.options.tables)} cannot be captured from "
            f"'{self.reach.database_name}': {count}. Nothing was started.{listed}"
        )
        silent = [one.error for one in problems if one.error and not isinstance(one.error, ConfigurationError)]
        if not silent or len(silent) < len(problems):
            return ConfigurationError(text)
        # Nothing is wrong with the set-up as far as anybody can tell: who does not answer now may do so later.
        error = TargetError(text)
        error.__cause__ = silent[0]
        return error
