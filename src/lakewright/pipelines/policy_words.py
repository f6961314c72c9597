"""Policies in words: the option of a dataset that decides a state of its slices, as a project would write it."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.rules import rules_in_words
from lakewright.pipelines.states import SliceState

__all__ = ["policy_in_words"]


def policy_in_words(dataset: Dataset, state: SliceState) -> str:
    """What decides it; empty where no option does."""
    decides = _POLICIES.get(state.status)
    return "" if decides is None else decides(dataset, state)


def _late(dataset: Dataset, state: SliceState) -> str:
    return f"late={_written(dataset.late)}"


def _refused(dataset: Dataset, state: SliceState) -> str:
    return _late(dataset, state) if state.cure is None else "grid"


def _closing(dataset: Dataset, state: SliceState) -> str:
    if state.status == "overdue":
        return "expect_within"
    told = ['closes="watermark"'] if dataset.closes == "watermark" else []
    told += [f'wait="{dataset.wait}"'] if dataset.wait else []
    told += ["expect_within"] if dataset.expect_within is not None else []
    return ", ".join(told + (rules_in_words(dataset) if dataset.fan_in is not None else []))


def _rules(dataset: Dataset, state: SliceState) -> str:
    return "; ".join(rules_in_words(dataset))


def _outdated(dataset: Dataset, state: SliceState) -> str:
    return f'outdated="{"run" if state.make else "show"}"'


_POLICIES = {
    "late": _late,
    "held": _late,
    "revisit": _late,
    "refused": _refused,
    "waiting": _closing,
    "overdue": _closing,
    "unmet": _rules,
    "partial": _rules,
    "skipped": _rules,
    "outdated": _outdated,
}


def _written(option: Any) -> str:
    """An option as it is written: without what is the default."""
    given = []
    for one in fields(option):
        value = getattr(option, one.name)
        if one.default is MISSING or value != one.default:
            given.append(f"{one.name}={value!r}")
    return f"{type(option).__name__}({', '.join(given)})"
