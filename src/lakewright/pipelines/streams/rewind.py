"""Rewinding a stream: a new generation that reads again from an earlier place, without a record twice.

Guarantee:
    After a rewind and a run each record is there once, whenever either was killed. The generation and its beginning
    are recorded first; then what will be read again is deleted, in a commit that tells the generation; only then does
    the new checkpoint begin. What a paused process of the old generation still writes is skipped by Delta.
    Rows that the source could not give again are never deleted unasked: where there are some, nothing is changed.
Consequences:
    - Whole micro-batches are read again: a rewind goes back to the beginning of the one that holds the moment.
    - Rows must tell their place at the source; a stream that merges by key, or follows another dataset, is read again
      from its beginning only. A merge guarded by position deletes nothing; any other one begins with an empty table.
    - A stream below that adds rows must be rewound first, as a whole: it could take none of them back. A batch dataset
      that follows micro-batches does so by itself; one that merges into what it has made of them cannot.
    - Whoever reads the dataset slice by slice becomes stale twice: by the deletion and by what comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from lakewright.errors import ConfigurationError, InputError
from lakewright.failpoints import failpoint
from lakewright.lake.log import own_commits
from lakewright.lake.side_tables import DEAD_LETTERS, SIDE_TABLES
from lakewright.model.arrivals import Window
from lakewright.model.identity import REWIND_PART, Identity
from lakewright.model.references import Previous
from lakewright.model.slices import ARRIVAL_COLUMN, WHOLE, arrival_slice
from lakewright.model.streams import FIRST_GENERATION, Generation, LostRows
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.harvest import receipt_of
from lakewright.pipelines.streams.harvest import harvest_stream
from lakewright.pipelines.streams.letters import WITHDRAWN
from lakewright.pipelines.streams.moving import checkpoint_has_begun
from lakewright.pipelines.streams.skew import PART, buffer_of, waiting_rows
from lakewright.pipelines.take import source_context
from lakewright.pipelines.workshop import Attempt, Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "IfRowsLost",
    "RewindSummary",
    "fence",
    "fence_of",
    "go_on_after_restore",
    "go_on_with_rewind",
    "rewind_stream",
    "was_restored",
]

IfRowsLost = Literal["refuse", "keep", "delete"]
"""What a rewind does with rows that the source could not give again."""

_LAST_BATCH = 2**62
"""Higher than any batch: after this, Delta skips whatever the old generation still sends."""
_FOLLOWING = "following"
"""In a fence after a restore: the generation that reads on from there."""
_GIVEN_UP = "rows_lost"
"""In a generation's start: that rows may be deleted which the source could not give again."""


@dataclass(frozen=True, slots=True)
class RewindSummary:
    """What a rewind did, or would do."""

    dataset: str
    generation: int
    first: int | None
    """The first arrival that is read again."""
    start: Window | None
    deleted: int | None
    consumers: tuple[str, ...]
    rows_lost: int = 0
    """Rows that the source could not give again."""
    lost: IfRowsLost = "refuse"
    """What is done with these."""
    lost_waiting: int = 0
    """Of these, rows that waited in the skew buffer: they were never in the dataset."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The first arrival that is read again, where it began, and how many rows the source could not give again."""

    first: int | None
    start: Window | None = None
    rows_lost: int = 0
    lost_waiting: int = 0


