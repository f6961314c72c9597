"""The option ``triggers`` of a pipeline, and the triggers of a project with the pipelines that they start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.patterns.ingestion.external_trigger import ExternalTrigger

if TYPE_CHECKING:
    from lakewright.pipelines.definitions import Settings

__all__ = ["checked_triggers", "triggers_of"]


def checked_triggers(triggers: Sequence[ExternalTrigger]) -> tuple[ExternalTrigger, ...]:
    """Refuse what is no trigger, or the same one twice."""
    if isinstance(triggers, ExternalTrigger):
        raise ConfigurationError("triggers is a list: triggers=[ExternalTrigger(...)].")
    for one in triggers:
        if not isinstance(one, ExternalTrigger):
            raise ConfigurationError(f"{one!r} is no trigger. Use ExternalTrigger(on=...).")
    names = [one.name for one in triggers]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigurationError(f"Two triggers are called '{twice[0]}'. Give one of them another name.")
    return tuple(triggers)


def triggers_of(
    settings: Iterable[Settings], pipelines: Sequence[str] = ()
) -> list[tuple[ExternalTrigger, tuple[str, ...]]]:
    """Each trigger with the pipelines that it starts; those of ``pipelines``, where some are named."""
    declared = {one.pipeline: one for one in settings}
    for name in pipelines:
        if name not in declared:
            raise UnknownNameError("pipeline", name, declared)
        if not declared[name].triggers:
            raise ConfigurationError(f"The pipeline '{name}' has no trigger: triggers=[ExternalTrigger(...)].")
    found: dict[str, tuple[ExternalTrigger, tuple[str, ...]]] = {}
    for one in declared.values():
        for trigger in one.triggers:
            known, names = found.get(trigger.name, (trigger, ()))
            if known != trigger:
                raise ConfigurationError(
                    f"The pipelines '{names[0]}' and '{one.pipeline}' declare different triggers under the name "
                    f"'{trigger.name}'.",
                    hint="Share one object between them, or give each a name of its own.",
                )
            found[trigger.name] = (known, (*names, one.pipeline))
    chosen = [pair for pair in found.values() if not pipelines or set(pipelines) & set(pair[1])]
    if not chosen:
        raise ConfigurationError(
            "No pipeline of this project has a trigger.", hint="Declare one: triggers=[ExternalTrigger(...)]."
        )
    return chosen
