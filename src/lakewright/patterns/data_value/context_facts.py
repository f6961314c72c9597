"""What may be told of the run that made a record: technical facts, and nothing else.

A reader who looks for an address or an amount does not look here, so what is not on the list is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from lakewright.errors import ConfigurationError, did_you_mean

__all__ = ["FACTS", "check_facts", "facts_as_json"]

FACTS: Mapping[str, str] = MappingProxyType(
    {
        "job_version": "the release of the code",
        "run_id": "the run",
        "batch": "the slice, or the micro-batch, that the record was made with",
        "attempt": "a number that rises with every attempt at the batch",
        "run_time": "the time that the run stands for",
        "dataset": "the dataset",
    }
)
"""Name -> what it tells."""


def check_facts(what: str, names: Iterable[str]) -> None:
    """Refuse a fact that is none of the run.

    >>> check_facts("visits", ["job_version", "invoice_amount"])
    Traceback (most recent call last):
    lakewright.errors.ConfigurationError: visits: 'invoice_amount' is no technical fact: only job_version, run_id...
    """
    if isinstance(names, str):
        raise ConfigurationError(f"{what}: the facts are a list, such as ['{names}'].")
    if unknown := [name for name in names if name not in FACTS]:
        raise ConfigurationError(
            f"{what}: '{unknown[0]}' is no technical fact: only {', '.join(FACTS)} may be told beside a record. "
            "Readers do not look for business values there.",
            hint=did_you_mean(unknown[0], FACTS) or "Keep it as a column of the dataset.",
        )


def facts_as_json(facts: Mapping[str, object]) -> str:
    """The facts as one text, always the same for the same facts.

    >>> facts_as_json({"job_version": "1.4.2", "attempt": 3})
    '{"job_version":"1.4.2","attempt":3}'
    """
    told = {name: one.isoformat() if isinstance(one, datetime) else one for name, one in facts.items()}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False)