def rewind_stream(
    shop: Workshop,
    dataset: Dataset,
    *,
    to: datetime | None = None,
    lost: IfRowsLost = "refuse",
    dry_run: bool = False,
) -> RewindSummary:
    """Runs the job that deletes what will be read again; the next run, or continuous stream, reads it.

    Without ``to`` the stream begins anew, where its source says, or before that where it began. Where the source no
    longer holds what would be deleted, nothing is changed, unless ``lost`` says what to do with these rows.
    """
    if lost not in get_args(IfRowsLost):
        raise ConfigurationError(
            f"{dataset.name}: lost is one of {', '.join(map(repr, get_args(IfRowsLost)))}, not {lost!r}."
        )
    last = shop.store.streams.current(dataset.name)
    following = FIRST_GENERATION if last is None else last.number + 1 + was_restored(shop, dataset)
    consumers = tuple(sorted(shop.graph.downstream(dataset.name)))
    _refuse_streams_below(shop, dataset, consumers)
    _refuse_states_below(shop, dataset, consumers)
    plan = _plan(shop, dataset, to, lost)
    if dry_run:
        return _summary(dataset, following, plan, None, consumers, lost)
    when = "the beginning" if to is None else f"{to:%Y-%m-%d %H:%M:%S} UTC"
    with shop.attempt(dataset, WHOLE, attempt=1, reason=f"rewind to {when}", whole=True) as current:
        harvest_stream(current)
        # Settled first: the generation of this rewind is the newest then, and has nothing else to do.
        go_on_after_restore(current)
        # Asked again under the lease: meanwhile the stream may have read on.
        plan = _plan(shop, dataset, to, lost)
        with current.recording() as conn:
            begun = shop.store.streams.begin(
                dataset.name, start=plan.start, first=plan.first, run_id=shop.run.run_id, now=shop.now(), conn=conn
            )
        failpoint("generation_recorded")
        deleted = go_on_with_rewind(current)
        current.finish(())
    return _summary(dataset, begun.number, plan, deleted, consumers, lost)


def _summary(
    dataset: Dataset,
    generation: int,
    plan: _Plan,
    deleted: int | None,
    consumers: tuple[str, ...],
    lost: IfRowsLost,
) -> RewindSummary:
    return RewindSummary(
        dataset.name,
        generation,
        plan.first,
        plan.start,
        deleted,
        consumers,
        plan.rows_lost,
        lost,
        plan.lost_waiting,
    )


def go_on_after_restore(current: Attempt) -> None:
    """Begin a generation that reads on from where a restored table was then, unless the log tells of one.

    The fence of the old one tells the new one. Whoever finds it told and not recorded died in between.
    """
    shop, dataset = current.shop, current.dataset
    generation = shop.store.streams.current(dataset.name)
    if generation is None or not was_restored(shop, dataset):
        return
    if not _is_fence(_last_telling(shop, dataset)):
        fence(current, generation.number, **{_FOLLOWING: generation.number + 1})
        failpoint("restore_fenced")
    source: Any = dataset.source
    rows = shop.lake.read(dataset.name, system_columns=True)
    _refuse_another_source(shop, dataset)
    start = source.position_after(source_context(shop, dataset), rows, generation.start)
    with current.recording() as conn:
        shop.store.streams.begin(dataset.name, start=start, run_id=shop.run.run_id, now=shop.now(), conn=conn)


def go_on_with_rewind(current: Attempt) -> int | None:
    """Runs the job that deletes what the newest generation reads again, unless something tells that it was done."""
    shop, dataset = current.shop, current.dataset
    generation = shop.store.streams.current(dataset.name)
    if generation is None or generation.first is None or not shop.lake.log(dataset.name).exists():
        return None
    # A rewind that died before it had fenced may have been followed by another one.
    given_up = _to_fence(shop, dataset, generation)
    if given_up is None:
        return None
    for number in given_up:
        fence(current, number)
    failpoint("fenced")
    _refuse_what_went_since(shop, dataset, generation)
    # Named after the first arrival that goes: this, and every later one, counts no longer.
    identity = replace(
        current.identity(rewind=generation.number, start=None if generation.start is None else dict(generation.start)),
        kind="rewind",
        part=REWIND_PART,
        slice_id=arrival_slice(generation.first).id,
    )
    # Sessions are built anew as a whole: another order of arrival may give others, with other ids. A table that is
    # merged into does not tell when its rows came.
    again = "true" if dataset.writer is not None else f"{ARRIVAL_COLUMN} >= {generation.first}"
    commit = shop.lake.open(dataset.name, identity, still_mine=current.still_mine).delete(again)
    failpoint("rewound")
    harvest_stream(current)
    return None if commit is None else commit.metrics.get("numDeletedRows", 0)


