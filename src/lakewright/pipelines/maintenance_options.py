"""The ``maintenance`` option of a dataset, as a project file gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakewright.errors import ConfigurationError
from lakewright.model.maintenance import Maintenance
from lakewright.pipelines.options import as_length

__all__ = ["check_maintenance"]


def check_maintenance(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a history that is no length, a maintenance policy that is none, and one that deletes what it needs."""
    history = as_length(name, "history", options.get("history"))
    policy, into = options.get("maintenance"), options.get("into")
    if policy is None:
        return
    if not isinstance(policy, Maintenance):
        raise ConfigurationError(f"{name}: maintenance is a policy such as Compactor(), not {policy!r}.")
    if into is not None and policy.when == "after run":
        raise ConfigurationError(
            f"{name} goes to {into.shown}, where a run has no files to join.",
            hint='Leave when="after run" out: `lakewright maintain` looks after it there.',
        )
    if history is not None and policy.keeps(history) < history and not policy.unsafe:
        raise ConfigurationError(
            f"{name} keeps its history for {options['history']}, and its maintenance would delete the files of older "
            "versions before that.",
            hint="Leave retention out of the policy: it follows the history then.",
        )
