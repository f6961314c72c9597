"""Looking after tables: joining small files and deleting those no longer used, beside whoever reads and writes.

Guarantee:
    Rows stay as they are, and nobody becomes stale: a commit carries an identity of the kind "maintenance", and whoever
    finds one without a receipt indexes it as such. A dataset that a step writes to just now is left for the next time,
    and so is one whose files somebody else replaced meanwhile; no writer waits for a lease. Tables of other targets are
    never touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from lakewright.errors import (
    ConfigurationError,
    InterruptedRun,
    LakewrightError,
    LeaseHeldError,
    TargetError,
    name_and_words,
)
from lakewright.failpoints import failpoint
from lakewright.lake.delta_errors import is_transient
from lakewright.lake.interrupts import add_tag, clear_tags
from lakewright.lake.side_tables import DEAD_LETTER_LIFE, DEAD_LETTERS, LATE_ROWS
from lakewright.model.identity import Identity
from lakewright.model.maintenance import MaintainsItself, Maintenance, MaintenanceContext
from lakewright.model.receipts import Commit
from lakewright.model.slices import WHOLE
from lakewright.model.times import parse_duration
from lakewright.patterns.ingestion.compactor import Compactor, optimize_settings
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.harvest import pin, receipt_of
from lakewright.pipelines.old_files import delete_old_files
from lakewright.pipelines.workshop import Workshop
from lakewright.store import WHOLE_DATASET

__all__ = ["MaintenanceSummary", "TableOutcome", "choose_tables", "compact_one", "maintain_tables"]

_ATTEMPTS = 3
_SIDE_TABLES = (DEAD_LETTERS, DEAD_LETTER_LIFE, LATE_ROWS)


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """How one table was looked after. ``left`` is not now, but the next time."""

    dataset: str
    state: Literal["done", "nothing", "left", "failed"]
    reason: str
    files_before: int | None = None
    files_after: int | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None
    version: int | None = None
    deleted_files: int | None = None
    deleted_bytes: int | None = None
    error: BaseException | None = None


@dataclass
class MaintenanceSummary:
    """What `lakewright maintain` did, or would do."""

    dry_run: bool
    outcomes: list[TableOutcome] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return InterruptedRun.exit_code
        return 1 if any(one.state == "failed" for one in self.outcomes) else 0

    def closing_line(self) -> str:
        """For people: `Done in 3.1 s. 2 maintained, 4 as they were, 0 left for the next time, 0 failed.`"""
        count = {
            state: sum(one.state == state for one in self.outcomes) for state in ("done", "nothing", "left", "failed")
        }
        word = "Interrupted" if self.interrupted else "Failed" if count["failed"] else "Done"
        done = f"{count['done']} to maintain" if self.dry_run else f"{count['done']} maintained"
        return (
            f"{word} in {self.seconds:.1f} s. {done}, {count['nothing']} as they were, {count['left']} left for the "
            f"next time, {count['failed']} failed."
        )


def choose_tables(
    shop: Workshop, names: Sequence[str], *, selected: bool, everything: bool, or_none: bool = False
) -> dict[str, Maintenance]:
    """The tables to look after, with their policy: of the datasets named, those that declare one, or all.

    There may be none only where something else is to be done (``or_none``).
    """
    chosen: dict[str, Maintenance] = {}
    for name in names:
        dataset = shop.graph[name]
        asks = getattr(dataset.into, "asks_for_maintenance", False)
        policy = dataset.maintenance or (Compactor() if everything or asks else None)
        if policy is not None and name not in shop.lake.borrowed:
            # The private outputs of a step are looked after with it.
            chosen |= dict.fromkeys([*dataset.outputs, name], policy)
    if everything and not selected:
        chosen |= dict.fromkeys(_SIDE_TABLES, Compactor())
    if not chosen and not everything and not or_none:
        what = f"Of {', '.join(names)} no dataset declares" if selected else "No dataset of this project declares"
        raise ConfigurationError(
            f"{what} how it is maintained. Nothing was started.",
            hint="Give it maintenance=Compactor(); or `lakewright maintain --all` looks after every table by defaults.",
        )
    return chosen


def maintain_tables(
    shop: Workshop, chosen: dict[str, Maintenance], *, dry_run: bool = False, vacuum: bool = True
) -> MaintenanceSummary:
    """Runs the jobs that look after the tables, one after the other; one that fails does not hold up the next."""
    summary, began = MaintenanceSummary(dry_run), time.monotonic()
    for name, policy in chosen.items():
        if shop.stopping():
            break
        outcome = _maintain(shop, name, policy, dry_run=dry_run, vacuum=vacuum)
        if outcome is not None:
            summary.outcomes.append(outcome)
    summary.interrupted = shop.stopping()
    summary.seconds = time.monotonic() - began
    return summary


def compact_one(shop: Workshop, dataset: Dataset) -> list[TableOutcome]:
    """At the end of a run that wrote to a dataset: join its files, and those of its private outputs."""
    assert dataset.maintenance is not None
    names = [*dataset.outputs, dataset.name]
    found = [_maintain(shop, name, dataset.maintenance, dry_run=False, vacuum=False) for name in names]
    return [one for one in found if one is not None]


def _maintain(shop: Workshop, name: str, policy: Maintenance, *, dry_run: bool, vacuum: bool) -> TableOutcome | None:
    """One table; None where there is none yet. An error comes back as an outcome."""
    owner = shop.graph.owners.get(name)
    dataset = None if owner is None else shop.graph[owner]
    try:
        if name in shop.lake.outside:
            return _look_after_outside(shop, name, dry_run=dry_run)
        if not shop.lake.delta_log(name).exists():
            return None
        with _only_maintainer(shop, name):
            return _look_after(shop, name, dataset, policy, dry_run=dry_run, vacuum=vacuum)
    except LeaseHeldError as error:
        return TableOutcome(name, "left", error.message)
    except Exception as error:
        if is_transient(error):
            return TableOutcome(name, "left", f"somebody else wrote to it at the same time ({name_and_words(error)})")
        explained = error if isinstance(error, LakewrightError) else TargetError(f"{name}: {name_and_words(error)}")
        return TableOutcome(name, "failed", str(explained), error=error)


def _look_after(
    shop: Workshop, name: str, dataset: Dataset | None, policy: Maintenance, *, dry_run: bool, vacuum: bool
) -> TableOutcome:
    if owner := _writer_of(shop, dataset):
        return TableOutcome(name, "left", f"{owner} writes to it just now")
    if dataset is not None and not dry_run:
        pin(shop.lake, shop.store, name)  # what an earlier maintenance left without a receipt is accounted for first
    outcome = _compact(shop, name, policy, dry_run=dry_run)
    if not vacuum:
        return outcome
    history = None if dataset is None or dataset.history is None else parse_duration(dataset.history)
    deleted = delete_old_files(shop, name, policy.keeps(history), unsafe=policy.unsafe, dry_run=dry_run)
    if deleted is None:
        return outcome
    return replace(outcome, state="done", deleted_files=deleted[0], deleted_bytes=deleted[1])


def _compact(shop: Workshop, name: str, policy: Maintenance, *, dry_run: bool) -> TableOutcome:
    context = MaintenanceContext(name, shop.lake.resolve(name), shop.lake.session, _compacting(shop, name), dry_run)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            done = policy.run(context)
            break
        except Exception as error:
            # Whoever replaced the files first has won; what is left of them may be joined by another look.
            if attempt == _ATTEMPTS or shop.stopping() or not is_transient(error):
                raise
            shop.lake.renew_session()
    return TableOutcome(
        name,
        "done" if done.due else "nothing",
        done.reason,
        done.files_before,
        done.files_after,
        done.bytes_before,
        done.bytes_after,
        done.version,
    )


def _compacting(shop: Workshop, name: str) -> Callable[[str | None, int], Commit | None]:
    """How a policy joins files: a commit with identity, and its receipt at once."""

    def compact(where: str | None, target_bytes: int) -> Commit | None:
        session = shop.lake.session()
        add_tag(session, shop.run.run_id)
        try:
            table = shop.lake.open(name, _identity(shop, name, where))
            commit = table.optimize(where=where, settings=optimize_settings(target_bytes))
        finally:
            clear_tags(session)
        failpoint("compacted")
        if commit is not None and name in shop.graph.owners:
            shop.store.receipts.add([receipt_of(name, commit)])
        return commit

    return compact


def _identity(shop: Workshop, name: str, where: str | None) -> Identity:
    # Without a number of the dataset's own: it fences nobody, and must not look newer than a step that is under way.
    return Identity(
        dataset=name,
        slice_id=WHOLE.id,
        number=0,
        run_id=shop.run.run_id,
        kind="maintenance",
        part="compact",
        run_time=shop.run.time.isoformat(),
        details={} if where is None else {"where": where},
    )


@contextmanager
def _only_maintainer(shop: Workshop, name: str) -> Iterator[None]:
    """Two who look after one table would only undo each other's work. Writers take no notice of this lease."""
    lease = f"maintenance:{name}"
    try:
        grant = shop.store.leases.acquire(
            lease, WHOLE_DATASET, owner_id=shop.owner_id, run_id=shop.run.run_id, now=shop.now()
        )
    except LeaseHeldError as error:
        raise LeaseHeldError("another process looks after it just now", name=name, owner=error.owner) from None
    try:
        yield
    finally:
        shop.store.leases.release(lease, WHOLE_DATASET, grant.number)


def _writer_of(shop: Workshop, dataset: Dataset | None) -> str | None:
    """The living run whose step writes to a batch dataset just now. A stream repeats a micro-batch by itself."""
    if dataset is None or dataset.is_stream:
        return None
    for lease in shop.store.leases.held(shop.now()):
        if lease.dataset == dataset.name and lease.alive and lease.owner_id != shop.owner_id:
            return f"run {lease.run_id}" if lease.run_id else str(lease.owner or lease.owner_id)
    return None


def _look_after_outside(shop: Workshop, name: str, *, dry_run: bool) -> TableOutcome:
    into = shop.graph[name].into
    if not isinstance(into, MaintainsItself):
        return TableOutcome(name, "nothing", "goes outside the lake, where it is looked after by others")
    if owner := _writer_of(shop, shop.graph[name]):
        return TableOutcome(name, "left", f"{owner} writes to it just now")
    done, said = into.maintain(name, connections=shop.connections, dry_run=dry_run, now=shop.run.time)
    return TableOutcome(name, "done" if done else "nothing", said)
