"""Replicas: datasets that are copies of another one in another place, each slice of them proven after it is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewright.connectors.folder_copy import FolderCopy
from lakewright.errors import ConfigurationError, TargetError
from lakewright.model.contracts import Contract
from lakewright.model.outside import Destination
from lakewright.model.protocols import Load, Replicator, Source
from lakewright.model.receipts import Commit
from lakewright.patterns.ingestion.full_loader import FullLoader
from lakewright.patterns.ingestion.passthrough_replicator import PassthroughReplicator
from lakewright.pipelines.harvest import receipt_of
from lakewright.pipelines.settle import put_back

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.lake.tables import AttemptTable
    from lakewright.pipelines.inputs import InputFrame
    from lakewright.pipelines.workshop import Attempt

__all__ = [
    "check_replica",
    "copied_rows",
    "copy_of_source",
    "drop_lost_columns",
    "placed_at",
    "prove_copy",
    "refuse_pointless",
]


def check_replica(name: str, replica: Any, location: Any) -> None:
    """Refuse what cannot be a replica of a dataset."""
    if not isinstance(replica, Replicator):
        raise ConfigurationError(
            f"{name}: {replica!r} is no replicator. Use PassthroughReplicator() or TransformationReplicator(...)."
        )
    if not location:
        raise ConfigurationError(f"{name}: say where the copy lies: to='/mnt/staging/users'.")
    if not isinstance(location, str):
        raise ConfigurationError(
            f"{name}: a dataset is copied to a folder, as a Delta table, and not to {location!r}.",
            hint="Say to='/mnt/staging/users'; a dataset that is sent to a topic has into=KafkaMessages(...).",
        )
    if getattr(replica, "deleted", "keep") == "delete":
        raise ConfigurationError(
            f'{name}: the copy of a dataset follows it by itself. Leave deleted="delete" out: it is for files.'
        )


def refuse_pointless(name: str, original: str | Source, **options: object) -> None:
    """Refuse options that would say nothing of this kind of original."""
    given = [option for option, value in options.items() if value is not None]
    if isinstance(original, str) and "contract" in given:
        raise ConfigurationError(
            f"{name}: what may leave is said by the contract of {original} itself. Leave contract out."
        )
    if not isinstance(original, str) and (slices := [one for one in given if one != "contract"]):
        raise ConfigurationError(f"{name}: files and messages are copied as they arrive. Leave {slices[0]} out.")


def copy_of_source(
    name: str, source: Source, replica: Any, to: Any, contract: Contract | None
) -> tuple[Destination, Load | None]:
    """Where a source is copied to as it is, past the lake, and how it is loaded for that; refused where it cannot be,
    or may not leave.
    """
    if not isinstance(replica, PassthroughReplicator):
        check_replica(name, replica, "elsewhere")
        raise ConfigurationError(
            f"{name}: files and messages are copied as they are, and {type(replica).__name__} alters rows.",
            hint="Let the source come into the lake, and replicate that dataset.",
        )
    replica.check_contract(name, contract)
    mirror = replica.deleted == "delete"
    if isinstance(to, str) and to and not hasattr(source, "topic"):
        to = FolderCopy(to, mirror)
    if not isinstance(to, Destination) or not getattr(to, "adds_arrivals", False):
        raise ConfigurationError(
            f"{name}: {to!r} is no place that {type(source).__name__} can be copied to as it is.",
            hint="Files go to a folder (to='/mnt/staging/visits'), a topic to TopicCopy('broker', 'visits_copy').",
        )
    if not mirror:
        return to, None
    if not isinstance(to, FolderCopy):
        raise ConfigurationError(f'{name}: a topic takes nothing back. Leave deleted="delete" out: it is for files.')
    if (part := getattr(source, "takes_part", None)) is not None:
        raise ConfigurationError(
            f"{name}: a mirror holds all that its source holds, but of {type(source).__name__} {part}.",
            hint='Leave the limit out, or deleted="delete".',
        )
    return to, FullLoader()  # each arrival is the whole folder, if anything in it differs


def copied_rows(current: Attempt, inputs: Sequence[InputFrame]) -> DataFrame:
    """What a replica holds of its original; lazy."""
    assert current.dataset.replica is not None
    return current.dataset.replica.copy(inputs[0].frame, _contract(current))


def placed_at(location: str, project: Path) -> str:
    """Where a table lies: a path is relative to the project, a URI stays as it is."""
    return location if "://" in location else str((project / location).resolve())


def prove_copy(current: Attempt, inputs: Sequence[InputFrame], commit: Commit) -> str | None:
    """Runs the jobs that compare a slice of a replica with its original; one that differs is put back."""
    dataset, shop = current.dataset, current.shop
    if dataset.replica is None:
        return None
    name = dataset.name
    copied = shop.lake.read(name, version=commit.version, system_columns=True).where(current.slice.predicate())
    what = f"{name}, slice {current.slice.id}"
    try:
        return dataset.replica.prove(inputs[0].frame, copied, _contract(current), what=what)
    except TargetError as error:
        undo = put_back(shop, dataset, current.identity(), commit)
        wrong = [one for one in (commit, undo) if one is not None]
        shop.store.receipts.add([receipt_of(name, one, kind="maintenance") for one in wrong])
        current.unsettled = False
        raise TargetError(f"{error.message} The slice was put back as it was.", hint=error.hint) from None


def drop_lost_columns(current: Attempt, table: AttemptTable, frame: DataFrame) -> None:
    """Runs a job that takes columns that may no longer leave out of a whole replica, in a commit of its own."""
    if current.dataset.replica is None or not table.exists():
        return
    if lost := [name for name in table.schema().names if name not in frame.columns]:
        table.drop_columns(lost)


def _contract(current: Attempt) -> Contract | None:
    """That of the original."""
    original = current.shop.graph.datasets.get(current.dataset.inputs[0].dataset)
    return None if original is None else original.contract
