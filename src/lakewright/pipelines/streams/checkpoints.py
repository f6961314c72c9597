"""A stream's checkpoint, held against what the log tells before its query starts.

Guarantee:
    A stream whose checkpoint is gone, older than its table, or damaged does not start. Spark alone would begin anew at
    micro-batch 0 without a word; as the table already has a micro-batch of that number, new records would be passed
    over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.streams import Generation
from lakewright.patterns.error_management.checkpoint_errors import explain_checkpoint_error, is_about_state
from lakewright.patterns.error_management.checkpoint_files import CheckpointState, read_checkpoint
from lakewright.patterns.error_management.state_note import RENAMED, refuse_other_state
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.streams.skew import Standing, last_delivered
from lakewright.pipelines.workshop import Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["checkpoint_state", "explain_state_error", "refuse_lost_checkpoint", "refuse_state_of_others"]


def refuse_lost_checkpoint(shop: Workshop, generation: Generation, place: str, standing: Standing) -> None:
    """Refuse a checkpoint that cannot be read, or knows less than the log; reads its newest files.

    A stream that has committed nothing yet is not looked at: there is nothing that it could pass over.
    """
    reached = _reached(shop, generation, standing)
    if reached is None:
        return
    name, dataset = generation.dataset, shop.graph[generation.dataset]
    state = checkpoint_state(shop, dataset, place)
    # Spark notes what a micro-batch reads before it begins: one that was committed is always noted.
    known = -1 if state is None else state.batch
    if known >= reached:
        return
    found = "is empty or gone" if state is None else f"knows of micro-batches up to {known} only"
    raise InputError(
        f"{name}: its checkpoint {place} {found}, and its table holds micro-batch {reached} of it (generation "
        f"{generation.number}). Begun anew, the stream would pass over new records as if it had them. Nothing was read "
        "or written.",
        hint=f"Put the folder back as it was, and a file {generation.number}.moved that lay beside it in the lake. "
        f"Or else: {_how_to_go_on(dataset)}",
    )


def checkpoint_state(shop: Workshop, dataset: Dataset, place: str) -> CheckpointState | None:
    """How far a checkpoint says that its stream is; refused where one of its newest files cannot be read."""
    try:
        return read_checkpoint(shop.lake.session(), place)
    except InputError as error:
        message = error.message.removeprefix("Checkpointer: ")
        raise InputError(
            f"{dataset.name}: {message}", hint=f"Bring the file back from a copy. Or else: {_how_to_go_on(dataset)}"
        ) from None


def refuse_state_of_others(frame: DataFrame, dataset: Dataset, place: str) -> None:
    """Refuse a state that was kept by other keys than the dataset's guards and joins have now."""
    if not dataset.remembers:
        return
    try:
        refuse_other_state(frame, place)
    except ConfigurationError as error:
        message = error.message.removeprefix("Checkpointer: ")
        raise ConfigurationError(f"{dataset.name}: {message}", hint=f"{_how_to_go_on(dataset)} {RENAMED}") from None


def explain_state_error(error: BaseException, dataset: Dataset, place: str) -> Exception | None:
    """What Spark says of a state that it cannot use, told as what to do about it; None for anything else."""
    if not is_about_state(error):
        return None
    explained = explain_checkpoint_error(error, place)
    assert explained is not None
    return type(explained)(
        f"{dataset.name}: {explained.message.removeprefix('Checkpointer: ')}", hint=_how_to_go_on(dataset)
    )


def _how_to_go_on(dataset: Dataset) -> str:
    """What to do where a checkpoint is lost for good."""
    begin = "Begin a new checkpoint: `lakewright stream rewind"
    if not dataset.is_source:
        return f"{begin} {dataset.name} --all` reads its input again from the beginning."
    return (
        f"{begin} {dataset.name} --to <time>` reads again what came since, and takes it out of the table first; "
        "`--all` does so from the beginning, as far as the source still has it."
    )


def _reached(shop: Workshop, generation: Generation, standing: Standing) -> int | None:
    """The last of Spark's micro-batches that this generation is known to have begun; None: none."""
    told = last_delivered(shop.lake, generation.dataset, generation.number)
    # The last batch in the log may be one of buffered rows alone, which Spark knows nothing of.
    found = [] if told is None else [told - standing.drains]
    if generation.progress is not None:
        # What an earlier release kept of an idle stream is the number of the micro-batch that it waited for.
        found.append(generation.progress.batch - 1)
    reached = max(found, default=-1)
    return None if reached < 0 else reached
