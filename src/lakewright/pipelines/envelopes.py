"""What goes around the rows of a step before they are written: an envelope (Wrapper), and facts of the run (Metadata
Decorator).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError
from lakewright.patterns.data_value.context_facts import FACTS
from lakewright.patterns.data_value.metadata_decorator import MetadataDecorator, add_metadata
from lakewright.patterns.data_value.wrapper import Wrapper, wrap_apart, wrap_records
from lakewright.patterns.idempotency.data_overwrite import DataOverwrite
from lakewright.pipelines.definitions import Dataset, PrivateOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.workshop import Attempt

__all__ = ["check_envelopes", "envelope_outputs", "enveloped"]


def check_envelopes(name: str, options: dict[str, Any]) -> None:
    """Refuse an envelope that cannot be; a further table that it needs becomes a private output."""
    outputs: dict[str, PrivateOutput] = {}
    if (wrapper := options.get("wrap")) is not None:
        outputs |= _check_wrapper(name, wrapper, options)
    if (decorator := options.get("metadata")) is not None:
        outputs |= _check_decorator(name, decorator, options)
    if not outputs:
        return
    if options.get("mode", "batch") == "stream":
        raise ConfigurationError(
            f"{name}: a stream writes one table, and this would be a second one ({', '.join(outputs)}).",
            hint='Keep both parts in one (another form), and facts in a column: MetadataDecorator(where="column").',
        )
    given = dict(options.get("outputs") or {})
    if twice := [one for one in outputs if one in given]:
        raise ConfigurationError(f"{name}: the output '{twice[0]}' is made by Lakewright. Choose another name.")
    options["outputs"] = {**given, **outputs}


def _check_wrapper(name: str, wrapper: object, options: dict[str, Any]) -> dict[str, PrivateOutput]:
    if not isinstance(wrapper, Wrapper):
        raise ConfigurationError(f"{name}: wrap is a Wrapper(computed={{...}}), not {wrapper!r}.")
    event_time, nested = options.get("event_time"), wrapper.form in ("raw_nested", "two_tables")
    if event_time is not None and nested and event_time not in (*wrapper.computed, *wrapper.keys):
        raise ConfigurationError(
            f"{name} is sliced by '{event_time}', which form=\"{wrapper.form}\" puts away with the raw part.",
            hint=f'Compute it too: Wrapper(computed={{"{event_time}": "{event_time}", ...}}).',
        )
    return {f"{name}_raw": PrivateOutput(DataOverwrite())} if wrapper.form == "two_tables" else {}


def _check_decorator(name: str, decorator: object, options: dict[str, Any]) -> dict[str, PrivateOutput]:
    if not isinstance(decorator, MetadataDecorator):
        raise ConfigurationError(f"{name}: metadata is a MetadataDecorator(...), not {decorator!r}.")
    if getattr(options.get("writer"), "history", None) is not None:
        raise ConfigurationError(
            f"{name}: with a history (Scd2) each run would be told by new rows, though nothing has changed.",
            hint="Leave metadata out; the commits of the table tell the run of each version.",
        )
    into = options.get("into")
    target = f"{name}: a table of the lake" if into is None else f"{name}: {into.shown}"
    place = decorator.place_in(target, carries=getattr(into, "carries_metadata", False))
    return {f"{name}_context": PrivateOutput(DataOverwrite())} if place == "table" else {}


def enveloped(current: Attempt, frames: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """What a step returned, wrapped and decorated as its dataset says; lazy, but for the keys of two tables."""
    dataset = current.dataset
    if (wrapper := dataset.wrap) is not None:
        told = _facts(current, wrapper.version)
        if wrapper.form == "two_tables":
            apart = wrap_apart(frames[dataset.name], wrapper=wrapper, context=told)
            frames = {**frames, dataset.name: apart.computed, f"{dataset.name}_raw": apart.raw}
        else:
            frames = {**frames, dataset.name: wrap_records(frames[dataset.name], wrapper=wrapper, context=told)}
    return frames if dataset.metadata is None else _decorated(current, dataset.metadata, frames)


def envelope_outputs(dataset: Dataset) -> set[str]:
    """The outputs of a dataset that its step need not return."""
    made = {f"{dataset.name}_raw"} if dataset.wrap is not None and dataset.wrap.form == "two_tables" else set()
    return (made | ({f"{dataset.name}_context"} if dataset.metadata is not None else set())) & set(dataset.outputs)


def _decorated(current: Attempt, decorator: MetadataDecorator, frames: dict[str, DataFrame]) -> dict[str, DataFrame]:
    dataset = current.dataset
    known = _facts(current, decorator.version)
    facts = {name: known[name] for name in decorator.facts}
    place = decorator.place_in(dataset.name, carries=getattr(dataset.into, "carries_metadata", False))
    if place == "native":
        current.told["metadata"] = {name: str(one) for name, one in facts.items()}
        return frames
    if place == "column":
        return {**frames, dataset.name: add_metadata(frames[dataset.name], facts=facts)}
    rows = add_metadata(frames[dataset.name], facts={"batch": known["batch"]}, where="table")
    return {**frames, dataset.name: rows, f"{dataset.name}_context": _context_row(current, facts)}


def _context_row(current: Attempt, facts: dict[str, object]) -> DataFrame:
    """The slice's one row of the technical table; of a slice of event time, it lies where the slice's rows do."""
    from pyspark.sql import functions as F

    told = [F.lit(current.slice.id).alias("context_id"), *[F.lit(one).alias(name) for name, one in facts.items()]]
    event_time, slice_ = current.dataset.event_time, current.slice
    if event_time is not None and slice_.kind == "event":
        told.append(F.lit(slice_.interval.start).alias(event_time))
    return current.shop.lake.session().range(1).select(*told)


def _facts(current: Attempt, version: str | None) -> dict[str, object]:
    shop, dataset = current.shop, current.dataset
    told = {
        "job_version": version or shop.codes.get(dataset.name),
        "run_id": shop.run.run_id,
        "batch": current.slice.id,
        "attempt": current.grant.number,
        "run_time": shop.run.time,
        "dataset": dataset.name,
    }
    return {name: told[name] for name in FACTS}