def _to_fence(shop: Workshop, dataset: Dataset, generation: Generation) -> range | None:
    """The generations that are to be fenced before what the newest one reads again is deleted; None: that is done."""
    told = _told(_last_telling(shop, dataset))
    # A log that was cleaned since may tell of no generation any more: one that has read anything had deleted before.
    if told >= generation.number or generation.progress is not None or checkpoint_has_begun(shop, dataset.name):
        return None
    return range(max(told, FIRST_GENERATION), generation.number)


def was_restored(shop: Workshop, dataset: Dataset) -> bool:
    """Whether a stream's table was rolled back, and no generation reads on from there yet."""
    last = _last_telling(shop, dataset)
    if last is None or last.kind == "restore":
        return last is not None
    generation = shop.store.streams.current(dataset.name)
    return _is_fence(last) and generation is not None and _told(last) > generation.number


def _last_telling(shop: Workshop, dataset: Dataset) -> Identity | None:
    """The last commit that tells of a generation: a deletion, a micro-batch, a restore, or the fence after that."""
    for _, identity in own_commits(shop.lake.log(dataset.name)):
        if identity.kind == "restore" or _told(identity):
            return identity
    return None


def _told(identity: Identity | None) -> int:
    """The generation that a commit tells of: of a fence, the one that follows a restore; 0 where there is none."""
    if identity is None:
        return 0
    details = identity.details
    told = details.get(_FOLLOWING) if _is_fence(identity) else details.get("rewind", details.get("generation"))
    return told if isinstance(told, int) else 0


def _is_fence(identity: Identity | None) -> bool:
    return identity is not None and identity.kind == "fence"


def fence_of(shop: Workshop, dataset: Dataset, generation: int) -> Identity | None:
    """The commit by which Delta skips whatever a generation still writes, so that another one has to go on."""
    if not shop.lake.log(dataset.name).exists():
        return None
    for _, identity in own_commits(shop.lake.log(dataset.name)):
        if identity.kind == "fence":
            if identity.slice_id == f"generation-{generation}":
                return identity
        elif isinstance(identity.details.get("rewind", identity.details.get("generation")), int):
            return None
    return None


def fence(current: Attempt, generation: int, **told: object) -> None:
    """Commit that Delta skips whatever a generation still writes, into its buffer and what it sets aside too."""
    lake, name = current.shop.lake, current.dataset.name
    identity = replace(
        current.identity(generation=generation, batch=_LAST_BATCH, **told),
        kind="fence",
        slice_id=f"generation-{generation}",
    )
    own = lake.open(name, identity, still_mine=current.still_mine)
    # Where no micro-batch was ever committed there is no table yet, and none of the old generation counts.
    commit = own.touch() if own.exists() else None
    if commit is not None:
        current.shop.store.receipts.add([receipt_of(name, commit)])
    beside = [(buffer_of(name), identity.as_part(PART))]
    if any(given.guards for given in current.dataset.inputs):
        beside += [(table, identity.as_judge(part)) for part, table in SIDE_TABLES.items()]
        beside.append((DEAD_LETTERS, identity.as_judge(WITHDRAWN)))
    for table, part in beside:
        opened = lake.open(table, part, still_mine=current.still_mine)
        if opened.exists():
            opened.touch()


