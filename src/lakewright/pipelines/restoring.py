"""Before a slice of a Stateful Merger is merged: the table goes back to what it was before the slice was first made.

The receipts tell which slices the table holds and which version each of them found; the RESTORE is a commit of its own
that tells the slices which it took away. They count as not made from then on, so that a run that dies half-way leaves
nothing that the next one would not make.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lakewright.errors import LeaseHeldError, TargetError
from lakewright.failpoints import failpoint
from lakewright.model.identity import RESTORE_PART, Identity
from lakewright.model.protocols import Writer
from lakewright.model.receipts import Commit, Receipt
from lakewright.model.slices import Slice
from lakewright.patterns.idempotency.going_back import LOG, Execution, GoingBack, decide_going_back
from lakewright.pipelines.harvest import harvest, receipt_of, restored_version, unaccounted
from lakewright.pipelines.marking import withdraw_flag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.workshop import Attempt, Workshop
    from lakewright.store import Store

__all__ = ["Merges", "goes_back", "merges_of", "record_restore_outside", "restore_before"]

_NOTHING = -1
"""The version that a table goes back to when it is emptied."""
_NEWEST = 2**62


@dataclass(frozen=True, slots=True)
class Merges:
    """What receipts tell of a dataset: the merges that count, and the erasures that no restore crosses."""

    executions: tuple[Execution, ...]
    erased: tuple[int, ...]
    foreign: tuple[int, ...]
    """The commits of others that the table still holds."""

    def decide(self, slice_: Slice) -> GoingBack:
        """What making a slice would do to the table before anything is merged.

        What others had written before the first slice stays: nothing would make it again.
        """

        def held(version: int) -> bool:
            return any(one <= version for one in self.foreign)

        return decide_going_back(slice_.id, slice_, self.executions, held=held)

    def erased_after(self, version: int) -> int | None:
        """The newest commit after a version that erased rows: no restore crosses it."""
        return max((one for one in self.erased if one > version), default=None)


def goes_back(writer: Writer | None) -> bool:
    """Whether a repeated slice of this writer takes away what later slices made."""
    return bool(getattr(writer, "restores", False))


def restore_before(current: Attempt, frame: DataFrame, writer: Writer, name: str) -> int | None:
    """Runs the jobs that take the table back, where the slice repeats the past; nothing else happens otherwise.

    A table outside the lake goes back in the transaction that merges the slice: to the position that is returned.
    """
    if not goes_back(writer):
        return None
    _index_strays(current, name)
    known = merges_of(current.shop.store, name)
    decision = known.decide(current.slice)
    LOG.info("%s: %s", name, decision.reason)
    if decision.action == "go on":
        return None
    _refuse_erased(current, name, decision, known)
    outside = name in current.shop.lake.outside
    if decision.version is not None and not outside:
        _refuse_gone(current, name, decision, decision.version)
    writer.check(frame, name)  # type: ignore[attr-defined]  # whoever goes back can be asked before
    _withdraw_markers(current, name, decision)
    if outside:
        return _NOTHING if decision.version is None else decision.version
    commit = _go_back(current, name, decision)
    failpoint("went_back")
    _record(current, name, commit)
    failpoint("went_back_recorded")
    return None


def record_restore_outside(current: Attempt, name: str, commit: Commit) -> None:
    """Index that the table went back in the transaction of a commit, where it did: the ledger tells directly before."""
    if commit.version > 1:
        before = current.shop.lake.log(name).commit(commit.version - 1)
        identity = Identity.from_json(before.metadata)
        if identity is not None and identity.part == RESTORE_PART and identity.number == current.grant.number:
            _record(current, name, before)


def _index_strays(current: Attempt, name: str) -> None:
    """Commits of steps that failed after they had committed are in the table, though nobody counts them."""
    shop = current.shop
    log = shop.lake.log(name)
    strays = [
        version
        for version in unaccounted(shop.lake, shop.store, name)
        if (found := Identity.from_json(log.commit(version).metadata)) is None or found.number != current.grant.number
    ]
    if strays:
        harvest(shop.lake, shop.store, name, strays)


def _withdraw_markers(current: Attempt, name: str, decision: GoingBack) -> None:
    shop, slices = current.shop, dict.fromkeys(one.name for one in decision.undone)
    with shop.store.transaction() as conn:
        for slice_id in slices:
            shop.store.markers.withdraw(name, slice_id, run_id=shop.run.run_id, now=shop.now(), conn=conn)
    for slice_id in slices:
        withdraw_flag(shop, current.dataset, slice_id)


def _go_back(current: Attempt, name: str, decision: GoingBack) -> Commit:
    version = _NOTHING if decision.version is None else decision.version
    identity = replace(current.identity(restored_to=version), kind="restore", part=RESTORE_PART, inputs={})
    back = current.shop.lake.open(name, identity, still_mine=current.still_mine)
    commit = back.delete("true") if decision.version is None else back.restore(decision.version)
    if commit is None or not current.still_mine():
        raise LeaseHeldError(
            f"{current.dataset.name}, slice {current.slice.id}: another run has taken over. It undoes the restore that "
            "was under way.",
            name=current.dataset.name,
            owner="another run",
        )
    return commit


def _record(current: Attempt, name: str, commit: Commit) -> None:
    """From here on the slices that the table no longer holds count as not made, whatever becomes of this attempt."""
    shop = current.shop
    with shop.store.transaction() as conn:
        shop.store.receipts.add([receipt_of(name, commit)], conn=conn)
        shop.store.receipts.rolled_back(name, restored_version(commit), commit.version, conn=conn)


def merges_of(store: Store, name: str) -> Merges:
    """The same from the receipts, all of which it reads: ask once for many slices."""
    found = store.receipts.since(name, -1, _NEWEST, kinds=("data", "erase", "foreign"))
    merged = tuple(_execution(one) for one in found if one.kind == "data" and one.state != "rolled back")
    foreign = tuple(one.version for one in found if one.kind == "foreign" and one.state != "rolled back")
    return Merges(merged, tuple(one.version for one in found if one.kind == "erase"), foreign)


def _execution(receipt: Receipt) -> Execution:
    before = receipt.version if receipt.version_before is None else receipt.version_before
    return Execution(receipt.slice_id, Slice.parse(receipt.slice_id), receipt.version, before)


def _refuse_erased(current: Attempt, name: str, decision: GoingBack, known: Merges) -> None:
    back_to = _NOTHING if decision.version is None else decision.version
    if decision.version is None or not (crossed := [version for version in known.erased if version > back_to]):
        return  # an emptied table brings nothing back
    safe = [one.name for one in decision.undone if one.found >= max(crossed)]
    raise TargetError(
        f"{name}, slice {current.slice.id}: the table would go back to version {back_to}, before rows were erased "
        f"(version {max(crossed)}), and would hold them again. Nothing was changed. "
        + (f"The earliest slice that can be repeated is {safe[0]}." if safe else "No slice of it can be repeated."),
        hint="What was erased must not come back: send a corrected change instead, in a new arrival.",
    )


def _refuse_gone(current: Attempt, name: str, decision: GoingBack, version: int) -> None:
    if (why := _why_gone(current.shop, name, version)) is None:
        return
    earliest = next((one for one in decision.undone if _why_gone(current.shop, name, one.found) is None), None)
    raise TargetError(
        f"{name}, slice {current.slice.id} cannot be repeated: version {version}, which the table would go back to, is "
        f"no longer there ({why}). Nothing was changed. "
        + (
            "No slice that the table holds can be repeated."
            if earliest is None
            else f"The earliest slice that can be repeated is {earliest.name}."
        ),
        hint=f"`history` on {name} keeps versions for longer, from now on. To begin anew: give the dataset a new name.",
    )


def _why_gone(shop: Workshop, name: str, version: int) -> str | None:
    try:
        lost = shop.lake.lost_files(name, version)
    except TargetError as error:
        return error.message.partition(": ")[2].removesuffix(" Nothing was written.").rstrip(".")
    return f"{len(lost)} of its files are gone" if lost else None
