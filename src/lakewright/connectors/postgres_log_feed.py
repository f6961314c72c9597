"""The slot and the publication of a log that is read without a broker: what they lack, how they stand, their end."""

from __future__ import annotations

from dataclasses import dataclass

from lakewright.connectors.cdc_facts import database_facts
from lakewright.connectors.cdc_feed import CaptureStatus, Decommissioned
from lakewright.connectors.cdc_names import CaptureNames
from lakewright.connectors.cdc_preflight import Problem, problems_of
from lakewright.connectors.cdc_reach import Reach
from lakewright.connectors.cdc_slot import SlotState, drop_publication, drop_slot, slot_state
from lakewright.connectors.postgres_connection import Session
from lakewright.errors import ConfigurationError

__all__ = ["LogFeed"]


@dataclass(frozen=True, slots=True)
class LogFeed:
    """What a ``PostgresLog`` has to do with its database. Each method asks it."""

    dataset: str
    names: CaptureNames
    table: str
    snapshot: bool
    reach: Reach

    def preflight(self) -> list[Problem]:
        """Everything that is missing in the database, at once. Changes nothing."""
        with self.reach.asking() as session:
            return self.problems(session)

    def problems(self, session: Session) -> list[Problem]:
        facts = database_facts(session, self.names, [self.table])
        found = problems_of(facts, self.names, snapshot=self.snapshot, partitions=1, ours=False)
        return [one for one in found if one.name != "max_wal_senders"]  # plain SQL needs none

    def refuse_problems(self, session: Session) -> None:
        """Refuse where something is missing, with the statement that mends each."""
        problems = self.problems(session)
        if not problems:
            return
        count = "something is missing" if len(problems) == 1 else f"{len(problems)} things are missing"
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise ConfigurationError(
            f"{self.dataset}: the log of '{self.reach.database_name}' cannot be read for {self.table}: {count}. "
            f"Nothing was started.{listed}"
        )

    def slot(self) -> SlotState | None:
        """The replication slot, with its lag in bytes; None where there is none."""
        with self.reach.asking() as session:
            return slot_state(session, self.names.slot)

    def status(self) -> CaptureStatus:
        """Whether the slot is there, and of use."""
        slot = self.slot()
        if slot is None:
            return CaptureStatus("absent")
        if slot.lost:
            return CaptureStatus("failed", f"The replication slot '{slot.name}' is lost.", 'if_lost="snapshot"')
        return CaptureStatus("running")

    def decommission(self) -> Decommissioned:
        """Take slot and publication away. May be repeated."""
        with self.reach.asking() as session:
            slot = drop_slot(session, self.names.slot, who=self.dataset)
            return Decommissioned(False, slot, drop_publication(session, self.names.publication))
