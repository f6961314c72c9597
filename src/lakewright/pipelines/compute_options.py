"""The option ``compute`` of a dataset: checked when it is declared, and against the target when a project is opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, DefinitionError, did_you_mean
from lakewright.pipelines.definitions import Dataset

if TYPE_CHECKING:
    from lakewright.runtime.settings import Target

__all__ = ["check_compute_option", "check_computes"]


def check_compute_option(name: str, compute: object) -> None:
    """Refuse what cannot name a compute."""
    if compute is not None and (not isinstance(compute, str) or not compute):
        raise ConfigurationError(
            f"{name}: compute names a table [targets.NAME.compute.COMPUTE] of lakewright.toml, and is {compute!r}.",
            hint='Write compute="big".',
        )


def check_computes(datasets: Iterable[Dataset], target: Target) -> None:
    """Refuse a compute that the target does not have, with the lines that mend it."""
    for dataset in datasets:
        if dataset.compute is None or dataset.compute in target.compute:
            continue
        name = target.name.partition(",")[0]  # a trial is called "dev, sample"
        known = f"It has {', '.join(target.compute)}." if target.compute else "It has none."
        near = did_you_mean(dataset.compute, target.compute)
        raise DefinitionError(
            f"{dataset.name} asks for the compute '{dataset.compute}', which the target '{name}' does not have. "
            f"{known} Nothing was started.",
            file=dataset.place.file,
            line=dataset.place.line,
            hint=f"{near + ' Or add' if near else 'Add'} it to lakewright.toml; left empty, it is the target's own "
            f'Spark:\n[targets.{name}.compute.{dataset.compute}]\nmaster = "spark://HOST:7077"',
        )