def _plan(shop: Workshop, dataset: Dataset, to: datetime | None, lost: IfRowsLost) -> _Plan:
    """What is read again, and from where; refused where that would delete rows for good, unasked."""
    if not dataset.is_source:
        if to is not None:
            raise ConfigurationError(
                f"{dataset.name} follows another dataset, whose rows do not tell when they came. Nothing was changed.",
                hint=f"Rewind it as a whole: `lakewright stream rewind {dataset.name} --all`.",
            )
        _refuse_missing_input(shop, dataset)
        guarded = dataset.writer is not None and getattr(dataset.writer, "by_position", False)
        return _Plan(None if guarded else 0)
    source: Any = dataset.source
    context = source_context(shop, dataset)
    known = shop.store.streams.current(dataset.name)
    begun = None if known is None else known.start
    # A stream that was rolled back has a new generation by then, which has read nothing of what went.
    reached = None if known is None or known.progress is None else known.progress.offsets
    rows = _rows(shop, dataset)
    if to is None:
        # Read as a whole it may be another topic than before, which is noted here, as at a first beginning.
        first, start = 0, source.beginning_again(context, rows, begun)
    else:
        _refuse_another_source(shop, dataset)
        found = None if rows is None else source.first_batch_since(context, rows, to, begun, reached)
        if found is None:
            raise ConfigurationError(
                f"{dataset.name} has read nothing since {to:%Y-%m-%d %H:%M:%S} UTC, so there is nothing to read again. "
                "Nothing was changed."
            )
        first, start = found
    waiting = None if known is None else _lost_from_buffer(shop, dataset, known)
    if waiting is not None and lost != "delete":
        raise InputError(
            f"{dataset.name}: rows wait in its skew buffer that a rewind would have to read again, but {waiting.why}. "
            "Nothing was changed.",
            hint=_given_up_already(dataset)
            if known is None or waiting_rows(shop.lake, dataset.name, known.number) is None
            else f"Run it first, which delivers them: `lakewright run --select {dataset.name}`.",
        )
    gone = None if rows is None else source.lost_rows(context, rows.where(f"{ARRIVAL_COLUMN} >= {first}"), begun)
    if lost == "delete" and (gone is not None or waiting is not None):
        # It begins at what is held: the rest is given up on purpose.
        start = source.past_lost(context, None, start, None)
        deleted, never_delivered = (0 if one is None else one.rows for one in (gone, waiting))
        return _Plan(first, {**start, _GIVEN_UP: lost}, deleted + never_delivered, never_delivered)
    if rows is None or gone is None:
        return _Plan(first, start)
    held = None if gone.until is None else source.batch_after(context, rows, gone.until, begun, reached)
    if lost == "refuse" or held is None:
        moment = None if held is None else source.moment_of(context, rows, *held)
        raise _would_lose(dataset, gone, lost, held is not None, moment)
    return _Plan(held[0], held[1], gone.rows)


def _rows(shop: Workshop, dataset: Dataset) -> DataFrame | None:
    return shop.lake.read(dataset.name, system_columns=True) if shop.lake.log(dataset.name).exists() else None


def _lost_from_buffer(shop: Workshop, dataset: Dataset, known: Generation) -> LostRows | None:
    """A new generation begins with an empty skew buffer: what of it could not be read again.

    Where a rewind was cut short, what waits is that of the generation before it, also if that is fenced by now.
    """
    source: Any = dataset.source
    waiting = waiting_rows(shop.lake, dataset.name, known.number)
    before = None if waiting is not None else _to_fence(shop, dataset, known)
    for number in reversed(before or ()):
        if (waiting := waiting_rows(shop.lake, dataset.name, number, given_up=True)) is not None:
            break
    if waiting is None:
        return None
    return cast("LostRows | None", source.lost_rows(source_context(shop, dataset), waiting, known.start))


def _given_up_already(dataset: Dataset) -> str:
    return (
        "The rewind that was cut short has given them up, so no run delivers them. Let the other rows come again: "
        f"`lakewright stream rewind {dataset.name} --all --lost delete`."
    )


def _would_lose(
    dataset: Dataset,
    gone: LostRows,
    lost: IfRowsLost,
    goes_back: bool,
    moment: datetime | None,
) -> InputError:
    """What cannot be read again, and how to go back as far as the source still goes."""
    name = dataset.name
    cures = []
    if goes_back:
        if moment is not None:
            cures.append(f"Go back as far as it goes: `lakewright stream rewind {name} --to {_exact(moment)}`.")
        cures.append("`--lost keep` keeps these rows, and reads every micro-batch again that is still held as a whole.")
    elif gone.until is None:
        cures.append("Declare the source under a new name to keep them, and to take the new topic from its beginning.")
    elif lost == "keep":
        cures.append("No micro-batch is held as a whole, so nothing can be read again without losing rows.")
    cures.append(f"`--lost delete` deletes them for good: {gone.rows:,} rows.")
    return InputError(
        f"{name}: what a rewind deletes is read again, but {gone.why}. Nothing was changed.", hint=" ".join(cures)
    )


