"""The rules of a dataset that are not the default, so that a plan shows what else only the code would tell."""

from __future__ import annotations

from typing import Any

from lakewright.patterns.data_flow.unaligned_fan_in import rule_in_words
from lakewright.pipelines.definitions import Dataset

__all__ = ["rules_in_words", "rules_of"]


def rules_in_words(dataset: Dataset) -> list[str]:
    """When its slices are made, where that is not "when everything above has succeeded", and by which compute."""
    told = []
    if dataset.fan_in is not None:
        where = "published with a flag" if dataset.fan_in.publish == "labelled" else "kept private"
        told.append(f"fan-in: {rule_in_words(dataset.fan_in.rule)}; partial slices are {where}")
    if dataset.choice is not None:
        told.append(f"branch {dataset.choice.name} of {dataset.choice.choice}, {dataset.choice.of.by.in_words()}")
    if dataset.compute is not None:
        told.append(f"compute {dataset.compute}")
    return told


def rules_of(dataset: Dataset) -> dict[str, Any]:
    """The same with stable keys; None where the default holds: all above has succeeded, nothing is chosen, and the
    target's own Spark makes it.
    """
    fan_in, choice = dataset.fan_in, dataset.choice
    return {
        "fan_in": None
        if fan_in is None
        else {
            "rule": fan_in.rule if isinstance(fan_in.rule, str) else rule_in_words(fan_in.rule),
            "flag": fan_in.flag,
            "publish": fan_in.publish,
            "fallback": getattr(fan_in.fallback, "__name__", None),
        },
        "choice": None
        if choice is None
        else {
            "name": choice.choice,
            "branch": choice.name,
            "by": choice.of.by.in_words(),
            "branches": dict(choice.of.branches),
        },
        "compute": dataset.compute,
    }
