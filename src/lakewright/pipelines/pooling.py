"""What is asked of the run policies of a project's pipelines: pools that exist, and shared state that is guarded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakewright.errors import DefinitionError, did_you_mean
from lakewright.pipelines.admission import Admission
from lakewright.pipelines.definitions import Dataset

if TYPE_CHECKING:
    from lakewright.pipelines.declare import Pipeline
    from lakewright.pipelines.definitions import Settings

__all__ = ["admission_of", "check_pools", "check_shared_state"]


def admission_of(settings: Settings, pools: Mapping[str, int]) -> Admission:
    """How runs of a pipeline get in."""
    runs = settings.runs
    slots = 1 if runs.pool is None else pools.get(runs.pool, 1)
    return Admission(queue=runs.queue, limit=runs.concurrency, pool=runs.pool, slots=slots)


def check_pools(pipelines: Sequence[Pipeline], pools: Mapping[str, int]) -> None:
    """Refuse a pool that the settings do not have."""
    for pipeline in pipelines:
        pool = pipeline.settings.runs.pool
        if pool is None or pool in pools:
            continue
        known = f"Known: {', '.join(pools)}." if pools else "lakewright.toml declares none."
        raise DefinitionError(
            f"the pipeline '{pipeline.name}' names the pool '{pool}', which does not exist. {known}",
            file=pipeline.place.file,
            line=pipeline.place.line,
            hint=did_you_mean(pool, list(pools)) or f"Add it to lakewright.toml: [pools] {pool} = 3",
        )


def check_shared_state(pipelines: Sequence[Pipeline]) -> None:
    """Refuse several runs at once where what they share is not guarded by an order."""
    for pipeline in pipelines:
        if pipeline.settings.runs.concurrency == 1:
            continue
        named = dict.fromkeys(getattr(pipeline.settings.runs, "shared_state", ()))
        named |= dict.fromkeys(name for dataset in pipeline.datasets for name in dataset.shared_state)
        for name in named:
            users = [dataset for dataset in pipeline.datasets if _uses(dataset, name)]
            unguarded = [dataset for dataset in users if not _is_guarded(dataset)]
            if users and not unguarded:
                continue
            who = (
                f"{unguarded[0].name}, which uses it, does not depend on its past"
                if users
                else "nobody says who uses it"
            )
            raise DefinitionError(
                f"the pipeline '{pipeline.name}' may have {pipeline.settings.runs.concurrency} runs at once, and they "
                f"share '{name}': {who}. Its state would be another one each time.",
                file=pipeline.place.file,
                line=pipeline.place.line,
                hint=f"Give every dataset that uses it depends_on_past=True and, where it neither makes nor reads a "
                f'dataset of that name, shared_state=["{name}"]; or let one run at a time: runs=SingleRunner().',
            )


def _uses(dataset: Dataset, name: str) -> bool:
    read = [one for given in dataset.inputs for one in given.datasets]
    return name in (dataset.name, *dataset.outputs, *read, *dataset.shared_state)


def _is_guarded(dataset: Dataset) -> bool:
    return dataset.depends_on_past or (dataset.is_source and dataset.in_order)