def _exact(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds")


def _refuse_what_went_since(shop: Workshop, dataset: Dataset, generation: Generation) -> None:
    """A rewind that goes on after a kill may find that the source has deleted more: asked directly before ours."""
    if not dataset.is_source or generation.start is None or _GIVEN_UP in generation.start:
        return
    source: Any = dataset.source
    rows = shop.lake.read(dataset.name, system_columns=True).where(f"{ARRIVAL_COLUMN} >= {generation.first}")
    gone = source.lost_rows(source_context(shop, dataset), rows, generation.start)
    if gone is not None:
        raise InputError(
            f"{dataset.name}: its rewind was cut short, and what it would delete cannot be read again any more: "
            f"{gone.why}. Nothing was deleted.",
            hint=f"Rewind it again: `lakewright stream rewind {dataset.name} --all --lost keep` keeps what is gone at "
            "the source, `--lost delete` deletes it for good.",
        )


def _refuse_missing_input(shop: Workshop, dataset: Dataset) -> None:
    given = shop.graph.streamed_input(dataset)
    missing = [name for name in given.datasets if not shop.lake.log(name).exists()] if given is not None else []
    if missing and shop.lake.log(dataset.name).exists():
        raise InputError(
            f"{dataset.name}: {missing[0]}, which it would be read again from, has no table. Nothing was changed.",
            hint=f"Make it first: `lakewright run --select +{missing[0]}`.",
        )


def _refuse_another_source(shop: Workshop, dataset: Dataset) -> None:
    """The places that rows tell are those of the topic that they came from, not of one made anew since."""
    known = shop.store.streams.current(dataset.name)
    if known is not None and known.start is not None:
        source: Any = dataset.source
        source.refuse_anew(source_context(shop, dataset), known.start)


def _refuse_states_below(shop: Workshop, dataset: Dataset, consumers: tuple[str, ...]) -> None:
    """What is merged into rows that were made of earlier ones cannot be taken out of them again."""
    for name in consumers:
        below = shop.graph[name]
        merges = below.writer is not None and not below.writer.replaces_slice
        if (
            shop.graph.slicing[name].follows == dataset.name
            and merges
            and not getattr(below.writer, "restores", False)
            and any(isinstance(given.reference, Previous) for given in below.inputs)
            and shop.store.receipts.live_slices(name)
        ):
            raise ConfigurationError(
                f"{name} makes its rows of those that it had made of {dataset.name} before: what is read again would "
                "count twice in them. Nothing was changed.",
                hint=f"Give {name} writer=StatefulMerger(keys=[...]), which goes back to before what was taken back; "
                "or a new name, under which it begins anew.",
            )


def _follows(shop: Workshop, name: str, dataset: str) -> bool:
    """Whether a stream reads another dataset as a stream, and does not only refer to it."""
    given = shop.graph.streamed_input(shop.graph[name])
    return given is not None and dataset in given.datasets


def _refuse_streams_below(shop: Workshop, dataset: Dataset, consumers: tuple[str, ...]) -> None:
    followers = [
        name
        for name in consumers
        if shop.graph[name].appends and _follows(shop, name, dataset.name) and checkpoint_has_begun(shop, name)
    ]
    if followers:
        raise ConfigurationError(
            f"{followers[0]} adds the rows of {dataset.name} as a stream and could not take any of them back. "
            "Nothing was changed.",
            hint=f"Give {followers[0]} writer=Merger(keys=[...]), or rewind it as a whole first: "
            f"`lakewright stream rewind {followers[0]} --all`.",
        )
